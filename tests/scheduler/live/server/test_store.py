# SPDX-License-Identifier: Apache-2.0
"""The queue: what was written is there again, all or nothing, for one scheduler at a time; in a file and in etcd."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sqlite3
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.jobs import COMPLETED, RUNNING, Entry, Job, Node, User
from drom.scheduler.live.cluster.spec import Dependency, Spec, without_environment
from drom.scheduler.live.server.records import text_of_spec
from drom.scheduler.live.server.store import Store, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ANN = User(1000, 1000, "ann")
LARGE = Spec(command=("true",), folder="/", environment={"A": "x" * 490_000})


def job(number: int, state: str = RUNNING) -> Job:
    """Return a job in the middle of its life."""
    spec = Spec(command=("a", "b\udcff"), after=(Dependency("after", 1),), resources={"gpu": 1}, folder="/")
    about = {"n1": 2, "n2": 4}
    return Job(number, spec, ANN, 1.5, state, attempt=0, shares=about, left=["n2"], started=2.5, limit=60)


def test_everything_is_there_again(queue: Callable[[], Store]) -> None:
    """Jobs, nodes and histories, in order; those that are over only when asked for."""
    store = queue()
    nodes = [Node("n2", 0, 4), Node("n1", 1, 4, features=["fast"])]
    entries = [Entry(1, 1.0, "submitted", {}), Entry(2, 2.0, "placed", {"shares": {"n1": 2}})]
    store.write([job(1), job(2, COMPLETED)], nodes, entries)
    store.close()

    store = queue()

    assert store.living() == [job(1)]
    assert list(store.newest(5))[::-1] == [job(1), job(2, COMPLETED)]
    assert list(store.newest(5, before=2))[::-1] == [job(1)]
    assert store.job(2) == job(2, COMPLETED)
    assert store.job(3) is None
    assert (store.state(1), store.state(2), store.next_number, store.latest) == (None, COMPLETED, 3, 2.0)
    assert store.nodes() == nodes
    assert store.history() == entries
    assert store.history(2) == entries[1:]
    assert store.history(1, 1) == entries[:1]
    store.close()


def test_the_queue_is_for_its_schedulers_eyes(tmp_path: Path) -> None:
    """Environments are in it: no other user may read any of its files, nor those that an older scheduler has made."""
    before = os.umask(0o022)
    try:
        Store(tmp_path).close()
        for name in ("queue.sqlite", "queue.sqlite-wal", "queue.sqlite-shm"):
            (tmp_path / name).touch()
            (tmp_path / name).chmod(0o644)
        store = Store(tmp_path)
        store.write([job(1)], [], [])
        found = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)

    names = ("queue.lock", "queue.reserve", "queue.sqlite", "queue.sqlite-shm", "queue.sqlite-wal")
    assert found == dict.fromkeys(names, 0o600)


def test_jobs_that_say_no_umask_have_the_usual_one(tmp_path: Path) -> None:
    """Those that an older scheduler has taken in."""
    store = Store(tmp_path)
    store.write([job(1)], [], [])
    store.close()
    with sqlite3.connect(tmp_path / "queue.sqlite") as db:
        db.execute("UPDATE specs SET value = json_remove(value, '$.umask')")
    store = Store(tmp_path)

    assert [one.spec.umask for one in store.living()] == [0o022]
    store.close()


def test_jobs_that_were_over_long_ago_are_deleted(queue: Callable[[], Store]) -> None:
    """The oldest first, so many at a time; not what lives, is needed or is the newest: no number is given twice."""
    store = queue()
    store.write([job(2), *(job(number, COMPLETED) for number in (1, 3, 4, 5, 6, 7))], [], [])
    ends = [Entry(number, 10.0 * number, "completed", {}) for number in (1, 3, 4, 5, 7)]
    store.write([], [], [Entry(2, 1.0, "started", {}), *ends, Entry(6, 90.0, "completed", {})])

    assert store.forget(80.0, {4}, 2) == [1, 3]
    assert store.forget(80.0, {4}, 2) == [5]
    assert store.forget(80.0, {4}, 2) == []
    assert [one.number for one in list(store.newest(10))[::-1]] == [2, 4, 6, 7]
    assert [entry.job for entry in store.history()] == [2, 4, 7, 6]
    assert store.next_number == 8
    store.close()


def test_one_scheduler_at_a_time(tmp_path: Path) -> None:
    """The second is told what to do; when the first has gone another may."""
    first = Store(tmp_path)
    with pytest.raises(SchedulerError, match=r"^another scheduler has the queue in .*: stop it, or .*\.$"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def test_what_is_no_queue_is_refused(tmp_path: Path) -> None:
    """A file of something else, a newer layout, a folder that cannot be made: a sentence each, and nothing is lost."""
    (tmp_path / "queue.sqlite").write_text("no queue" * 200, encoding="ascii")
    with pytest.raises(SchedulerError, match=r"cannot be opened: file is not a database: repair it or its "):
        Store(tmp_path)
    assert (tmp_path / "queue.sqlite").read_text(encoding="ascii").startswith("no queue")
    Store(tmp_path / "new").close()
    with sqlite3.connect(tmp_path / "new/queue.sqlite") as db:
        db.execute("UPDATE meta SET value = 99")
    with pytest.raises(
        SchedulerError, match=r"is of a newer drom: its layout is of version 99, and this drom reads 2: "
    ):
        Store(tmp_path / "new")
    with sqlite3.connect(tmp_path / "new/queue.sqlite") as db:
        db.execute("DELETE FROM meta")
    with pytest.raises(SchedulerError, match=r"cannot be opened: it does not contain its version: repair it or "):
        Store(tmp_path / "new")
    with pytest.raises(SchedulerError, match=r"^the queue cannot be kept in .*: File exists: choose another folder"):
        Store(tmp_path / "queue.sqlite")


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """What cannot be written is refused as a whole, and goes in when there is room again."""
    store = Store(tmp_path)
    store.write([job(1)], [], [])
    size = (tmp_path / "queue.sqlite-wal").stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(SchedulerError, match=r"^the queue .* cannot be written: .*: free space on its disk\.$"):
            store.write([job(number) for number in range(2, 60)], [], [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(store.newest(100))[::-1] == [job(1)]
    store.write([job(2)], [], [])
    assert list(store.newest(100))[::-1] == [job(1), job(2)]
    store.close()


def texts(store: Store) -> list[str]:
    """Return what jobs ask for, as it is stored."""
    return [text for (text,) in store._db.execute("SELECT value FROM specs ORDER BY number")]


def test_what_many_jobs_ask_for_is_kept_once(queue: Callable[[], Store]) -> None:
    """For as long as one of them is there; so is what is left of it when they are over."""
    store = queue()
    many = [replace(job(number), spec=LARGE) for number in range(1, 1001)]
    store.write(many, [], [])
    assert sum(map(len, texts(store))) < 2 << 20
    assert [one.spec for one in store.living()] == [LARGE] * 1000
    assert len({id(one.spec) for one in store.living()}) == 1

    for one in many[:999]:
        one.state, one.spec = COMPLETED, without_environment(LARGE)
    store.write(many[:999], [], [Entry(one.number, 1.0, COMPLETED, {}) for one in many[:999]])
    assert texts(store) == [json.dumps(LARGE.to_json()), json.dumps(without_environment(LARGE).to_json())]
    assert store.job(1000) == many[999]
    many[999].state, many[999].spec = COMPLETED, without_environment(LARGE)
    store.write(many[999:], [], [Entry(1000, 1.0, COMPLETED, {})])
    assert texts(store) == [json.dumps(without_environment(LARGE).to_json())]
    assert list(store.newest(1000))[::-1] == many
    store.write([job(1001)], [], [])
    assert len(store.forget(2.0, {1000}, 1000)) == 999
    assert len(texts(store)) == 2
    assert store.forget(2.0, (), 1000) == [1000]
    assert texts(store) == [json.dumps(job(1001).spec.to_json())]
    store.close()


def test_what_a_job_asks_for_is_written_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with each of its steps; and again in full if it could not be written the first time."""
    written: list[Spec] = []

    def text(spec: Spec) -> str:
        written.append(spec)
        return text_of_spec(spec)

    monkeypatch.setattr("drom.scheduler.live.server.store.text_of_spec", text)
    store, one = Store(tmp_path), replace(job(1), spec=LARGE)
    with pytest.raises(OverflowError):
        store.write([one], [], [Entry(10**30, 1.0, "submitted", {})])
    for attempt in (0, 0, 1):
        one.attempt = attempt
        store.write([one], [], [])
    assert written == [LARGE] * 2
    one.state, one.spec = COMPLETED, without_environment(LARGE)
    store.write([one], [], [])
    assert written == [LARGE, LARGE, without_environment(LARGE)]
    store.close()


def test_a_restart_does_not_write_anew_what_is_asked_for(tmp_path: Path) -> None:
    """A restart reads the stored specs, and rewrites those of an earlier version in the present form."""
    store = Store(tmp_path)
    store.write([job(1), job(2)], [], [])
    before = texts(store)
    store.close()
    store = Store(tmp_path)
    store.write(store.living(), [], [])
    assert texts(store) == before
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "queue.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE specs SET value = json_remove(value, '$.umask'), digest = 'other'")
    store = Store(tmp_path)
    store.write(store.living()[:1], [], [])
    assert len(texts(store)) == 2
    store.write(store.living()[1:], [], [])
    assert texts(store) == before
    store.close()


def spoilt(folder: Path, statement: str) -> bytes:
    """Make a queue of three jobs, spoil it by a statement and return what is in its file then."""
    store = Store(folder)
    store.write([job(number) for number in (1, 2, 3)], [Node("n1", 0, 4)], [Entry(2, 1.0, "submitted", {})])
    store.close()
    with contextlib.closing(sqlite3.connect(folder / "queue.sqlite", isolation_level=None)) as db:
        db.execute(statement)
    return (folder / "queue.sqlite").read_bytes()


MEND = "repair it or its disk, restore a copy of it, or move it away to start with an empty queue."


@pytest.mark.parametrize(
    ("statement", "why_not"),
    [
        ("UPDATE jobs SET value = '{' WHERE number = 2", "job 2 cannot be understood"),
        ("UPDATE jobs SET value = '[]' WHERE number = 2", "job 2 cannot be understood"),
        ("UPDATE jobs SET value = '{}' WHERE number = 2", "job 2 cannot be understood"),
        ("UPDATE specs SET value = 'x'", "what job 1 asks for cannot be understood"),
        ("DELETE FROM specs", "what job 1 asks for is not there"),
        ("UPDATE nodes SET value = 7", "node n1 cannot be understood"),
        ("UPDATE entries SET detail = ''", "the history of job 2 cannot be understood"),
        ("DROP TABLE specs", "no such table: specs"),
    ],
)
def test_a_damaged_queue_is_told(tmp_path: Path, statement: str, why_not: str) -> None:
    """With the row in which nobody finds his way; nothing is left out, and nothing in it is changed."""
    before = spoilt(tmp_path, statement)
    store = Store(tmp_path)
    with pytest.raises(UnreadableError) as told:
        (store.nodes(), store.living(), store.history())
    store.close()

    assert str(told.value) == f"the queue {tmp_path}/queue.sqlite cannot be read: {why_not}: {MEND}"
    assert (tmp_path / "queue.sqlite").read_bytes() == before


@pytest.mark.parametrize(("table", "what"), [("jobs", "job 1"), ("specs", "what job 1 asks for"), ("nodes", "node n1")])
def test_a_field_that_is_not_known_is_of_a_newer_drom(tmp_path: Path, table: str, what: str) -> None:
    """Which is what one is to use: this one would lose the field."""
    before = spoilt(tmp_path, f"UPDATE {table} SET value = json_set(value, '$.mood', 1)")
    store = Store(tmp_path)
    with pytest.raises(UnreadableError) as told:
        (store.nodes(), store.living())
    store.close()

    reason = f"is of a newer drom: {what} has the field 'mood'"
    remedy = "use that version, or move it away to start with an empty queue"
    assert str(told.value) == f"the queue {tmp_path}/queue.sqlite {reason}: {remedy}."
    assert (tmp_path / "queue.sqlite").read_bytes() == before


def test_a_disk_that_has_lost_pages_is_told(tmp_path: Path) -> None:
    """Whoever asks for them hears it; what is on the others is read, and only a mended queue takes it."""
    store = Store(tmp_path)
    entries = [Entry(1, 1.0, "resized", {"node": "n" * 1000}) for _ in range(100)]
    store.write([job(1), job(2, COMPLETED)], [], [*entries, Entry(2, 2.0, "completed", {})])
    store.close()
    content = bytearray((tmp_path / "queue.sqlite").read_bytes())
    page = 4096 * next(n for n in range(len(content) // 4096) if b"n" * 1000 in content[4096 * n : 4096 * (n + 1)])
    content[page : page + 4096] = b"\xff" * 4096
    (tmp_path / "queue.sqlite").write_bytes(content)

    store = Store(tmp_path)
    assert store.living() == [job(1)]
    for ask in (store.history, lambda: store.forget(9.0, (), 9)):
        with pytest.raises(UnreadableError, match=rf"cannot be read: database disk image is malformed: {MEND}$"):
            ask()
    assert store.state(2) == COMPLETED
    store.close()


def test_a_full_disk_keeps_nobody_from_reading(tmp_path: Path) -> None:
    """However much is to be sorted, no file is written for it."""
    store = Store(tmp_path)
    entries = [Entry(1 + n % 7, float(n), "resized", {"node": "n" * 500}) for n in range(20_000)]
    store.write([job(1)], [], entries)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        assert store.history() == entries
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    store.close()


def test_what_fails_on_the_way_is_not_half_written(queue: Callable[[], Store]) -> None:
    """Not even for a fault of ours: the next transaction begins as any."""
    store = queue()
    with pytest.raises(OverflowError):
        store.write([job(1)], [], [Entry(10**30, 1.0, "submitted", {})])
    assert list(store.newest(9))[::-1] == []
    store.write([job(1)], [], [])
    assert list(store.newest(9))[::-1] == [job(1)]
    store.close()
