# SPDX-License-Identifier: Apache-2.0
"""The queue on disk: every job, every node and what happened to them, in SQLite with a write-ahead log.

A transaction that has been committed survives the end of the process; with `durable` it survives the loss of power as
well. One scheduler at a time may have a queue open: the file beside it is locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import sqlite3
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.errors import SchedulerError
from scheduler.live.jobs import FINAL, Entry, Job, Node, User
from scheduler.live.spec import MOST_JOBS, Dependency, Spec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

SCHEMA = 1
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE jobs (number INTEGER PRIMARY KEY, state TEXT NOT NULL, uid INTEGER NOT NULL, value TEXT NOT NULL);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE specs (number INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE nodes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (job INTEGER NOT NULL, at REAL NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX entries_by_job ON entries (job);
"""
_ENDED = ",".join("?" * len(FINAL))


class Store:
    """The queue in a folder. Raises SchedulerError with what to do where it cannot be opened."""

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._path = folder / "queue.sqlite"
        try:
            folder.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._lock = os.open(folder / "queue.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            msg = f"the queue cannot be kept in {folder}: {error.strerror}: choose another folder with --state."
            raise SchedulerError(msg) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = self._open(durable=durable)
        except BlockingIOError as error:
            os.close(self._lock)
            msg = f"another scheduler has the queue in {folder}: stop it, or give this one another folder with --state."
            raise SchedulerError(msg) from error
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            reason = error.strerror if isinstance(error, OSError) else error
            msg = f"the queue {self._path} cannot be opened: {reason}: mend it, or move it away to begin anew."
            raise SchedulerError(msg) from error

    def _open(self, *, durable: bool) -> sqlite3.Connection:
        self._be_private()
        db = sqlite3.connect(self._path, isolation_level=None)
        try:
            self._prepare(db, durable=durable)
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _be_private(self) -> None:
        """Let nobody else read the queue, in which environments are. SQLite gives new files the mode of the first."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self._path}{end}").chmod(0o600)

    def _prepare(self, db: sqlite3.Connection, *, durable: bool) -> None:
        """Set up a connection and, the first time, the tables; raise sqlite3.Error for what is no queue of ours."""
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            db.execute("BEGIN IMMEDIATE")
            for statement in filter(str.strip, _TABLES.split(";")):
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES ('schema', ?)", (SCHEMA,))
            db.execute("COMMIT")
        (schema,) = db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if schema != SCHEMA:
            msg = f"its layout is of version {schema}, and this drom reads {SCHEMA}: use the drom that wrote it"
            raise sqlite3.DatabaseError(msg)

    def close(self) -> None:
        """Let another scheduler have the queue."""
        self._db.close()
        os.close(self._lock)

    # --- writing --------------------------------------------------------------------------------------------------

    def write(
        self, jobs: Iterable[Job], nodes: Iterable[Node], entries: Iterable[Entry], gone: Iterable[str] = ()
    ) -> None:
        """Write all of it down, and that nodes are `gone`, or nothing. Raises SchedulerError where it cannot be now."""
        with self._transaction():
            specs: dict[int, str] = {}
            for job in jobs:
                self._write_job(job, specs)
            self._db.executemany("DELETE FROM nodes WHERE name = ?", [(name,) for name in gone])
            for node in nodes:
                self._db.execute("REPLACE INTO nodes VALUES (?, ?)", (node.name, json.dumps(asdict(node))))
            self._db.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?)",
                [(entry.job, entry.at, entry.what, json.dumps(entry.detail)) for entry in entries],
            )

    def try_writing(self) -> None:
        """Write something that says nothing. Raises SchedulerError where nothing can be written now."""
        with self._transaction():
            self._db.execute("REPLACE INTO meta VALUES ('tried', ?)", (time.time(),))

    def forget(self, before: float, needed: Collection[int], most: int) -> list[int]:
        """Delete up to `most` jobs that were over before that time, and return them.

        Those that are `needed` stay, and so does the newest of all, after whose number comes the next. Raises
        SchedulerError where that is not possible now.
        """
        kept = {*needed, self.next_number - 1}
        with contextlib.closing(self._db.execute("SELECT job, at, what FROM entries ORDER BY rowid")) as rows:
            old = itertools.takewhile(lambda row: row[1] < before, rows)  # what came later stands later
            gone = list(itertools.islice((job for job, _, what in old if what in FINAL and job not in kept), most))
        with self._transaction():
            for table, column in (("jobs", "number"), ("specs", "number"), ("entries", "job")):
                self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(job,) for job in gone])  # noqa: S608
        return gone

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Have all of a block written down, or nothing. Raises SchedulerError where that is not possible now."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            msg = f"the queue {self._path} cannot be written: {error}: make room on its disk."
            raise SchedulerError(msg) from error

    def _write_job(self, job: Job, specs: dict[int, str]) -> None:
        """Write a job down; of what many of them ask for alike, `specs` has the text by the identity of the object."""
        if job.attempt == 0 or job.is_final:  # what is asked for never changes, and at the end less of it is kept
            text = specs.get(id(job.spec)) or specs.setdefault(id(job.spec), json.dumps(job.spec.to_json()))
            verb = "REPLACE" if job.is_final else "INSERT OR IGNORE"
            self._db.execute(f"{verb} INTO specs VALUES (?, ?)", (job.number, text))
        text = json.dumps({name: getattr(job, name) for name in _COLUMNS})
        self._db.execute("REPLACE INTO jobs VALUES (?, ?, ?, ?)", (job.number, job.state, job.user.uid, text))

    # --- reading --------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """Return all nodes in the order of their indices."""
        found = [Node(**json.loads(text)) for (text,) in self._db.execute("SELECT value FROM nodes")]
        return sorted(found, key=lambda node: node.index)

    def living(self) -> list[Job]:
        """Return all jobs that are not over, in the order of their numbers."""
        return self._jobs(f"WHERE state NOT IN ({_ENDED}) ORDER BY number", tuple(sorted(FINAL)))

    def last(self, count: int, uid: int | None = None, before: int = MOST_JOBS) -> list[Job]:
        """Return the newest jobs of those `before` a number, of one user or of all, in the order of their numbers."""
        whose, values = ("", ()) if uid is None else ("AND uid = ?", (uid,))
        return self._jobs(f"WHERE number < ? {whose} ORDER BY number DESC LIMIT ?", (before, *values, count))[::-1]

    def job(self, number: int) -> Job | None:
        """Return one job, None if there never was one of that number."""
        return next(iter(self._jobs("WHERE number = ?", (number,))), None)

    def state(self, number: int) -> str | None:
        """Return the final state of a job, None of one that is not over."""
        row = self._db.execute("SELECT state FROM jobs WHERE number = ?", (number,)).fetchone()
        return str(row[0]) if row and row[0] in FINAL else None

    def history(self, first: int = 1, last: int = MOST_JOBS) -> list[Entry]:
        """Return what happened to the jobs from one number to another, in order."""
        asked = "SELECT job, at, what, detail FROM entries WHERE job BETWEEN ? AND ? ORDER BY rowid"
        rows = self._db.execute(asked, (first, last))
        return [Entry(job, at, what, json.loads(detail)) for job, at, what, detail in rows]

    @property
    def next_number(self) -> int:
        """The number of the next job."""
        (last,) = self._db.execute("SELECT max(number) FROM jobs").fetchone()
        return int(last or 0) + 1

    @property
    def latest(self) -> float:
        """When the last thing happened, in unix seconds; 0 if nothing has."""
        row = self._db.execute("SELECT at FROM entries ORDER BY rowid DESC LIMIT 1").fetchone()
        return float(row[0]) if row else 0.0

    def _jobs(self, where: str, values: tuple[object, ...]) -> list[Job]:
        rows = self._db.execute(
            f"SELECT jobs.value, specs.value FROM jobs JOIN specs USING (number) {where}",  # noqa: S608 - our own words
            values,
        )
        return [_job(json.loads(job), json.loads(spec)) for job, spec in rows]


_COLUMNS = tuple(item.name for item in fields(Job) if item.name != "spec")


def _job(values: dict[str, Any], spec: dict[str, Any]) -> Job:
    texts = {name: tuple(spec[name]) for name in ("command", "constraint")}
    after = tuple(Dependency(*pair) for pair in spec["after"])
    return Job(**{**values, "user": User(*values["user"]), "spec": Spec(**{**spec, **texts, "after": after})})
