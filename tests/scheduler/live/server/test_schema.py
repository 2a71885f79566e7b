# SPDX-License-Identifier: Apache-2.0
"""The tables of the queue: those of an earlier version are carried over, all or nothing."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.live.cluster.jobs import COMPLETED, PENDING, Entry, Job, Node, User
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.live.server.records import text_of_job, text_of_node
from drom.scheduler.live.server.schema import SCHEMA
from drom.scheduler.live.server.store import Store, UnreadableError

if TYPE_CHECKING:
    from pathlib import Path

VERSION_1 = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE jobs (number INTEGER PRIMARY KEY, state TEXT NOT NULL, uid INTEGER NOT NULL, value TEXT NOT NULL);
CREATE INDEX jobs_by_state ON jobs (state);
CREATE TABLE specs (number INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE nodes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (job INTEGER NOT NULL, at REAL NOT NULL, what TEXT NOT NULL, detail TEXT NOT NULL);
CREATE INDEX entries_by_job ON entries (job);
INSERT INTO meta VALUES ('schema', 1);
"""
LARGE = Spec(command=("true",), folder="/", environment={"A": "x" * 100_000})
SMALL = Spec(command=("false",), folder="/")
ANN = User(1000, 1000, "ann")
JOBS = [
    Job(1, SMALL, ANN, 1.0, COMPLETED),
    Job(2, LARGE, ANN, 2.0, PENDING),
    Job(3, LARGE, ANN, 3.0, PENDING),
    Job(5, SMALL, ANN, 4.0, PENDING),
]


def version_1(folder: Path) -> sqlite3.Connection:
    """Return a queue as the first version has written it."""
    db = sqlite3.connect(folder / "queue.sqlite", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.executescript(VERSION_1)
    for job in JOBS:
        db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", (job.number, job.state, job.user.uid, text_of_job(job)))
        db.execute("INSERT INTO specs VALUES (?, ?)", (job.number, json.dumps(job.spec.to_json())))
    db.execute("INSERT INTO nodes VALUES ('n1', ?)", (text_of_node(Node("n1", 0, 4)),))
    db.execute("INSERT INTO entries VALUES (1, 9.0, 'completed', '{}')")
    return db


def test_a_queue_of_the_first_version_is_carried_over(tmp_path: Path) -> None:
    """All of it, with each text once from then on; the next start finds it as one of its own."""
    version_1(tmp_path).close()
    for _ in range(2):
        store = Store(tmp_path)
        assert list(store.newest(9))[::-1] == JOBS
        assert store.living() == JOBS[1:]
        assert (store.nodes(), store.history(), store.next_number) == (
            [Node("n1", 0, 4)],
            [Entry(1, 9.0, COMPLETED, {})],
            6,
        )
        store.close()

    with contextlib.closing(sqlite3.connect(tmp_path / "queue.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM specs").fetchone() == (2,)
        assert db.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone() == (SCHEMA,)
    store = Store(tmp_path)
    assert store.forget(10.0, (), 9) == [1]
    store.write([Job(6, SMALL, ANN, 5.0)], [], [])
    assert [job.spec for job in list(store.newest(9))[::-1]] == [LARGE, LARGE, SMALL, SMALL]
    store.close()


def test_a_damaged_queue_is_not_carried_over(tmp_path: Path) -> None:
    """A damaged queue stays as it is, byte for byte, so that it can be repaired."""
    with contextlib.closing(version_1(tmp_path)) as db:
        db.execute("DELETE FROM specs WHERE number = 3")
    before = (tmp_path / "queue.sqlite").read_bytes()
    for _ in range(2):
        with pytest.raises(
            UnreadableError, match=r"cannot be opened: what job 3 asks for is not there: repair it or its "
        ):
            Store(tmp_path)

    assert (tmp_path / "queue.sqlite").read_bytes() == before
    with contextlib.closing(sqlite3.connect(tmp_path / "queue.sqlite", isolation_level=None)) as db:
        db.execute("INSERT INTO specs SELECT 3, value FROM specs WHERE number = 2")
    store = Store(tmp_path)
    assert list(store.newest(9))[::-1] == JOBS
    store.close()
