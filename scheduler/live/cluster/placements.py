# SPDX-License-Identifier: Apache-2.0
"""The table of jobs on nodes: each part of a job, its state, and the cores that it may hold. Pure.

A job has a row for each node that it has not left. The queue on disk has this as the fields `left` and `acknowledged`
of a job: only this table changes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.live.cluster.jobs import Job, Node

WAITING, UNSURE, ABSENT, ASKED, STARTED = "waiting", "unsure", "absent", "asked", "started"
"""The states of a part of a job.

It waits for room on its nodes; an earlier scheduler may or may not have asked its node to start it; the node has since
reported that it was not asked, although other nodes of the job may have been; its node was asked to start it; its node
has reported that it started it.
"""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a refused order is repeated, and their upper bound; they double each time."""


@dataclass(slots=True, eq=False)
class Placement:
    """The part of a job on a node.

    `planned` are the cores that the policy plans for it, `confirmed` those that it holds (0 while it waits for room),
    `ordered` those of the orders under way. `refused` are the cores to which the last order could not resize it (None:
    it could). They are not ordered again before the time `again`, which is `pause` seconds later.
    """

    job: Job
    node: Node
    state: str
    planned: int
    confirmed: int = 0
    ordered: list[int] = field(default_factory=list)
    refused: int | None = None
    pause: float = 0.0
    again: float = 0.0
    has_ranks: bool | None = None
    """Whether its ranks have reported from the node, and have not left it since (None: this is not known)."""

    @property
    def held(self) -> int:
        """The most cores that it may hold: those confirmed last, or those of any order that is under way."""
        return max(self.confirmed, *self.ordered) if self.ordered else self.confirmed

    @property
    def latest(self) -> int:
        """The cores that it holds once all orders are carried out."""
        return self.ordered[-1] if self.ordered else self.confirmed

    def may_be(self, cores: int, now: float) -> bool:
        """Return whether it may be ordered to hold `cores`; answers to two equal orders could not be told apart."""
        return cores not in self.ordered and (self.refused != cores or self.again <= now)


class Placements:
    """All parts of jobs, by job and by node. Jobs are identified by their numbers, nodes by their indices."""

    def __init__(self) -> None:
        self._of: dict[int, dict[int, Placement]] = {}
        self._on: dict[int, dict[int, Placement]] = {}
        self.waiting: dict[int, None] = {}
        """The jobs that wait for room, in the order in which they were placed."""
        self.version = 0
        """A number that grows with each change of what parts hold or are to hold."""

    # --- looking --------------------------------------------------------------------------------------------------

    def of(self, job: int) -> list[Placement]:
        """Return the parts of a job, in the order in which it got its nodes."""
        return list(self._of.get(job, {}).values())

    def on(self, node: int) -> list[Placement]:
        """Return the parts on a node, in the order of their jobs' numbers."""
        return [part for _, part in sorted(self._on.get(node, {}).items())]

    def get(self, job: int, node: int) -> Placement | None:
        """Return the part of a job on a node; None if the job is not there."""
        return self._on.get(node, {}).get(job)

    def guests_of(self, node: int) -> list[Job]:
        """Return the jobs that wait for room on a node, in the order in which they were placed."""
        parts = (part for part in self._on.get(node, {}).values() if part.state == WAITING and part.planned)
        return [part.job for part in parts if part.job.number in self.waiting]

    def joining(self) -> list[Placement]:
        """Return the parts of jobs that run on other nodes and wait for room, by node."""
        parts = (part for there in self._on.values() for part in there.values() if part.state == WAITING)
        found = [part for part in parts if part.planned and part.job.number not in self.waiting]
        return sorted(found, key=attrgetter("node.index"))

    def is_unsure(self, job: int) -> bool:
        """Return whether no node has reported yet whether an earlier scheduler started a job."""
        return any(part.state in (UNSURE, ABSENT) for part in self._of.get(job, {}).values())

    def unsettled(self) -> list[Placement]:
        """Return the parts that were asked to start and will not hold what is planned after all orders, by node."""
        parts = (part for there in self._on.values() for part in there.values())
        found = [part for part in parts if part.planned != part.latest and part.state != WAITING]
        return sorted(found, key=attrgetter("node.index"))

    def held(self, node: int) -> int:
        """Return the number of cores that the jobs of a node may hold together."""
        return sum(part.held for part in self._on.get(node, {}).values())

    # --- jobs come and go -----------------------------------------------------------------------------------------

    def place(self, job: Job, cores: Iterable[tuple[Node, int]]) -> None:
        """Put a job on nodes, with the cores planned for it on each, where it waits for room."""
        self.clear(job)
        for node, planned in cores:
            self._add(Placement(job, node, WAITING, planned))
        self.waiting[job.number] = None

    def join(self, job: Job, node: Node, planned: int) -> None:
        """Put a job that runs on one more node, where it waits for room."""
        self._add(Placement(job, node, WAITING, planned))

    def ask_one(self, part: Placement) -> None:
        """Record that a node of a job that runs is asked to start its part."""
        part.state = ASKED
        self._come(part, part.planned)

    def restore(self, job: Job, nodes: Iterable[Node], state: str) -> None:
        """Put a job back on the nodes that it had not left; `state` is that of parts that were not started."""
        job.left = []
        for node in nodes:
            cores = job.shares[node.name]
            self._add(Placement(job, node, STARTED if node.name in job.acknowledged else state, cores, cores))

    def ask(self, job: int) -> None:
        """Record that the nodes of a job that waited for room are asked to start it."""
        del self.waiting[job]
        for part in self.of(job):
            part.state = ASKED
            self._come(part, part.planned)

    def put_back(self, job: int) -> None:
        """Record that no node was asked to start a job, which waits for room."""
        self.waiting[job] = None
        for part in self.of(job):
            part.state, part.planned = WAITING, part.job.shares[part.node.name]
            self._come(part, 0)

    def start(self, part: Placement) -> None:
        """Record that a node has started its part of a job."""
        part.state = STARTED
        part.job.acknowledged.append(part.node.name)

    def remove(self, part: Placement) -> None:
        """Record that a job has left one of its nodes."""
        number, node = part.job.number, part.node.index
        part.job.left.remove(part.node.name)
        for table, key, other in ((self._of, number, node), (self._on, node, number)):
            del table[key][other]
            if not table[key]:
                del table[key]
        if not part.job.left:
            self.waiting.pop(number, None)
        self.version += 1

    def leave(self, part: Placement) -> None:
        """Record that a job has left one of its nodes, and runs on the others."""
        if part.state == STARTED:
            part.job.acknowledged.remove(part.node.name)
        self.remove(part)

    def clear(self, job: Job) -> None:
        """Record that a job is on no node."""
        for part in self.of(job.number):
            self.remove(part)
        job.acknowledged = []

    def _add(self, part: Placement) -> None:
        part.job.left.append(part.node.name)
        self._of.setdefault(part.job.number, {})[part.node.index] = part
        self._on.setdefault(part.node.index, {})[part.job.number] = part
        self.version += 1

    def _come(self, part: Placement, cores: int) -> None:
        """Record that a part holds `cores`, as the last of those that have come to its node."""
        there = self._on[part.node.index]
        there[part.job.number] = there.pop(part.job.number)
        self.holds(part, cores)

    # --- cores ----------------------------------------------------------------------------------------------------

    def plan(self, node: int, residents: dict[int, int]) -> None:
        """Record the cores planned for the jobs of a node."""
        for part in self._on.get(node, {}).values():
            part.planned = residents.get(part.job.number, part.planned)
        self.version += 1

    def holds(self, part: Placement, cores: int) -> None:
        """Record that a part holds `cores` and no order is under way, as after a restart of its agent."""
        part.confirmed, part.ordered, part.refused, part.pause, part.again = cores, [], None, 0.0, 0.0
        self.version += 1

    def resized(self, part: Placement, cores: int) -> None:
        """Record that an order has been carried out, and with it those given before."""
        if cores in part.ordered:
            last = len(part.ordered) - 1 - part.ordered[::-1].index(cores)
            part.confirmed, part.ordered, part.refused = cores, part.ordered[last + 1 :], None
            self.version += 1

    def not_resized(self, part: Placement, cores: int, now: float) -> None:
        """Record that a part could not be resized and holds `cores`.

        If several orders are under way, the refused one is unknown, and none is delayed.
        """
        wanted, is_known = part.latest, len(part.ordered) == 1
        pause = min(2 * part.pause, LONGEST_PAUSE) if part.refused == wanted else FIRST_PAUSE
        self.holds(part, cores)
        if is_known:
            part.refused, part.pause, part.again = wanted, pause, now + pause
