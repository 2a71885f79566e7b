# SPDX-License-Identifier: Apache-2.0
"""The order in which nodes receive the policy's decisions: shrinks first, then growth, and starts where there is room.

Pure: no socket, and times come in as arguments.

A job may hold on a node the most that was confirmed, or ordered since; all jobs together never hold more cores than the
node has. A job of several nodes is started on all of them at once, when each has room for it (Listing 3 of the
SD-Policy paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Resize(NamedTuple):
    """The order that a job hold `cores` cores of a node."""

    node: int
    job: int
    cores: int


class Start(NamedTuple):
    """The order to start a job with these cores, by node."""

    job: int
    cores: dict[int, int]


Order = Resize | Start

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a refused order is repeated, and their upper bound; they double each time."""


@dataclass(slots=True)
class Share:
    """The cores that a job may hold on a node: those confirmed last, or those of any order that is under way.

    `refused` are the cores to which the last order could not resize it (0: it could). They are not ordered again before
    the time `again`, which is `pause` seconds later.
    """

    confirmed: int
    ordered: list[int] = field(default_factory=list)
    refused: int = 0
    pause: float = 0.0
    again: float = 0.0

    @property
    def held(self) -> int:
        """The most cores that it may hold."""
        return max(self.confirmed, *self.ordered) if self.ordered else self.confirmed

    @property
    def latest(self) -> int:
        """The cores that it holds once all orders are carried out."""
        return self.ordered[-1] if self.ordered else self.confirmed

    def may_be(self, cores: int, now: float) -> bool:
        """Return whether it may be ordered to hold `cores`; answers to two equal orders could not be told apart."""
        return cores not in self.ordered and (self.refused != cores or self.again <= now)


class Dispatch:
    """The shares of all nodes, each of which has `cores` cores."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self._targets: dict[int, dict[int, int]] = {}
        self._shares: dict[int, dict[int, Share]] = {}
        self._placed: dict[int, dict[int, int]] = {}
        self._touched: set[int] = set()
        self.wake = math.inf
        """When a refused order may be repeated."""

    def held(self, node: int) -> int:
        """Return the number of cores that the jobs of a node may hold together."""
        return sum(share.held for share in self._shares.get(node, {}).values())

    def share(self, node: int, job: int) -> Share | None:
        """Return the cores that a job may hold on a node; None if it holds none."""
        return self._shares.get(node, {}).get(job)

    def waiting_for(self, job: int) -> list[int]:
        """Return the jobs that have yet to shrink before a placed one can start."""
        placed = self._placed.get(job, {})
        full = [node for node, cores in placed.items() if self.held(node) + cores > self.cores]
        return sorted({other for node in full for other in self._shares[node]})

    def want(self, node: int, residents: dict[int, int]) -> None:
        """Record the cores planned for the jobs of a node; jobs that are not named are leaving it."""
        self._targets[node] = residents
        self._touched.add(node)

    def place(self, job: int, cores: dict[int, int]) -> None:
        """Record the nodes on which a job is to start, with its cores on each."""
        self._placed[job] = cores
        self._touched.update(cores)

    @property
    def placed(self) -> dict[int, dict[int, int]]:
        """The jobs that wait for room, with the cores planned for them by node."""
        return self._placed

    def unplace(self, job: int) -> None:
        """Record that a placed job is not to start after all."""
        self._touched.update(self._placed.pop(job, {}))

    def holds(self, node: int, job: int, cores: int) -> None:
        """Record that a job holds `cores` and no order is under way: after a restart, or when an agent comes back."""
        self._shares.setdefault(node, {})[job] = Share(cores)
        self._touched.add(node)

    def refused(self, node: int, job: int, cores: int, now: float) -> None:
        """Record that a job could not be resized and holds `cores`.

        If several orders are under way, the refused one is unknown, and none is delayed.
        """
        share = self.share(node, job)
        self.holds(node, job, cores)
        if share and len(share.ordered) == 1:
            wanted = share.latest
            pause = min(2 * share.pause, LONGEST_PAUSE) if share.refused == wanted else FIRST_PAUSE
            self._shares[node][job] = Share(cores, [], wanted, pause, now + pause)

    def applied(self, node: int, job: int, cores: int) -> None:
        """Record that an order has been carried out, and with it those given before."""
        share = self.share(node, job)
        if share is None or cores not in share.ordered:
            return
        last = len(share.ordered) - 1 - share.ordered[::-1].index(cores)
        share.confirmed, share.ordered, share.refused = cores, share.ordered[last + 1 :], 0
        self._touched.add(node)

    def gone(self, node: int, job: int) -> None:
        """Record that a job no longer holds cores of a node."""
        self._shares.get(node, {}).pop(job, None)
        self._touched.add(node)

    def orders(self, now: float) -> list[Order]:
        """Return the orders that may be given now and were not given yet."""
        nodes = sorted(self._touched)
        orders: list[Order] = [order for node in nodes for order in self._resizes(node, now)]
        pauses = [(share.again, node) for node in nodes for share in self._shares.get(node, {}).values()]
        later = [(again, node) for again, node in pauses if again > now]
        self._touched, self.wake = {node for _, node in later}, min((again for again, _ in later), default=math.inf)
        for job, cores in list(self._placed.items()):
            if all(self.held(node) + amount <= self.cores for node, amount in cores.items()):
                del self._placed[job]
                for node, amount in cores.items():
                    self._shares.setdefault(node, {})[job] = Share(amount)
                orders.append(Start(job, cores))
        return orders

    def _resizes(self, node: int, now: float) -> list[Order]:
        """Return orders for one node: jobs that are to shrink, then jobs that are to grow and can."""
        targets, shares = self._targets.get(node, {}), self._shares.get(node, {})
        unequal = [job for job, share in shares.items() if targets.get(job, share.latest) != share.latest]
        orders: list[Order] = []
        for job in sorted(unequal, key=lambda job: targets[job] - shares[job].held):
            share, wanted = shares[job], targets[job]
            fits = self.held(node) - share.held + max(share.held, wanted) <= self.cores
            if fits and share.may_be(wanted, now):
                share.ordered.append(wanted)
                orders.append(Resize(node, job, wanted))
        return orders
