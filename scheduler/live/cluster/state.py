# SPDX-License-Identifier: Apache-2.0
"""The state that the parts of a live cluster share. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.dispatch import Dispatch
from drom.scheduler.live.cluster.fair_share import Usage
from drom.scheduler.live.cluster.image_room import ImageRoom
from drom.scheduler.live.cluster.lending import reach
from drom.scheduler.live.cluster.outbox import Outbox
from drom.scheduler.live.cluster.placements import Placements
from drom.scheduler.live.cluster.quotas import Holdings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.driver import Driver
    from drom.scheduler.live.cluster.jobs import Job, Node
    from drom.scheduler.live.cluster.lending import FreeList
    from drom.scheduler.live.cluster.settings import Settings


class ClusterState:
    """Jobs by number, nodes by name, the table of jobs on nodes, and what is to be stored and sent.

    `past` returns the final state of a job that is no longer kept, or None. `usage` is what users have used as far as
    it was stored, if the site gives them equal shares.
    """

    def __init__(
        self, policy: Policy, settings: Settings, past: Callable[[int], str | None], usage: Usage | None = None
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.past = past
        self.usage = usage or (Usage(settings.half_life) if settings.half_life else None)
        self.jobs: dict[int, Job] = {}
        self.holdings = Holdings()
        self.nodes: dict[str, Node] = {}
        self.node_at: dict[int, Node] = {}
        """The nodes by index."""
        self.image_room = ImageRoom()
        self.placements = Placements()
        self.dispatch = Dispatch(self.placements)
        self.controller: Driver | None = None
        """The driver of the policy, from the first node on."""
        self.outbox = Outbox()
        self.borrowed: set[str] = set()
        """The nodes that belong to other home partitions."""
        self.lists: Mapping[str, FreeList] = {}
        """The free lists of all home partitions."""

    @property
    def reach(self) -> int:
        """The most nodes of other home partitions that a job can ever get."""
        if not (self.lends and self.controller):
            return 0
        return reach(self.lists, self.settings.home, self.controller.cores)

    @property
    def own(self) -> list[Node]:
        """The nodes that are not borrowed."""
        return [node for node in self.nodes.values() if not node.home] if self.borrowed else list(self.nodes.values())

    @property
    def size(self) -> int:
        """The number of nodes that are not borrowed."""
        return len(self.nodes) - len(self.borrowed)

    @property
    def lends(self) -> bool:
        """Whether nodes are lent to other home partitions, and borrowed from them: policies give jobs whole nodes."""
        return self.settings.lends and bool(self.settings.home) and not self.policy.shares_nodes

    def state_of(self, number: int) -> str | None:
        """Return the state of a job; None if no job has that number."""
        job = self.jobs.get(number)
        return job.state if job else self.past(number)

    def living(self, number: int) -> Job:
        """Return a job. Raises SchedulerError for one that is over or never existed."""
        job = self.jobs.get(number)
        if job is None or job.is_final:
            over = self.state_of(number)
            msg = f"job {number} is over: it is {over}." if over else f"there is no job {number}: see drom queue."
            raise SchedulerError(msg)
        return job
