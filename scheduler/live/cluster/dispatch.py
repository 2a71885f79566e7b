# SPDX-License-Identifier: Apache-2.0
"""The order in which nodes receive the policy's decisions: shrinks first, then growth, and starts where there is room.

Pure: no socket, and times come in as arguments.

A job may hold on a node the most that was confirmed, or ordered since; all jobs together never hold more cores than the
node has. A job of several nodes is started on all of them at once, when each has room for it (Listing 3 of the
SD-Policy paper).
"""

from __future__ import annotations

import math
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.live.cluster.placements import WAITING, Placement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.live.cluster.placements import Placements


class Resize(NamedTuple):
    """The order that a part of a job hold `cores` cores of its node."""

    part: Placement
    cores: int


class Start(NamedTuple):
    """The order to start a job on all its nodes."""

    job: int


class Join(NamedTuple):
    """The order to start a part of a job that runs on other nodes."""

    part: Placement


Order = Resize | Start | Join


class Dispatch:
    """The orders that bring the parts of jobs to what the policy plans."""

    def __init__(self, placements: Placements) -> None:
        self.wake = math.inf
        """When a refused order may be repeated."""
        self._placements = placements
        self._version = -1
        """The version of the placements for which all orders were given."""

    def waiting_for(self, job: int) -> list[int]:
        """Return the jobs that have yet to shrink before a placed one can start."""
        full = [part.node.index for part in self._placements.of(job) if part.state == WAITING and not self._fits(part)]
        there = (one for node in full for one in self._placements.on(node))
        return sorted({one.job.number for one in there if one.state != WAITING and one.held})

    def orders(self, now: float) -> list[Order]:
        """Return the orders that may be given now and were not given yet."""
        if self._version == self._placements.version and now < self.wake:
            return []
        unsettled = self._placements.unsettled()
        orders: list[Order] = []
        for _, parts in groupby(unsettled, key=attrgetter("node.index")):
            orders += self._resizes(sorted(parts, key=lambda part: part.planned - part.held), now)
        self.wake = min((part.again for part in unsettled if part.again > now), default=math.inf)
        for job in list(self._placements.waiting):
            if all(self._fits(part) for part in self._placements.of(job)):
                self._placements.ask(job)
                orders.append(Start(job))
        for part in self._placements.joining():
            if self._fits(part):
                self._placements.ask_one(part)
                orders.append(Join(part))
        self._version = self._placements.version
        return orders

    def _fits(self, waiting: Placement) -> bool:
        """Return whether the node of a part that waits has room for it, also for its memory once fillers have left."""
        node = waiting.node
        if self._placements.held(node.index) + waiting.planned > node.cores:
            return False
        others = [part.job.spec for part in self._placements.on(node.index) if part.state != WAITING]
        if not node.memory or not any(spec.saving for spec in others):
            return True
        return sum(spec.memory for spec in others) + waiting.job.spec.memory <= node.memory

    def _grows(self, job: int) -> bool:
        """Return whether a job has yet to get cores elsewhere, before it may lose those of a drained node."""
        return any(part.planned > part.confirmed for part in self._placements.of(job))

    def _resizes(self, parts: list[Placement], now: float) -> Iterator[Resize]:
        """Give and yield the orders for parts on one node that can be given now."""
        for part in parts:
            if part.node.drained and part.planned < part.held and self._grows(part.job.number):
                continue
            others = self._placements.held(part.node.index) - part.held
            if others + max(part.held, part.planned) <= part.node.cores and part.may_be(part.planned, now):
                part.ordered.append(part.planned)
                yield Resize(part, part.planned)
