# SPDX-License-Identifier: Apache-2.0
"""The nodes on which adaptive jobs have ranks: they leave drained nodes, come back, and come to others. Pure.

A job whose ranks on a drained node have no cores any more is ordered to release them. Once its agent reports that
nothing of the job is left there, the job leaves the node. A job that has done that can spawn ranks, and joins nodes
later, where the policy gives it cores.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from drom.agent.execution import protocol as say
from drom.scheduler.live.cluster.jobs import RUNNING
from drom.scheduler.live.cluster.placements import STARTED

if TYPE_CHECKING:
    from drom.scheduler.live.cluster.jobs import Job
    from drom.scheduler.live.cluster.placements import Placement
    from drom.scheduler.live.cluster.pool_controller import PoolController
    from drom.scheduler.live.cluster.state import ClusterState


class Ranks:
    """The ranks of running adaptive jobs."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._outbox = state.outbox
        self._placements = state.placements

    def offer(self, controller: PoolController) -> None:
        """Offer the policy all nodes that are up for jobs that have left a node, before it is called."""
        for job in self._adaptive(controller):
            if all(name in job.left for name in job.shares):
                continue
            own = controller.nodes_of(job.number)
            for node in self._state.own:
                if node.state == "up" and node.index not in own and node.name not in job.left:
                    job.shares.setdefault(node.name, 0)
                    job.ranks.setdefault(node.name, 0)
                    controller.joins(job.number, node.index)

    def follow(self, controller: PoolController, now: float) -> None:
        """Order the changes of ranks that follow from the states of nodes, and from the cores of jobs."""
        for job in self._adaptive(controller):
            self._vacate(job, controller, now)
            self._join(job, controller, now)

    def _adaptive(self, controller: PoolController) -> list[Job]:
        """Return the adaptive jobs that run and are not to end."""
        jobs = (self._state.jobs[number] for number in controller.running)
        return [job for job in jobs if job.ranks and job.state == RUNNING and not job.verdict]

    def _vacate(self, job: Job, controller: PoolController, now: float) -> None:
        """Release the ranks without cores on drained nodes, and keep those that are still there once these are not.

        On its first node a job has mpirun, which stays, and its ranks rest.
        """
        before = dict(job.ranks)
        for part in self._placements.of(job.number):
            if part.node.name == job.launcher:
                continue
            name, index, is_idle = part.node.name, part.node.index, not (part.held or part.planned)
            if part.node.drained and part.state == STARTED and is_idle and controller.can_leave(job.number, index):
                job.ranks[name] = 0
            elif not part.node.drained and not part.leaves:
                job.ranks[name] = controller.ranks_of(job.number)[index]
        for name in job.ranks:
            if job.ranks[name] != before[name]:
                self._outbox.record(job, now, "ranks", node=name, ranks=job.ranks[name])
        if job.ranks != before:
            self.order(job)

    def _join(self, job: Job, controller: PoolController, now: float) -> None:
        """Put a job on nodes that it is not on and has cores of."""
        for name, cores in job.shares.items():
            if cores and name not in job.left:
                node = self._state.nodes[name]
                job.ranks[name] = controller.ranks_of(job.number)[node.index]
                self._placements.join(job, node, cores)
                self._outbox.record(job, now, "ranks", node=name, ranks=job.ranks[name])

    def order(self, job: Job) -> None:
        """Send the nodes of a job that runs where it is to have ranks; it has those of its launch until then."""
        if job.state != RUNNING:
            return
        parts = [part for part in self._placements.of(job.number) if part.state == STARTED]
        there = {part.node.name for part in parts}
        ranks = tuple(count if name in there else 0 for name, count in job.ranks.items())
        for part in parts:
            self._outbox.send(part.node.name, say.Occupy(job.number, job.attempt, tuple(job.ranks), ranks))

    def vacated(self, part: Placement, message: say.Vacated, now: float) -> None:
        """Record that the ranks of a job have left a node; end what keeps the job there if nothing else is left."""
        job, name = part.job, part.node.name
        if job.ranks.get(name) != 0 or job.verdict:
            return
        if not part.vacated:
            part.vacated = True
            self._outbox.record(job, now, "vacated", node=name)
        if message.is_empty:
            part.leaves = True
            self._outbox.send(name, say.Signal(job.number, job.attempt, signal.SIGKILL, None))

    def may_leave(self, part: Placement) -> bool:
        """Return whether the end of a part, or that it did not start, ends no job: one that has no ranks there."""
        job, name = part.job, part.node.name
        joins = part.state != STARTED and job.state == RUNNING
        stays = not job.ranks or job.verdict or name == job.launcher
        return not stays and (joins or job.ranks[name] == 0)

    def left(self, part: Placement, now: float) -> None:
        """Record that a job has left a node, and runs on elsewhere."""
        job, name = part.job, part.node.name
        self._placements.leave(part)
        job.ranks[name] = job.shares[name] = 0
        if self._state.controller:
            self._state.controller.left(job.number, part.node.index)  # type: ignore[union-attr]
        self._outbox.send(name, say.Forget(job.number, job.attempt))
        self._outbox.record(job, now, "left", node=name)
