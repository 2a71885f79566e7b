# SPDX-License-Identifier: Apache-2.0
"""Lends nodes of a home partition to others, and borrows theirs, for the scheduler that leads it.

A scheduler schedules on the nodes that are not in the free list of its home partition. It knows that list once it has
written it: after its election, and after a write whose outcome is unknown. Until then it schedules nothing.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from drom.scheduler.live.cluster.lending import EMPTY, decide
from drom.scheduler.live.server.etcd import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from drom.scheduler.live.cluster.lending import FreeList
    from drom.scheduler.live.server.free_lists import FreeLists
    from drom.scheduler.live.server.node_homes import NodeHomes
    from drom.scheduler.live.server.shared_rows import SharedRows
    from drom.scheduler.live.server.stored_cluster import StoredCluster

RETRY = 1.0
"""Seconds until free lists are written again after a failure."""
AGAIN = 0.05
"""Seconds until they are written again after another scheduler has written one of them, unless that is seen sooner."""


class Lender:
    """Lends and borrows nodes for the cluster `stored` with its queue in `rows`.

    `call` asks the agents of nodes to introduce themselves.
    """

    def __init__(
        self,
        stored: StoredCluster,
        rows: SharedRows,
        lists: FreeLists,
        nodes: NodeHomes,
        call: Callable[[Collection[str]], None],
    ) -> None:
        self._stored, self._rows, self._lists, self._nodes, self._call = stored, rows, lists, nodes, call
        self._home = stored.settings.home
        self._knows = 0
        """The epoch in which this scheduler knows its own free list; 0 if it does not."""
        self._seen = -1
        """The version of the free lists at the last decision."""
        self._again = 0.0
        """When free lists may be written again (CLOCK_MONOTONIC)."""
        self._conflict: int | None = None
        """The version of the free lists that is no longer the store's; None after a write without an answer."""

    def epoch_of(self, node: str) -> int:
        """Return the epoch with which the agent of a node is welcomed.

        It grows whenever the node goes to another scheduler: that one was elected, a free list has changed, or the node
        has got another home partition.
        """
        there = self._stored.cluster.nodes.get(node)
        lent = self._lists.written_at((there and there.home) or self._home)
        return max(self._rows.epoch, lent, self._nodes.written_at(node))

    def next_look(self) -> float:
        """Return in how many seconds there is something to do."""
        if self._knows == self._rows.epoch and self._seen == self._lists.version:
            return math.inf
        return 0.0 if self._may_write() else max(0.0, self._again - time.monotonic())

    def _may_write(self) -> bool:
        """Return whether free lists may be written: after a conflict as soon as they are seen as they are now."""
        return self._conflict not in {None, self._lists.version} or time.monotonic() >= self._again

    def follow(self) -> bool:
        """Update which nodes the cluster schedules on; return False if it is not known which are lent."""
        if not self._knows_its_list():
            return False
        self._call(self._stored.cluster.loans.follow(self._lists.seen, self._stored.clock()))
        return True

    def _knows_its_list(self) -> bool:
        """Return whether the own free list is known, if need be after writing it as it was seen.

        Once it is written, no earlier write can arrive any more.
        """
        epoch = self._rows.epoch
        if self._knows != epoch and self._may_write():
            own = self._lists.seen.get(self._home, EMPTY)
            self._knows = epoch if self._swap({self._home: own}) else 0
        return self._knows == epoch

    def _swap(self, lists: Mapping[str, FreeList]) -> bool:
        now, version = time.monotonic(), self._lists.version
        self._conflict, self._again = None, now
        try:
            held = self._lists.swap(self._home, self._rows.leader_key, self._rows.epoch, lists)
        except StoreError:
            self._knows, self._again = 0, now + RETRY
            return False
        if not held:
            self._conflict, self._again = version, now + AGAIN
        return held

    def act(self) -> None:
        """Give back nodes, borrow those that the first waiting job lacks, and offer idle ones; all else is stored."""
        stored, loans = self._stored, self._stored.cluster.loans
        if not self._may_write():
            return
        self._seen = self._lists.version
        decision = decide(loans.situation(), self._lists.seen)
        if decision.lists and self._swap(decision.lists):
            self.follow()
            loans.carry_out(decision, stored.clock())
            self._call(decision.borrowed)
            stored.flush()
