# SPDX-License-Identifier: Apache-2.0
"""The directory of a cluster in etcd: its home partitions, and the schedulers that are present, each under a lease.

Below the cluster's prefix there are `directory/homes/NUMBER` with the name of a home partition, `directory/schedulers`
with a key for each scheduler, `directory/free/NAME` with the free list of each home partition (`FreeLists`),
`directory/nodes/NAME` with the home partition of each node (`NodeHomes`), and `home/NAME` with the queue of each home
partition (`SharedRows`).
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.scheduler.live.cluster.homes import MOST_HOMES, Present
from drom.scheduler.live.server.etcd import CompactedError, Etcd, StoreError, absent, put
from drom.scheduler.live.server.free_lists import FreeLists
from drom.scheduler.live.server.lease import Lease
from drom.scheduler.live.server.node_homes import NodeHomes
from drom.scheduler.live.server.prefix import claim
from drom.scheduler.live.server.shared_rows import PATIENCE, SharedRows
from drom.scheduler.live.server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drom.scheduler.live.server.etcd import Record, StoreAddress

PAGE = 1000


class Directory:
    """The directory of the cluster `cluster` at `address`, for a scheduler `name` with the home partition `home`.

    `fd` is readable when `advance` has something to do. Methods raise StoreError.
    """

    def __init__(self, address: StoreAddress, cluster: str, name: str, home: str, lease: int) -> None:
        self.etcd = Etcd(address)
        self.home = home
        self._address, self._cluster, self._name, self._seconds = address, cluster, name, lease
        self._at = f"{address.prefix}/directory/"
        self.free = FreeLists(self.etcd, f"{self._at}free/")
        self.nodes = NodeHomes(self.etcd, f"{self._at}nodes/")
        self.homes: dict[str, int] = {}
        """The numbers of the home partitions, in the order of their names."""
        self.present: dict[int, Present] = {}
        """The schedulers that are present, by the revisions at which they came."""
        self._last = 0
        """The greatest number of a home partition."""
        self._records: dict[str, Record] = {}
        self._foreign: set[str] = set()
        """Keys with values that no drom has written: they are skipped, and what was seen before them stays."""
        self._lease: Lease | None = None
        self._leads: tuple[str, ...] | None = None
        """What the key of this scheduler says that it leads."""
        self._watch: Watch | None = None
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def open(self) -> None:
        """Add the home partition of this scheduler if it is new, and follow the directory from then on."""
        claim(self.etcd, self._address.prefix, self._cluster, PATIENCE, has_homes=True)
        self._load()
        self._check()
        while self.home not in self.homes:
            number = self._last + 1
            if number > MOST_HOMES:
                raise StoreError(f"there are {MOST_HOMES} home partitions, the most for a cluster: choose one of them")
            key = f"{self._at}homes/{number}"
            self.etcd.transact([absent(key)], [put(key, self.home.encode())], key, PATIENCE)
            self._load()

    def rows(self, home: str) -> SharedRows:
        """Return the queue of a home partition, which is not opened yet."""
        address = replace(self._address, prefix=f"{self._address.prefix}/home/{home}")
        return SharedRows(address, self._cluster, self._name, self._seconds)

    @property
    def me(self) -> int | None:
        """The key of this scheduler in `present`; None as long as it is not there."""
        record = self._records.get(self._key)
        return record.created if record else None

    @property
    def _key(self) -> str:
        return f"{self._at}schedulers/{self._lease.number if self._lease else ''}"

    def advance(self) -> None:
        """Follow the changes that there are."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        try:
            for changes in self._watch.take() if self._watch else ():
                self._take(changes)
        except CompactedError:
            self._unwatch()
        if self._watch is None:
            self._load()
        self._check()

    def _check(self) -> None:
        """Raise StoreError if something else has written into the directory."""
        if self._foreign:
            raise StoreError(f"no drom has written {min(self._foreign)[:200]}: delete it")

    def _take(self, changes: Iterable[tuple[Record, bool]]) -> None:
        """Bring everything up to date: these records were written, or deleted."""
        for record, is_deleted in changes:
            self._foreign.discard(record.key)
            self._records.pop(record.key, None)
            if part := next((part for part in (self.free, self.nodes) if record.key.startswith(part.at)), None):
                try:
                    part.take(record, is_deleted=is_deleted)
                except StoreError:
                    self._foreign.add(record.key)
            elif not is_deleted:
                self._records[record.key] = record
        self._read()

    def _read(self) -> None:
        """Bring `homes` and `present` up to date."""
        names, present = {}, {}
        for key, one in self._records.items():
            kind, _, name = key.removeprefix(self._at).partition("/")
            try:
                if kind == "homes":
                    names[int(name)] = one.value.decode()
                elif kind == "schedulers":
                    about = json.loads(one.value)
                    present[one.created] = Present(str(about["name"]), str(about["home"]), tuple(about["leads"]))
            except (KeyError, TypeError, ValueError):
                self._foreign.add(key)
        numbers = {names[number]: number for number in sorted(names, reverse=True)}  # two may have added it at once
        self.homes, self.present, self._last = dict(sorted(numbers.items())), present, max(names, default=0)

    def announce(self, leads: Sequence[str]) -> None:
        """Announce to the others that this scheduler is present, and which home partitions it leads."""
        if self._lease is None or self._lease.is_over:
            self._lease, self._leads = Lease(self.etcd, self._seconds), None
        if self._leads != tuple(leads):
            value = json.dumps({"name": self._name, "home": self.home, "leads": leads}).encode()
            self.etcd.transact([], [put(self._key, value, lease=self._lease.number)], self._key, PATIENCE)
            self._leads = tuple(leads)

    def _load(self) -> None:
        self._unwatch()
        revision = 0
        found: list[Record] = []
        for read_at, records in self.etcd.pages(self._at, PAGE, PATIENCE):
            revision = read_at
            found += records
        self._records.clear()
        self._foreign.clear()
        self.free.clear()
        self.nodes.clear()
        self._take((one, False) for one in found)
        self._watch = Watch(self.etcd, self._at, revision + 1, 2.0 * self._seconds, self._wake)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is readable already
            os.write(self._write, b"x")

    def _unwatch(self) -> None:
        if self._watch:
            self._watch.close()
        self._watch = None

    def close(self) -> None:
        """Leave the directory, so that another scheduler adopts at once what this one led."""
        self._unwatch()
        if self._lease:
            self._lease.close()
        self.etcd.close()
        os.close(self.fd)
        os.close(self._write)
