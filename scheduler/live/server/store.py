# SPDX-License-Identifier: Apache-2.0
"""The queue: all jobs, all nodes and the histories of jobs, in the tables of SQLite.

They are in a file of the scheduler's folder (`QueueFile`), or in etcd (`SharedRows`). Only one scheduler at a time may
use a folder: it locks a file there.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import sqlite3
import time
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.fair_share import usage_of
from drom.scheduler.live.cluster.jobs import FINAL
from drom.scheduler.live.cluster.spec import MOST_JOBS
from drom.scheduler.live.server import schema
from drom.scheduler.live.server.etcd import SilentError, StoreError
from drom.scheduler.live.server.queue_file import QueueFile, is_locked
from drom.scheduler.live.server.records import (
    CorruptRecordError,
    NewerVersionError,
    entry_of,
    job_of,
    node_of,
    spec_of,
    text_of_job,
    text_of_node,
    text_of_spec,
)
from drom.scheduler.live.server.state_folder import LOCK, QUEUE, open_file, open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from drom.scheduler.live.cluster.fair_share import Usage
    from drom.scheduler.live.cluster.jobs import Entry, Job, Node
    from drom.scheduler.live.cluster.outbox import Outbox
    from drom.scheduler.live.cluster.spec import Spec

_Written = TypeVar("_Written")
_ENDED = ",".join("?" * len(FINAL))
_MEND = "repair it or its disk, restore a copy of it, or move it away to start with an empty queue"
_LOCKED = "another program, such as a backup, has locked it: wait until that has ended"
MOST_KEPT = (
    (("held", "released", "signalled", "updated"), 20),
    (("placed", "requeued"), 40),
    (("saving", "saved", "not_saved"), 60),
    (("ordered", "resized", "limit", "range", "ranks", "vacated", "left"), 4000),
)
"""The numbers of entries of some kinds that are kept for a job; the oldest beyond them are deleted."""
_CUT = (
    "DELETE FROM entries WHERE rowid IN "
    "(SELECT rowid FROM entries WHERE job = ? AND what IN ({}) ORDER BY rowid DESC LIMIT -1 OFFSET ?)"
)


class UnreadableError(SchedulerError):
    """Raised if the queue cannot be read: its disk fails, or this drom has not written its contents."""


class UnwritableError(SchedulerError):
    """Raised if the queue cannot be written now; `why` has the reason and the remedy in a few words."""

    def __init__(self, queue: object, error: sqlite3.Error | StoreError) -> None:
        self.is_full = isinstance(error, sqlite3.OperationalError) and not is_locked(error)
        self.is_uncertain = isinstance(error, SilentError)
        """Whether it may have been written nevertheless."""
        self.is_shared = isinstance(error, StoreError)
        """Whether other schedulers have the same queue, one of which may be able to write it."""
        self.why = f"{error}: {_MEND}"
        if self.is_shared:
            self.why = str(error)
        elif self.is_full:
            self.why = f"{error}: free space on its disk"
        elif is_locked(error):
            self.why = _LOCKED
        super().__init__(f"the queue {queue} cannot be written: {self.why}.")


class Medium(Protocol):
    """What the tables of a queue are in. Methods raise sqlite3.Error or StoreError."""

    @property
    def leads(self) -> bool:
        """Whether this scheduler may write."""

    def open(self) -> sqlite3.Connection:
        """Open the tables, which are made where there are none."""

    def check(self) -> None:
        """Do nothing if it is certain that no other scheduler may write."""

    def store(self) -> None:
        """Store the changes of the present transaction, before it is committed."""

    def make_room(self) -> bool:
        """Release reserved space, and return whether there was any."""

    def fill(self) -> None:
        """Reserve space again, as far as there is some."""

    def close(self) -> None:
        """Close it, once the tables are closed."""


class Store:
    """The queue in `medium`, by default a file in the folder. Raises SchedulerError, with the remedy, if it fails.

    All methods that read raise UnreadableError if that is not possible.
    """

    def __init__(self, folder: Path, *, durable: bool = False, medium: Medium | None = None) -> None:
        self._kept: dict[int, tuple[Spec, int]] = {}
        """Specifications, stored by this object, of jobs that are not over, with the rows of their texts."""
        self._urgent = False
        with contextlib.ExitStack() as opened:
            at = open_folder(folder)
            opened.callback(os.close, at)
            try:
                self._lock = open_file(LOCK, at)
                opened.callback(os.close, self._lock)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._medium: Medium = medium or QueueFile(folder / QUEUE, at, durable=durable)
                opened.callback(self._medium.close)
            except BlockingIOError as error:
                remedy = "stop it, or give this one another folder with --state"
                msg = f"another scheduler has the queue in {folder}: {remedy}."
                raise SchedulerError(msg) from error
            except OSError as error:
                msg = f"the queue cannot be kept in {folder}: {error.strerror}: choose another folder with --state."
                raise SchedulerError(msg) from error
            try:
                self._db = self._medium.open()
                opened.callback(self._db.close)
                self._over = self._count_over()
            except (sqlite3.Error, OSError, CorruptRecordError, NewerVersionError, StoreError) as error:
                raise UnreadableError(self._why_not(error, "opened")) from error
            self._medium.fill()
            self._opened = opened.pop_all()

    def _why_not(self, error: Exception, done: str) -> str:
        """Return why the queue cannot be opened or read, with the remedy."""
        if isinstance(error, NewerVersionError):
            remedy = "use that version, or move it away to start with an empty queue"
            return f"the queue {self._medium} is of a newer drom: {error}: {remedy}."
        if is_locked(error):
            return f"the queue {self._medium} cannot be {done}: {_LOCKED}."
        if isinstance(error, StoreError):
            return f"the queue {self._medium} cannot be {done}: {error}."
        reason = error.strerror if isinstance(error, OSError) else error
        return f"the queue {self._medium} cannot be {done}: {reason}: {_MEND}."

    def _count_over(self) -> Counter[int]:
        """Return the number of jobs that are over, by uid."""
        asked = f"SELECT uid, count(*) FROM jobs WHERE state IN ({_ENDED}) GROUP BY uid"  # noqa: S608
        return Counter(dict(self._db.execute(asked, tuple(sorted(FINAL)))))

    @property
    def leads(self) -> bool:
        """Whether no other scheduler has taken the queue over, as far as is known."""
        return self._medium.leads

    def check(self) -> None:
        """Raise UnwritableError if another scheduler may have taken the queue over."""
        try:
            self._medium.check()
        except StoreError as error:
            raise UnwritableError(self._medium, error) from error

    def take_over(self) -> None:
        """Go on from what another scheduler has stored."""
        self._kept.clear()
        self._over = self._count_over()

    def close(self) -> None:
        """Close the queue, which another scheduler may then open."""
        self._opened.close()

    # --- writing --------------------------------------------------------------------------------------------------

    def save(self, outbox: Outbox, usage: Usage | None = None) -> None:
        """Store all changes in an outbox, and the usage of users. Raises as `write`."""
        nodes = [node for node in outbox.nodes.values() if node]
        gone = [name for name, node in outbox.nodes.items() if node is None]
        self.write(outbox.jobs.values(), nodes, outbox.entries, gone, usage)

    def write(
        self,
        jobs: Collection[Job],
        nodes: Iterable[Node],
        entries: Iterable[Entry],
        gone: Iterable[str] = (),
        usage: Usage | None = None,
    ) -> None:
        """Store all of it, and delete the nodes in `gone`, or do nothing. Raises UnwritableError if that fails."""
        entries = list(entries)
        nodes = list(nodes)
        kept, ended = self._persist(lambda: self._write(jobs, nodes, entries, gone, usage))
        self._kept.update(kept)
        self._over += Counter(job.user.uid for job in ended)
        for job in jobs:
            if job.is_final:
                self._kept.pop(job.number, None)

    def _write(
        self,
        jobs: Collection[Job],
        nodes: Iterable[Node],
        entries: Iterable[Entry],
        gone: Iterable[str],
        usage: Usage | None,
    ) -> tuple[dict[int, tuple[Spec, int]], list[Job]]:
        """Store all of it; return the result of `_write_jobs`, and the jobs that were not over before."""
        ended = [job for job in jobs if job.is_final and not self._was_over(job.number)]
        kept = self._write_jobs(jobs)
        self._db.executemany("DELETE FROM nodes WHERE name = ?", [(name,) for name in gone])
        for node in nodes:
            self._db.execute("REPLACE INTO nodes VALUES (?, ?)", (node.name, text_of_node(node)))
        self._db.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            [(entry.job, entry.at, entry.what, json.dumps(entry.detail)) for entry in entries],
        )
        if usage:
            self._db.execute("REPLACE INTO meta VALUES ('usage', ?)", (json.dumps(usage.to_json()),))
        for kinds, most in MOST_KEPT:
            cut = _CUT.format(",".join("?" * len(kinds)))
            many = {entry.job for entry in entries if entry.what in kinds}
            self._db.executemany(cut, [(job, *kinds, most) for job in many])
        return kept, ended

    def _was_over(self, number: int) -> bool:
        row = self._db.execute("SELECT state FROM jobs WHERE number = ?", (number,)).fetchone()
        return row is not None and row[0] in FINAL

    def try_writing(self) -> None:
        """Write a value without meaning. Raises UnwritableError if nothing can be written now."""
        self._persist(lambda: self._db.execute("REPLACE INTO meta VALUES ('tried', ?)", (time.time(),)))

    @contextlib.contextmanager
    def urgently(self) -> Iterator[None]:
        """Allow a block to write even if the disk is full, with the reserved space."""
        self._urgent = True
        try:
            yield
        finally:
            self._urgent = False
            self._medium.fill()

    def _persist(self, write: Callable[[], _Written]) -> _Written:
        """Run `write` in one transaction and return its result. Raises UnwritableError if that is not possible now."""
        while True:
            try:
                with self._transaction():
                    return write()
            except UnwritableError as error:  # noqa: PERF203 - tried again
                if not (self._urgent and error.is_full and self._medium.make_room()):
                    raise

    def forget(self, before: float, needed: Collection[int], most: int) -> list[int]:
        """Delete up to `most` jobs that were over before the time `before`, and return them.

        Jobs that are `needed` stay, and so does the newest of all, from which the next number follows. Raises
        SchedulerError if that is not possible now.
        """
        kept = {*needed, self.next_number - 1}
        asked = "SELECT job, at, what FROM entries ORDER BY rowid"
        with self._reading(), contextlib.closing(self._db.execute(asked)) as rows:
            old = itertools.takewhile(lambda row: row[1] < before, rows)  # rows are in order of time
            gone = list(itertools.islice((job for job, _, what in old if what in FINAL and job not in kept), most))
        self._delete(gone)
        return gone

    def forget_surplus(self, keep: int, needed: Collection[int], most: int) -> list[int]:
        """Delete and return up to `most` of the oldest jobs of one user with over `keep` jobs that are over.

        The same jobs stay, and the same errors are raised, as with `forget`.
        """
        uid, count = max(self._over.items(), key=itemgetter(1), default=(0, 0))
        if count <= keep:
            return []
        kept = {*needed, self.next_number - 1}
        asked = f"SELECT number FROM jobs WHERE uid = ? AND state IN ({_ENDED}) ORDER BY number"  # noqa: S608
        with self._reading(), contextlib.closing(self._db.execute(asked, (uid, *sorted(FINAL)))) as rows:
            old = (number for (number,) in rows if number not in kept)
            gone = list(itertools.islice(old, min(most, count - keep + keep // 10)))
        if not gone:  # other jobs wait for all of them
            self._over[uid] = 0
        self._delete(gone)
        return gone

    def _delete(self, gone: Collection[int]) -> None:
        asked = "SELECT uid FROM jobs WHERE number = ?"
        with self._transaction():
            users = Counter(uid for number in gone for (uid,) in self._db.execute(asked, (number,)))
            texts = self._texts_of(gone)
            for table, column in (("jobs", "number"), ("entries", "job")):
                self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(job,) for job in gone])  # noqa: S608
            schema.drop_unused(self._db, texts)
        self._over -= users

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit all writes of a block, or none. Raises UnwritableError if that is not possible now."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._medium.store()
            self._db.execute("COMMIT")
        except (sqlite3.Error, StoreError) as error:
            raise UnwritableError(self._medium, error) from error
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _write_jobs(self, jobs: Iterable[Job]) -> dict[int, tuple[Spec, int]]:
        """Store jobs and return their specifications with the rows of these, which are stored only if they are new."""
        found: dict[int, tuple[Spec, int]] = {}
        rows: dict[int, int] = {}
        before: set[int] = set()
        values = []
        for job in jobs:
            spec, row = self._kept.get(job.number, (None, 0))
            if spec is not job.spec:  # jobs submitted together share it
                before |= self._texts_of([job.number])
                row = rows.get(id(job.spec)) or schema.row_of(self._db, text_of_spec(job.spec))
            rows[id(job.spec)] = row
            found[job.number] = job.spec, row
            values.append((job.number, job.state, job.user.uid, text_of_job(job), row))
        self._db.executemany("REPLACE INTO jobs (number, state, uid, value, spec) VALUES (?, ?, ?, ?, ?)", values)
        schema.drop_unused(self._db, before)
        return found

    def _texts_of(self, numbers: Iterable[int]) -> set[int]:
        """Return the rows of the texts to which jobs refer."""
        asked = "SELECT spec FROM jobs WHERE number = ?"
        return {row for number in numbers for (row,) in self._db.execute(asked, (number,))}

    # --- reading --------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """Return all nodes in the order of their indices."""
        with self._reading():
            rows = self._db.execute("SELECT name, value FROM nodes")
            return sorted((node_of(name, text) for name, text in rows), key=lambda node: node.index)

    def living(self) -> list[Job]:
        """Return all jobs that are not over, in the order of their numbers."""
        return list(self._jobs(f"WHERE state NOT IN ({_ENDED}) ORDER BY number", tuple(sorted(FINAL))))

    def newest(self, count: int, before: int = MOST_JOBS) -> Iterator[Job]:
        """Yield the newest jobs with numbers below `before`, newest first; each is read when it is needed."""
        return self._jobs("WHERE number < ? ORDER BY number DESC LIMIT ?", (before, count))

    def has_before(self, number: int) -> bool:
        """Return whether there is a job with a smaller number."""
        return self._first("SELECT 1 FROM jobs WHERE number < ? LIMIT 1", number) is not None

    def job(self, number: int) -> Job | None:
        """Return one job; None if none has that number."""
        return next(self._jobs("WHERE number = ?", (number,)), None)

    def state(self, number: int) -> str | None:
        """Return the final state of a job; None for one that is not over or does not exist."""
        row = self._first("SELECT state FROM jobs WHERE number = ?", number)
        return str(row[0]) if row and row[0] in FINAL else None

    def history(self, first: int = 1, last: int = MOST_JOBS) -> list[Entry]:
        """Return the history entries of the jobs from number `first` to `last`, in order."""
        asked = "SELECT job, at, what, detail FROM entries WHERE job BETWEEN ? AND ? ORDER BY rowid"
        with self._reading():
            return [entry_of(*row) for row in self._db.execute(asked, (first, last))]

    def usage(self, half_life: float) -> Usage:
        """Return the usage of users as it was last stored."""
        row = self._first("SELECT value FROM meta WHERE name = 'usage'")
        try:
            values = json.loads(row[0]) if row else {}
        except (TypeError, ValueError):
            values = {}
        return usage_of(half_life, values)

    @property
    def next_number(self) -> int:
        """The number of the next job."""
        row = self._first("SELECT max(number) FROM jobs")
        return int((row and row[0]) or 0) + 1

    @property
    def latest(self) -> float:
        """The time of the last history entry, in unix seconds; 0 if there is none."""
        row = self._first("SELECT at FROM entries ORDER BY rowid DESC LIMIT 1")
        return float(row[0]) if row else 0.0

    def _first(self, asked: str, *values: object) -> tuple[Any, ...] | None:
        with self._reading():
            row: tuple[Any, ...] | None = self._db.execute(asked, values).fetchone()
            return row

    def _jobs(self, where: str, values: tuple[object, ...]) -> Iterator[Job]:
        """Yield jobs; jobs with the same specification share one object."""
        specs: dict[int, Spec] = {}
        with self._reading():
            asked = f"SELECT number, value, spec FROM jobs {where}"  # noqa: S608 - our own words
            for number, text, row in self._db.execute(asked, values):
                if row not in specs:
                    specs[row] = self._spec(number, row)
                yield job_of(number, text, specs[row])

    def _spec(self, number: int, row: int) -> Spec:
        found = self._first("SELECT value FROM specs WHERE number = ?", row)
        if found is None:
            raise CorruptRecordError(f"what job {number} asks for is not there")
        return spec_of(number, found[0])

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Run a block that reads. Raises UnreadableError if the disk or the stored data are damaged."""
        try:
            yield
        except (sqlite3.Error, CorruptRecordError, NewerVersionError) as error:
            raise UnreadableError(self._why_not(error, "read")) from error
