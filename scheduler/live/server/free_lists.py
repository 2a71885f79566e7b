# SPDX-License-Identifier: Apache-2.0
"""The free lists of all home partitions in etcd, a key each, which change by compare-and-swap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.live.cluster.lending import EMPTY, free_list_of, text_of
from drom.scheduler.live.server.etcd import StoreError, created, put, written
from drom.scheduler.live.server.shared_rows import IMPATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.live.cluster.lending import FreeList
    from drom.scheduler.live.server.etcd import Etcd, Record


class FreeLists:
    """The free lists as they were last seen, at keys that begin with `at`. Methods raise StoreError."""

    def __init__(self, etcd: Etcd, at: str) -> None:
        self.at = at
        self.seen: dict[str, FreeList] = {}
        """The free lists, by home partition."""
        self.version = 0
        """A number that grows with each change of `seen`."""
        self._etcd = etcd
        self._written: dict[str, int] = {}
        """The revisions at which they were last written, 0 for one that is not there."""

    def written_at(self, home: str) -> int:
        """Return the revision at which the free list of a home partition was last written."""
        return self._written.get(home, 0)

    def clear(self) -> None:
        """Forget what was seen, before all free lists are read anew."""
        self.seen, self._written, self.version = {}, {}, self.version + 1

    def take(self, record: Record, *, is_deleted: bool = False) -> None:
        """Record that a free list was written, or deleted."""
        home = record.key.removeprefix(self.at)
        if record.modified <= self.written_at(home):  # it has been written since, by this scheduler
            return
        try:
            self.seen[home] = EMPTY if is_deleted else free_list_of(record.value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(f"no drom has written {record.key[:200]}: delete it") from error
        self._written[home] = 0 if is_deleted else record.modified
        self.version += 1

    def swap(self, home: str, leader: str, epoch: int, lists: Mapping[str, FreeList]) -> bool:
        """Write free lists if they are as they were seen, and return whether they were.

        That is done for the scheduler that has led `home` since `epoch`, as its key `leader` says. If it is not done,
        the free list of `home` is seen as it is now, and those of others as soon as their changes have arrived. After
        StoreError it may have been done.
        """
        compare = [created(leader, epoch), *(written(self.at + one, self.written_at(one)) for one in lists)]
        then = [put(self.at + one, text_of(free).encode()) for one, free in lists.items()]
        held, revision, record = self._etcd.transact(compare, then, self.at + home, IMPATIENCE)
        if held:
            self.seen |= lists
            self._written |= dict.fromkeys(lists, revision)
            self.version += 1
        elif record:
            self.take(record)
        return held
