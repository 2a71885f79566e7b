# SPDX-License-Identifier: Apache-2.0
"""The nodes on which adaptive jobs have ranks: they leave drained nodes, come back, and come to others. Pure.

A job whose ranks on a drained node have no cores any more is ordered to release them. Once its agent reports that
nothing of the job is left there, the job leaves the node. A job that has done that can spawn ranks, and joins nodes
later, where the policy gives it cores. If its ranks do not report there in time, it gives that node back and joins no
other: its MPI library could not spawn them, or they hang.
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
            if all(name in job.left for name in job.shares) or 0 in job.awaited.values():
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
            self._give_back(job, controller, now)
            self._vacate(job, controller, now)
            self._join(job, controller, now)

    def _adaptive(self, controller: PoolController) -> list[Job]:
        """Return the adaptive jobs that run and are not to end."""
        jobs = (self._state.jobs[number] for number in controller.running)
        return [job for job in jobs if job.ranks and job.state == RUNNING and not job.verdict]

    def next_looks(self, controller: PoolController) -> list[float]:
        """Return the times by which ranks must have reported, when `follow` is to be called."""
        return [due for job in self._adaptive(controller) for due in job.awaited.values() if due]

    def _give_back(self, job: Job, controller: PoolController, now: float) -> None:
        """Withdraw a job from nodes on which its ranks have not reported in time."""
        late = [name for name, due in job.awaited.items() if 0 < due <= now]
        for name in late:
            job.awaited[name] = job.ranks[name] = 0
            self._outbox.record(job, now, "ranks", node=name, ranks=0)
            reason = "its ranks did not report there in time: see its output. It gives the node back for good."
            self._outbox.warn("ranks_missing", node=name, job=job.number, reason=reason)
        if late:
            self._confine(job, controller)
            self.order(job)

    def _confine(self, job: Job, controller: PoolController) -> None:
        """Plan cores for a job only on nodes where it has ranks."""
        for index in controller.nodes_of(job.number):
            name = self._state.node_at[index].name
            if job.awaited.get(name) == 0 or name not in job.left:
                controller.left(job.number, index)
                self._placements.plan(index, {job.number: 0})
                job.shares[name] = 0

    def _vacate(self, job: Job, controller: PoolController, now: float) -> None:
        """Release the ranks without cores on drained nodes, and have them stay or come again on others.

        Ranks that have not begun are not released: MPI would end the job. On its first node a job has mpirun, which
        stays, and its ranks rest.
        """
        before, ranks = dict(job.ranks), controller.ranks_of(job.number)
        for part in self._placements.of(job.number):
            name, index, is_idle = part.node.name, part.node.index, not (part.held or part.planned)
            if name == job.launcher or name in job.leaving:
                continue
            if part.node.drained:
                if part.has_ranks and is_idle and controller.can_leave(job.number, index):
                    job.ranks[name] = 0
            elif index in ranks:
                if not job.ranks[name]:
                    job.awaited[name] = now + self._state.settings.spawn_within
                job.ranks[name] = ranks[index]
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

    def joined(self, part: Placement, now: float) -> None:
        """Record that a node that a job joins is ready for ranks, and have the job spawn them."""
        part.job.awaited[part.node.name] = now + self._state.settings.spawn_within
        self.order(part.job)

    def restore(self, job: Job, now: float) -> None:
        """Give ranks that may have reported while there was no scheduler the time to do so again."""
        again = now + self._state.settings.spawn_within
        job.awaited = {name: due and again for name, due in job.awaited.items()}

    def reported(self, part: Placement) -> None:
        """Record that the ranks of a job on a node have reported."""
        part.has_ranks = True
        if part.job.awaited.get(part.node.name):
            del part.job.awaited[part.node.name]
            self._outbox.save(part.job)

    def vacated(self, part: Placement, message: say.Vacated, now: float) -> None:
        """Record that no ranks of a job are on a node. If it is to leave the node, end what keeps it there.

        Ranks that are to be there are awaited.
        """
        job, name = part.job, part.node.name
        if name not in job.ranks or name == job.launcher or job.verdict:
            return
        had_ranks, part.has_ranks = part.has_ranks, False
        if job.ranks[name]:
            job.awaited.setdefault(name, now + self._state.settings.spawn_within)
            self._outbox.save(job)
            return
        if had_ranks is not False:
            self._outbox.record(job, now, "vacated", node=name)
        if message.is_empty:
            if name not in job.leaving:
                job.leaving.append(name)
                self._outbox.save(job)
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
        if name in job.leaving:
            job.leaving.remove(name)
        if job.awaited.get(name):
            del job.awaited[name]
        if self._state.controller:
            self._state.controller.left(job.number, part.node.index)  # type: ignore[union-attr]
        self._outbox.send(name, say.Forget(job.number, job.attempt))
        self._outbox.record(job, now, "left", node=name)
