# SPDX-License-Identifier: Apache-2.0
"""The home partition of each node in etcd, a key each: the first scheduler that writes it decides for all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from drom.scheduler.live.server.etcd import StoreError, absent, put, unchanged
from drom.scheduler.live.server.shared_rows import IMPATIENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.live.server.etcd import Etcd, Record

MOST_NODES = 100_000
TRIES = 10
"""How often other schedulers may be faster before a node has to wait."""


class NodeHomes:
    """The home partitions of nodes as they were last seen, at keys that begin with `at`. Methods raise StoreError."""

    def __init__(self, etcd: Etcd, at: str) -> None:
        self.at = at
        self.seen: dict[str, str] = {}
        """The home partitions, by node."""
        self.sizes: Counter[str] = Counter()
        """The numbers of their nodes."""
        self._etcd = etcd
        self._written: dict[str, int] = {}
        """The revisions at which they were last written or removed."""
        self._newest = 0
        """The revision up to which all are known."""

    def written_at(self, node: str) -> int:
        """Return the revision at which the home partition of a node was last written, 0 if it never was."""
        return self._written.get(node, 0)

    def clear(self) -> None:
        """Forget what was seen, before all is read anew."""
        self.seen, self.sizes, self._written, self._newest = {}, Counter(), {}, 0

    def take(self, record: Record, *, is_deleted: bool = False) -> None:
        """Record that the home partition of a node was written, or removed."""
        node = record.key.removeprefix(self.at)
        self._newest = max(self._newest, record.modified)
        if record.modified <= self.written_at(node):  # it has been written since, by this scheduler
            return
        try:
            self._set(node, None if is_deleted else record.value.decode(), record.modified)
        except UnicodeError as error:
            raise StoreError(f"no drom has written {record.key[:200]}: delete it") from error

    def _set(self, node: str, home: str | None, revision: int) -> None:
        before = self.seen.pop(node, None)
        self.sizes.subtract([before] if before else [])
        if home is not None:
            self.seen[node] = home
            self.sizes[home] += 1
        self._written[node] = revision

    def settle(self, node: str, homes: Sequence[str]) -> bool:
        """Give a node a home partition: that of `homes` with fewest nodes, the first of several.

        Return whether it was given by this call. If another scheduler has given it one, `seen` has that afterwards; if
        another one has changed the numbers of nodes, they count.
        """
        if len(self.seen) >= MOST_NODES:
            raise StoreError(f"there are {MOST_NODES} nodes, the most for a cluster: remove some, drom drain --forget")
        key = self.at + node
        for _ in range(TRIES):
            home = min(homes, key=self.sizes.__getitem__)
            compare = [absent(key), *([unchanged(self.at, self._newest)] if len(homes) > 1 else [])]
            held, revision, _ = self._etcd.transact(compare, [put(key, home.encode())], key, IMPATIENCE)
            if held:
                self._set(node, home, revision)
                self._newest = revision if len(homes) > 1 else self._newest
            else:
                for record in self._etcd.written_after(self.at, self._newest, IMPATIENCE):
                    self.take(record)
            if node in self.seen:
                return held
        raise StoreError("other schedulers change the same records all the time: it is tried again")

    def remove(self, node: str) -> None:
        """Remove the home partition of a node, which gets another one when its agent comes again."""
        key = self.at + node
        _, revision, _ = self._etcd.transact([], [put(key, None)], key, IMPATIENCE)
        self._set(node, None, revision)
