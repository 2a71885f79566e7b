# SPDX-License-Identifier: Apache-2.0
"""The nodes that a home partition has lent and borrowed, and the jobs that run on borrowed ones. Pure.

A policy never sees borrowed nodes: to it they are down, so that no other job gets there. The job for which they were
borrowed is put on its nodes as one that was there before the policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.live.cluster import admission
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.lending import EMPTY, Situation, wanted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.live.cluster.executions import Executions
    from drom.scheduler.live.cluster.job_queue import JobQueue
    from drom.scheduler.live.cluster.jobs import Job, Node
    from drom.scheduler.live.cluster.lending import Decision, FreeList
    from drom.scheduler.live.cluster.membership import Membership
    from drom.scheduler.live.cluster.state import ClusterState


class Loans:
    """What a home partition has lent and borrowed."""

    def __init__(self, state: ClusterState, queue: JobQueue, executions: Executions, members: Membership) -> None:
        self._state, self._queue, self._executions, self._members = state, queue, executions, members

    def follow(self, lists: Mapping[str, FreeList], now: float) -> list[str]:
        """Follow the free lists: schedule on no own node that is in one; return those that have been given back."""
        self._state.lists = lists
        self._queue.fit(now)
        return self._members.follow(lists.get(self._state.settings.home, EMPTY).nodes, now)

    def release(self) -> None:
        """Remove borrowed nodes after the end of their jobs; they can be given back once that is stored.

        One that is silent, drained or busy stays until it is not.
        """
        state = self._state
        if state.borrowed:
            used = {name for job in state.jobs.values() if not job.is_final for name in job.shares}
            for node in [state.nodes[name] for name in sorted(state.borrowed - used)]:
                if self._is_idle(node):
                    self._members.give_back(node)

    def _is_idle(self, node: Node) -> bool:
        has_strangers = self._members.strangers.get(node.name)
        return node.state == "up" and not has_strangers and not self._state.placements.on(node.index)

    def situation(self) -> Situation:
        """Return what the home partition has and needs."""
        state, controller = self._state, self._state.controller
        home, lists = state.settings.home, state.lists
        if not (isinstance(controller, Controller) and state.lends):
            return Situation(home, 0, 0, (), state.nodes, 0, is_short=False)
        job, cores = self._first(), controller.cores
        may_offer = wanted(lists, home, cores) or lists.get(home, EMPTY).offered
        idle = [node.name for node in state.own if self._is_idle(node)] if job or may_offer else ()
        needs, is_short = job.spec.nodes if job else 0, bool(controller.counts[0])
        return Situation(home, state.size, cores, idle, state.nodes, needs, is_short)

    def _first(self) -> Job | None:
        """Return the first of the jobs that wait for nodes, if it may get those of several home partitions."""
        controller, jobs = self._state.controller, self._state.jobs
        if not isinstance(controller, Controller):
            return None
        first = [*self._queue.too_large, *([controller.head] if controller.counts[0] else [])]
        job = min((jobs[number] for number in first), key=lambda job: (-job.priority, job.number), default=None)
        return job if job and admission.may_span(job.spec, self._state.policy) else None

    def carry_out(self, decision: Decision, now: float) -> None:
        """Put the first waiting job on the nodes that it has after a decision, if it can start."""
        job, controller = self._first(), self._state.controller
        if not (decision.borrowed and job and controller):
            return
        for name, home in decision.borrowed.items():
            self._members.borrow(name, home, controller.cores, now)
        self._queue.take_out(job)
        job.shares = dict.fromkeys([*decision.own, *decision.borrowed], controller.cores)
        cores = {self._state.nodes[name].index: amount for name, amount in job.shares.items()}
        controller.restore(job.number, self._queue.request(job), cores, int(now), job.limit)
        self._executions.place(job, controller, now)
        homes = ",".join(sorted(set(decision.borrowed.values())))
        self._state.outbox.warn("nodes_borrowed", job=job.number, nodes=",".join(decision.borrowed), homes=homes)
