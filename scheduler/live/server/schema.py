# SPDX-License-Identifier: Apache-2.0
"""The tables of the queue, their creation and conversion, and the texts that jobs share.

A job's specification may be half a MiB, and a thousand jobs may have the same one in a request: each text is stored
once, as long as a job refers to it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from drom.scheduler.live.server.records import CorruptRecordError, NewerVersionError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

Key = tuple[str, int | str]
"""A table and the key of a row in it."""
SCHEMA = 2
APPLICATION = int.from_bytes(b"drom", "big")
"""The application id in the file of a queue; files of earlier versions have none."""
_SPECS = "CREATE TABLE specs (number INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, value TEXT NOT NULL);"
_BY_SPEC = "CREATE INDEX jobs_by_spec ON jobs (spec);"
_TABLES = f"""
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, state TEXT NOT NULL, uid INTEGER NOT NULL, value TEXT NOT NULL, spec INTEGER NOT NULL
);
CREATE INDEX jobs_by_state ON jobs (state);
{_BY_SPEC}
{_SPECS}
CREATE TABLE nodes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (job INTEGER NOT NULL, at REAL NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX entries_by_job ON entries (job);
"""
COLUMNS = {
    "meta": ("name", "value"),
    "jobs": ("number", "state", "uid", "value", "spec"),
    "specs": ("number", "value"),
    "nodes": ("name", "value"),
    "entries": ("rowid", "job", "at", "what", "detail"),
}
"""The columns of each table, its key first, from which a row can be made again."""
NUMBERED = frozenset({"jobs", "specs", "entries"})
"""Tables whose keys are numbers."""


def check(db: sqlite3.Connection) -> None:
    """Raise DamageError or sqlite3.Error for a file that is not a queue of drom; nothing is changed."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if application not in (0, APPLICATION) or (tables and "meta" not in tables):
        raise CorruptRecordError("it is not a queue of drom")


def prepare(db: sqlite3.Connection) -> None:
    """Create the tables in a new file, or convert those of an earlier version.

    Raises DamageError, NewerError or sqlite3.Error for a file that is not a queue of this drom; once the connection is
    closed after that, nothing has changed.
    """
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        db.execute("BEGIN IMMEDIATE")
        _run(db, _TABLES)
        _end_as_ours(db)
    row = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
    if row is None or type(row[0]) is not int or row[0] < 1:
        raise CorruptRecordError("it does not contain its version")
    if row[0] > SCHEMA:
        raise NewerVersionError(f"its layout is of version {row[0]}, and this drom reads {SCHEMA}")
    if row[0] == 1:
        _share_texts(db)
    if db.execute("PRAGMA application_id").fetchone() != (APPLICATION,):
        db.execute(f"PRAGMA application_id = {APPLICATION}")
    db.execute("CREATE INDEX IF NOT EXISTS jobs_by_user ON jobs (uid, number)")


def _share_texts(db: sqlite3.Connection) -> None:
    """Convert a queue of version 1, in which each job had its own text, stored by the job's number."""
    db.execute("BEGIN IMMEDIATE")
    _run(db, f"ALTER TABLE specs RENAME TO texts; {_SPECS} ALTER TABLE jobs ADD COLUMN spec INTEGER NOT NULL DEFAULT 0")
    for number, text in db.execute("SELECT number, value FROM texts"):
        db.execute("UPDATE jobs SET spec = ? WHERE number = ?", (row_of(db, text), number))
    (without,) = db.execute("SELECT min(number) FROM jobs WHERE spec = 0").fetchone()
    if without is not None:
        raise CorruptRecordError(f"what job {without} asks for is not there")
    _run(db, f"DROP TABLE texts; {_BY_SPEC}")
    _end_as_ours(db)


def _run(db: sqlite3.Connection, statements: str) -> None:
    """Run statements within a transaction, which sqlite3's executescript would end."""
    for statement in filter(str.strip, statements.split(";")):
        db.execute(statement)


def _end_as_ours(db: sqlite3.Connection) -> None:
    """Record that the layout is of this version, and commit the transaction."""
    db.execute("REPLACE INTO meta VALUES ('schema', ?)", (SCHEMA,))
    db.execute("COMMIT")


def row_of(db: sqlite3.Connection, text: str) -> int:
    """Return the number of the row of a text, which is added if there is none."""
    digest = _digest(text)
    db.execute("INSERT OR IGNORE INTO specs (digest, value) VALUES (?, ?)", (digest, text))
    (row,) = db.execute("SELECT number FROM specs WHERE digest = ?", (digest,)).fetchone()
    return int(row)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def drop_unused(db: sqlite3.Connection, rows: Iterable[int]) -> None:
    """Delete the texts in these rows to which no job refers any more."""
    asked = "DELETE FROM specs WHERE number = ? AND NOT EXISTS (SELECT 1 FROM jobs WHERE spec = specs.number)"
    db.executemany(asked, [(row,) for row in rows])


def track(db: sqlite3.Connection, changed: set[Key]) -> None:
    """Add the keys of rows to `changed` as they are written or deleted by this connection."""
    db.create_function("changed", 2, lambda table, key: changed.add((table, key)))
    for table, (key, *_) in COLUMNS.items():
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            name, act = f"temp.{table}_{event.lower()}", f"SELECT changed('{table}', {row}.{key})"
            db.execute(f"CREATE TRIGGER {name} AFTER {event} ON main.{table} BEGIN {act}; END")


def row(db: sqlite3.Connection, key: Key) -> tuple[Any, ...] | None:
    """Return the columns of a row, None if it is not there."""
    table, name = key
    asked = f"SELECT {','.join(COLUMNS[table])} FROM {table} WHERE {COLUMNS[table][0]} = ?"  # noqa: S608 - our words
    found: tuple[Any, ...] | None = db.execute(asked, (name,)).fetchone()
    return found


def put_row(db: sqlite3.Connection, key: Key, columns: Sequence[Any] | None) -> None:
    """Write a row with these columns, or delete it if there are none."""
    table, name = key
    if columns is None:
        db.execute(f"DELETE FROM {table} WHERE {COLUMNS[table][0]} = ?", (name,))  # noqa: S608 - our words
        return
    names, values = COLUMNS[table], tuple(columns)
    if table == "specs":
        names, values = (*names, "digest"), (*values, _digest(values[1]))
    marks = ",".join("?" * len(names))
    db.execute(f"REPLACE INTO {table} ({','.join(names)}) VALUES ({marks})", values)  # noqa: S608 - our words


def clear(db: sqlite3.Connection, table: str) -> None:
    """Delete all rows of a table but that of the schema."""
    db.execute(f"DELETE FROM {table} WHERE {COLUMNS[table][0]} != 'schema'")  # noqa: S608 - our words
