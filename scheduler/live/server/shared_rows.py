# SPDX-License-Identifier: Apache-2.0
"""The rows of a queue in etcd, a key each, for several schedulers of which one leads and writes.

Each scheduler has a copy of all rows in an SQLite database in memory, which answers every question. That of the leader
is changed in a transaction, whose rows go to etcd in one transaction before it is committed. The copies of the others
follow by a watch.

The leader has written the key `leader`, under its lease, and writes it again in every transaction, which does nothing
unless that key is as this leader has left it. So nothing is stored for a scheduler whose lease has ended, and none of
its late transactions counts once a later one has been answered. The revision at which the key was created is the
leader's epoch.

A change of more rows than etcd takes at once is first stored as a whole under `redo`, then row by row; the next leader
finishes what was begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
import zlib
from typing import TYPE_CHECKING, Any

from drom.scheduler.live.server import schema
from drom.scheduler.live.server.etcd import (
    LARGEST,
    CompactedError,
    Etcd,
    StoreError,
    absent,
    after_all,
    from_wire,
    put,
    to_wire,
    written,
)
from drom.scheduler.live.server.lease import Lease
from drom.scheduler.live.server.prefix import claim
from drom.scheduler.live.server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from drom.scheduler.live.server.etcd import Record, StoreAddress
    from drom.scheduler.live.server.schema import Key

    Values = Mapping[str, bytes | None]

PATIENCE = 5.0
"""Seconds for which a call waits: members that have lost their leader elect another one meanwhile, if need be twice."""
IMPATIENCE = 0.5
"""The same, once a write has failed, until one succeeds."""
MOST_ROWS = 100
MOST_BYTES = 1 << 20
"""The most rows and bytes of a transaction; etcd takes 128 operations and 1.5 MiB."""
LONG = 1024
"""Bytes from which on a value is compressed."""
PAGES = {"specs": 32}
PAGE = 1000
"""Rows of a table that are read at once; a specification may have half a MiB."""


REPLACED = "its lease has ended, so that another scheduler leads or will lead"


class DeposedError(StoreError):
    """Raised for a write of a scheduler that no longer leads."""


def _packed(text: str) -> bytes:
    data = text.encode()
    return data if len(data) < LONG else b"z" + zlib.compress(data, 1)


def _unpacked(data: bytes) -> Any:  # noqa: ANN401 - a JSON value
    return json.loads(zlib.decompressobj().decompress(data[1:], LARGEST) if data[:1] == b"z" else data)


class SharedRows:
    """The rows of the cluster `cluster` at `address`, for a scheduler that others know as `name`.

    `lease` is the time in seconds after which another one takes over from a leader that is silent. `fd` is readable
    when `advance` has something to do. Methods raise StoreError.
    """

    def __init__(self, address: StoreAddress, cluster: str, name: str, lease: int) -> None:
        self.etcd = Etcd(address)
        self.epoch = 0
        """The revision at which this scheduler became the leader; 0 if it does not lead."""
        self.leader = ""
        """The name of another scheduler that leads, as far as is known; empty if none does."""
        self._cluster, self._name, self._seconds = cluster, name, lease
        self._prefix = address.prefix
        self.leader_key = f"{address.prefix}/leader"
        self._db: sqlite3.Connection | None = None
        self._changed: set[Key] = set()
        """Rows that may differ from those in etcd: changed since the last write that is known to have succeeded."""
        self._lease: Lease | None = None
        self._record: Record | None = None
        """The key `leader` as it was last read."""
        self._elected = 0
        """The revision at which this scheduler has written the key `leader`, which its copy has still to reach."""
        self._last = self._turn = 0
        """The revision of the last write, and the number of the last one that was tried."""
        self._redo: list[Values] = []
        """Parts of a large change that is stored under `redo`, and not row by row yet."""
        self._has_redo = False
        """Whether there may be keys under `redo`."""
        self._hesitates = False
        self._watch: Watch | None = None
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def __str__(self) -> str:
        """Return the address, as users write it."""
        return str(self.etcd.address)

    # --- the copy -------------------------------------------------------------------------------------------------

    def open(self) -> sqlite3.Connection:
        """Return a new copy of all rows, which follows the leader from then on."""
        claim(self.etcd, self._prefix, self._cluster, PATIENCE)
        self._db = db = sqlite3.connect(":memory:", isolation_level=None)
        schema.prepare(db)
        schema.track(db, self._changed)
        self._load()
        return db

    def make_room(self) -> bool:
        """Return False: nothing is reserved."""
        return False

    def fill(self) -> None:
        """Do nothing: nothing is reserved."""

    def _load(self) -> None:
        """Read all rows anew, and watch what happens from then on."""
        revision = 0
        db = self._database
        with _transaction(db):
            for table in schema.COLUMNS:
                schema.clear(db, table)
                pages = self.etcd.pages(f"{self._prefix}/rows/{table}/", PAGES.get(table, PAGE), PATIENCE, revision)
                for read_at, records in pages:
                    revision = read_at
                    for record in records:
                        self._copy(record.key, record.value)
        self._changed.clear()
        self._follow(self.etcd.first(self.leader_key, PATIENCE, revision))
        self._unwatch()
        self._watch = Watch(self.etcd, f"{self._prefix}/", revision + 1, 2.0 * self._seconds, self._wake)

    def _unwatch(self) -> None:
        if self._watch:
            self._watch.close()
        self._watch = None

    @property
    def _database(self) -> sqlite3.Connection:
        assert self._db is not None  # noqa: S101 - `open` comes first
        return self._db

    def _copy(self, key: str, value: bytes | None) -> None:
        """Write the row at a key of etcd into the copy, or delete it there if the value is None."""
        table, _, name = key.removeprefix(f"{self._prefix}/rows/").partition("/")
        with _ours(key):
            number = int(name) if table in schema.NUMBERED else name
            schema.put_row(self._database, (table, number), None if value is None else _unpacked(value))

    def _follow(self, record: Record | None) -> None:
        is_other = record and record.created != self._elected
        with _ours(self.leader_key):
            self.leader = str(_unpacked(record.value)["name"]) if record and is_other else ""
        self._record = record

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is readable already
            os.write(self._write, b"x")

    def _apply(self, changes: list[tuple[Record, bool]]) -> None:
        with _transaction(self._database):
            for record, is_deleted in changes:
                if record.key == self.leader_key:
                    self._follow(None if is_deleted else record)
                elif record.key.startswith(f"{self._prefix}/rows/"):
                    self._copy(record.key, None if is_deleted else record.value)
        self._changed.clear()

    # --- leading --------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this scheduler leads, or did until its lease ended without its knowledge."""
        return self.epoch > 0

    def check(self) -> None:
        """Raise StoreError unless it is certain that no other scheduler leads."""
        if not (self.epoch and self._lease) or self._lease.is_over:
            self.epoch = 0
            raise DeposedError(REPLACED)
        if not self._lease.holds:
            why = self._lease.why or f"see whether {self} answers"
            raise StoreError(f"the lease of {self._seconds} s could not be renewed: {why}")

    def advance(self) -> bool:
        """Follow the leader, take over if there is none, and return whether this scheduler leads."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        if self._watch is None:
            self._load()
        try:
            for changes in self._watch.take() if self._watch else ():
                self._apply(changes)
        except StoreError as error:
            self._unwatch()  # all rows are read anew
            if isinstance(error, CompactedError):
                return False
            raise
        if self._record is None and not self._elected:
            self._stand()
        if self._elected and self._record and self._record.created == self._elected:
            self._take_over(self._record)
        elif self._elected and self._lease and self._lease.is_over:
            self._resign()
        return self.leads

    def _stand(self) -> None:
        """Try to become the leader."""
        self._lease = lease = Lease(self.etcd, self._seconds)
        key = self.leader_key
        try:
            held, revision, record = self.etcd.transact([absent(key)], [self._claim(lease)], key, PATIENCE)
        except StoreError:
            self._resign()  # it may have succeeded
            raise
        if held:
            self._elected = revision
        elif record and record.lease == lease.number:  # it arrived twice
            self._elected = record.created
        else:
            self._resign()

    def _claim(self, lease: Lease) -> dict[str, Any]:
        """Return the operation that writes the key `leader`."""
        value = json.dumps({"name": self._name, "turn": self._turn})
        return put(self.leader_key, value.encode(), lease=lease.number)

    def _take_over(self, record: Record) -> None:
        """Lead, once the copy has everything that was stored before, and finish what the last leader began."""
        pages = self.etcd.pages(f"{self._prefix}/redo/", 1, PATIENCE)
        found = {one.key.rpartition("/")[2]: one.value for _, page in pages for one in page}
        self._redo, self._has_redo = [], bool(found)
        if "done" in found:
            with _ours(f"{self._prefix}/redo/"):
                parts = [_unpacked(found[str(number)]) for number in range(int(found["done"]))]
                changes = {key: row and from_wire(row) for part in parts for key, row in part.items()}
            with _transaction(self._database):
                for key, value in changes.items():
                    self._copy(key, value)
            self._redo = list(_parts(changes, MOST_ROWS))
        self._changed.clear()
        self._unwatch()
        self._last = record.modified
        self._elected, self.epoch, self._hesitates = 0, record.created, False

    def _resign(self) -> None:
        lease, self._lease = self._lease, None
        self._elected = self.epoch = 0
        if lease:
            lease.close()

    def stand_by(self) -> None:
        """Read everything anew and follow, after another scheduler has taken over from this one."""
        self._resign()

    def close(self) -> None:
        """End the lease, so that another scheduler takes over at once."""
        self._unwatch()
        self._resign()
        self.etcd.close()
        os.close(self.fd)
        os.close(self._write)

    # --- writing --------------------------------------------------------------------------------------------------

    def store(self) -> None:
        """Store the rows that the present transaction of the database has changed, all of them or none.

        After StoreError it is not known whether they are stored; the next call stores these rows again, as they are
        then.
        """
        if not self._changed:
            return
        rows = ((key, schema.row(self._database, key)) for key in sorted(self._changed, key=str))
        changes = {
            f"{self._prefix}/rows/{table}/{name}": _packed(json.dumps(row)) if row else None
            for (table, name), row in rows
        }
        self._finish()
        parts = list(_parts(changes, MOST_ROWS))
        if len(parts) == 1:
            self._put(parts[0])
        else:
            self._announce(changes)
        self._changed.clear()
        if len(parts) > 1:
            self._redo = parts
            with contextlib.suppress(StoreError):  # it is finished before the next write, or by the next leader
                self._finish()

    def _announce(self, changes: Values) -> None:
        """Store a large change under `redo`; it counts as a whole once `redo/done` is written."""
        self._has_redo = True
        texts = [
            json.dumps({key: row and to_wire(row) for key, row in part.items()})
            for part in _parts(changes, len(changes))
        ]
        for number, text in enumerate(texts):
            self._put({f"{self._prefix}/redo/{number}": _packed(text)})
        self._put({f"{self._prefix}/redo/done": str(len(texts)).encode()})

    def _finish(self) -> None:
        """Store row by row what is under `redo`, and delete that."""
        while self._redo:
            self._put(self._redo[0])
            self._redo = self._redo[1:]
        if self._has_redo:
            redo = f"{self._prefix}/redo/"
            self._transact([{"request_delete_range": {"key": to_wire(redo), "range_end": after_all(redo)}}])
            self._has_redo = False

    def _put(self, values: Values) -> None:
        self._transact([put(key, value) for key, value in values.items()])

    def _transact(self, operations: list[dict[str, Any]]) -> None:
        """Run a transaction as the leader. Raises DeposedError if this scheduler is not, or no longer."""
        if not (self.epoch and self._lease):
            raise DeposedError(REPLACED)
        self._turn += 1
        key, claim = self.leader_key, self._claim(self._lease)
        until = time.monotonic() + (IMPATIENCE if self._hesitates else PATIENCE)
        self._hesitates = True
        while True:
            left = max(until - time.monotonic(), 0.001)
            compare = [written(key, self._last)]
            held, revision, record = self.etcd.transact(compare, [claim, *operations], key, left)
            if held:
                self._last = revision
                break
            if record is None or record.created != self.epoch:
                self.epoch = 0
                raise DeposedError(REPLACED)
            self._last = record.modified
            if _unpacked(record.value)["turn"] == self._turn:  # it arrived twice
                break
        self._hesitates = False


def _parts(changes: Values, most: int) -> Iterator[Values]:
    """Yield changes in parts of at most `most` keys and `MOST_BYTES`, or of one key."""
    part: dict[str, bytes | None] = {}
    size = 0
    for key, value in changes.items():
        length = len(key) + len(value or b"")
        if part and (len(part) == most or size + length > MOST_BYTES):
            yield part
            part, size = {}, 0
        part[key] = value
        size += length
    if part:
        yield part


@contextlib.contextmanager
def _ours(key: str) -> Iterator[None]:
    """Raise StoreError for a value that a block cannot read: no drom has written it."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error, sqlite3.Error) as error:
        raise StoreError(f"no drom has written {key[:200]}: delete it, or restore the store") from error


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what a block writes into a copy, or nothing of it."""
    db.execute("BEGIN")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
