# SPDX-License-Identifier: Apache-2.0
"""The change of a plan by one event: new counts of cores become targets of tasks and owners of cores.

Every change is all or nothing: a method that raises `Refused` leaves the plan as it was.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model.jobs import Change, Event, Job, Task
from drom.agent.node import mapping
from drom.agent.node.areas import Area, area_of
from drom.agent.node.ledger import Move
from drom.agent.placement.ranks import NoPlacement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drom.agent.node.plan import Plan
    from drom.agent.placement.ranks import RankKey
    from drom.agent.policy.fair_share import JobCores


class PlacementRefused(Refused):
    """Raised when counts of cores cannot be placed. `job` has the strict layout or cpuset that prevents it, if any."""

    def __init__(self, why: NoPlacement) -> None:
        super().__init__(why.reason)
        self.job = why.job


class Transaction:
    """The change of `plan` by `event`. However many plans follow from the event, it counts as one change of a job.

    Policies decide for the jobs of its `area`, which is the whole node unless it is made by `within`.
    """

    def __init__(self, plan: Plan, event: Event) -> None:
        self.plan = plan
        self.event = event
        self.area = Area(plan, plan.cores.all)
        self._before: dict[str, tuple[int, Change | None]] = {}
        """The CPUs planned for each changed job before the event, and its last change before that."""

    def within(self, area: Area) -> Transaction:
        """Return this transaction for an area: the same event."""
        part = copy.copy(self)
        part.area = area
        return part

    def replan_as_far(self, decide: Callable[[list[JobCores]], dict[str, int]], reason: str) -> None:
        """Replan with the counts of `decide`; a job gets fewer where strict layouts or cpusets leave no room to grow.

        If no counts can be reached, as while an order for exact CPUs is in progress, the plan stays as it is.
        """
        limits: dict[str, int] = {}
        while True:
            running = self.area.running_at(self.event.at)
            running = (
                [replace(job, maximum=limits.get(job.name, job.maximum)) for job in running] if limits else running
            )
            counts = decide(running)
            try:
                self.replan(counts, reason)
            except PlacementRefused as misplaced:
                jobs = self.plan.jobs
                strict = [
                    job for job in running if jobs[job.name].layout.strict or job.name in self.plan.confined.members()
                ]
                growth = {job.name: counts[job.name] - job.cores for job in strict if counts[job.name] > job.cores}
                if not misplaced.job or not growth:
                    return
                name = misplaced.job if misplaced.job in growth else max(growth, key=lambda name: growth[name])
                limits[name] = counts[name] - 1
            else:
                return

    def replan(self, counts: dict[str, int], reason: str, pins: Mapping[RankKey, int] | None = None) -> None:
        """Place the numbers of cores in `counts` and make that the plan, or raise `Refused` and change nothing."""
        plan, pins = self.plan, pins or {}
        others = mapping.other_jobs(plan, counts)
        if not pins and not others and mapping.layout_is_satisfied(plan):
            return
        targets = mapping.place_all(plan, counts, pins, others)
        if isinstance(targets, NoPlacement):
            raise PlacementRefused(targets)
        for (name, rank), mask in pins.items():
            task = plan.jobs[name].ranks[rank]
            if task:
                task.pin = mask
                plan.touch(plan.jobs[name])
        if plan.rules.residence:
            for job in [plan.jobs[name] for name, cores in counts.items() if plan.jobs[name].cores not in (0, cores)]:
                job.rest_until = self.event.at + plan.rules.residence
        self._set_targets(targets, counts, reason)
        plan.settle_owners()

    def optimise_layout(self, job: Job, ranks: dict[int, Task | None]) -> None:
        """Share the cores of a job among new ranks. Raises `Refused` with nothing changed."""
        plan = self.plan
        before, job.ranks = job.ranks, ranks
        plan.touch(job)
        counts = {other.name: other.cores for other in area_of(job, plan).jobs() if other.cores or other is job}
        pins = {(job.name, rank): 0 for rank in ranks}
        if job.planned & plan.avoided:
            pins = mapping.divide(plan, job, pins) or pins
        targets = mapping.place_all(plan, counts, pins, {job.name})
        if isinstance(targets, NoPlacement):
            job.ranks = before
            plan.touch(job)
            raise PlacementRefused(targets)
        gone = [job.targets.pop(rank) for rank in before.keys() - ranks.keys()]
        plan.ledger.move([Move(job.name, mask, 0) for mask in gone])
        self._set_targets(targets, counts, "arrival")
        plan.settle_owners()

    def drop_rank(self, job: Job, rank: int) -> None:
        """Remove a rank and its cores from a job; the last rank removes the job too, unless it is a scheduler's."""
        plan = self.plan
        if job.reserved:
            job.ranks[rank] = None
            plan.touch(job)
            return
        del job.ranks[rank]
        job.cpusets.pop(rank, None)
        gone = {rank} if job.present else {rank, *job.targets}  # the last task drops absent ranks too
        before = job.planned
        masks = [job.targets.pop(rank, 0) for rank in gone]
        if any(masks):
            self._note(job, before, "death", self.event)
        plan.ledger.move([Move(job.name, mask, 0) for mask in masks])
        job.cores -= sum(map(plan.cores.count, masks))
        if not job.present:
            del plan.jobs[job.name]
            plan.settle_owners()
        elif not job.cores:  # the others rest: it waits for cores again
            job.targets.clear()
            job.hold = job.hold_until = None
        elif job.hold is not None:
            job.hold = job.cores
        plan.touch(job)

    def _set_targets(self, targets: Mapping[RankKey, int], counts: Mapping[str, int], reason: str) -> None:
        """Set the targets of all tasks and the numbers of cores of all jobs."""
        plan = self.plan
        moves: list[Move] = []
        before: dict[str, int] = {}
        new = next((name for name, _ in targets if counts[name] and not plan.jobs[name].cores), None)
        event = self.event
        if new is not None and (event.kind, event.job) != ("arrival", new):
            event = replace(event, kind="admission", job=new)
        for (name, rank), mask in targets.items():
            job = plan.jobs[name]
            old = job.targets.setdefault(rank, 0)
            if mask == old:
                continue
            before.setdefault(name, job.planned)
            task = job.ranks[rank]
            if task:
                task.reason = reason if job.cores else "arrival"
            job.targets[rank] = mask
            moves.append(Move(name, old, mask))
        plan.ledger.move(moves)
        for name, planned in before.items():
            self._note(plan.jobs[name], planned, reason, event)
        for name in {name for name, _ in targets}:
            plan.jobs[name].cores = counts[name]
        for name in dict.fromkeys(move.job for move in moves):
            plan.touch(plan.jobs[name])

    def _note(self, job: Job, planned: int, reason: str, event: Event) -> None:
        """Record how the job has changed since `self.event`; the CPUs planned before were `planned` or others."""
        before, last = self._before.setdefault(job.name, (planned, job.last))
        if not before:
            job.last = Change("arrival", self.event, 0)
        else:
            job.last = last if job.planned == before and len(job.ranks) == 1 else Change(reason, event, before)
