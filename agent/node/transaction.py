# SPDX-License-Identifier: Apache-2.0
"""Turn new counts into a new plan: the jobs as the policy sees them, and targets and owners after its decision.

Every change is all or nothing: a method that raises `Refused` leaves the plan as it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model import layouts
from drom.agent.model.jobs import Change, Event, Job, Task
from drom.agent.node.ledger import Move
from drom.agent.node.mapping import CoreMapping
from drom.agent.placement.ranks import NoPlacement
from drom.agent.policy import demand
from drom.agent.policy.fair_share import JobCores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from drom.agent.model.cores import Cores
    from drom.agent.node.ledger import Owner
    from drom.agent.placement.ranks import Key, Place
    from drom.agent.policy.site_rules import SiteRules


class PlacementRefused(Refused):
    """Raised when counts cannot be placed; `job` is the job with the strict layout that prevents it, if one does."""

    def __init__(self, why: NoPlacement) -> None:
        super().__init__(why.reason)
        self.job = why.job


class PlanTransaction(CoreMapping):
    """Jobs by name in the order of arrival, their targets, and the owner of each core.

    `touched` collects the slots of tasks of which anything that a registry stores may have changed, until a caller
    empties it. `memory` is the memory of the node (bytes), 0 if unknown.
    """

    def __init__(self, cores: Cores, place: Place, rules: SiteRules, memory: int = 0) -> None:
        super().__init__(cores, place)
        self.rules = rules
        self.memory = memory
        self.touched: set[int] = set()
        self.timed: set[str] = set()
        """The names of all jobs that have times, and perhaps of others."""
        self._views: dict[str, JobCores] = {}
        """The jobs that have cores, in the order of arrival, as the policy saw them at its last call."""
        self._outdated: set[str] = set()
        self._reasons: dict[str, str] | None = None
        """What each waiting job waits for, by name; None if that must be determined anew."""
        self.event = Event("start", "", 0.0)

    @property
    def event(self) -> Event:
        """The current event of the node. However many plans follow from it, it counts as one change of a job."""
        return self._event

    @event.setter
    def event(self, event: Event) -> None:
        self._event = event
        self._before: dict[str, tuple[int, Change | None]] = {}

    # --- as the policy sees it ------------------------------------------------------------------------------------

    def most(self, job: Job) -> int:
        """Return the most cores that the job can use on this node."""
        least, most = job.task_min * len(job.ranks), job.task_max * len(job.ranks)
        return max(least, min(most, layouts.most(job.layout, self.cores.sizes)))

    @property
    def cap(self) -> int:
        """The cores that the jobs of one user may have together, 0 for any number."""
        return self.cores.within(self.rules.max_cpus_per_user)

    def total(self, leaving: int = 0) -> int:
        """Return how many cores are shared: the usable ones, and others on which jobs stay.

        CPUs in `leaving` are those whose tasks do not have to stay.
        """
        return self.cores.count(self.usable) + self.cores.count(self.ledger.planned & self.avoided & ~leaving)

    def running(self) -> list[JobCores]:
        """Return the jobs that have cores, as the policy sees them."""
        outdated, self._outdated = self._outdated, set()
        now = {name: self.view(self.jobs[name]) for name in outdated if name in self.jobs and self.jobs[name].cores}
        for name in outdated - now.keys():
            self._views.pop(name, None)
        if now.keys() <= self._views.keys():
            self._views |= now
        else:
            views = self._views | now
            self._views = {name: views[name] for name in self.jobs if name in views}
        return list(self._views.values())

    def running_at(self, now: float) -> list[JobCores]:
        """Return the jobs that have cores, as the policy sees them at `now`, marked if they rest or have rested."""
        jobs = self.running()
        if not self.rules.residence:
            return jobs
        timed = [self.jobs[name] for name in self.timed if name in self.jobs]
        rests = {job.name: job.rest_until for job in timed if job.rest_until is not None}
        return [replace(j, rests=rests[j.name] > now, due=rests[j.name] <= now) if j.name in rests else j for j in jobs]

    def touch(self, job: Job) -> None:
        """Record that the job or its tasks have changed."""
        self._outdated.add(job.name)
        self._reasons = None
        self.restless.add(job.name)
        if job.layout.kind != "default":
            self.laid_out.add(job.name)
        self.timed.add(job.name)
        self.touched.update(task.slot for task in job.present)

    def _fixed(self, job: Job) -> bool:
        """Return whether a job neither lends nor grows, wherever it is."""
        return bool(job.cores) and (job.job_class != "malleable" or job.hold is not None or job.pinned)

    def view(self, job: Job) -> JobCores:
        """Return the job as the policy sees it."""
        tasks = len(job.ranks)
        fixed = self._fixed(job) or bool(job.planned & self.avoided)
        most = min(self.most(job), demand.max_useful_cores(job, self.cores))
        keeps = demand.protected_cores(job, self.cores, self.rules.max_min)
        return JobCores(job.name, job.user, tasks, job.task_min * tasks, most, job.cores, fixed, keeps=keeps)

    # --- a new plan -----------------------------------------------------------------------------------------------

    def _replan_as_far(self, decide: Callable[[list[JobCores]], dict[str, int]], reason: str, now: float) -> None:
        """Replan with the counts of `decide`; a job that strict layouts leave no room to grow to its count gets fewer.

        If no counts can be reached, as while an order for exact CPUs is in progress, the plan stays as it is.
        """
        limits: dict[str, int] = {}
        while True:
            running = [replace(j, maximum=limits[j.name]) if j.name in limits else j for j in self.running_at(now)]
            counts = decide(running)
            try:
                self._replan(counts, reason, now)
            except PlacementRefused as misplaced:
                strict = [job for job in running if self.jobs[job.name].layout.strict]
                growth = {job.name: counts[job.name] - job.cores for job in strict if counts[job.name] > job.cores}
                if not misplaced.job or not growth:
                    return
                name = misplaced.job if misplaced.job in growth else max(growth, key=lambda name: growth[name])
                limits[name] = counts[name] - 1
            else:
                return

    def _replan(self, counts: dict[str, int], reason: str, now: float, pins: Mapping[Key, int] | None = None) -> None:
        """Place the numbers of cores in `counts` and make that the plan, or raise `Refused` and change nothing."""
        pins = pins or {}
        others = self.other_jobs(counts)
        if not pins and not others and self.layout_is_satisfied():
            return
        targets = self.place_all(counts, pins, others)
        if isinstance(targets, NoPlacement):
            raise PlacementRefused(targets)
        for (name, rank), mask in pins.items():
            task = self.jobs[name].ranks[rank]
            if task:
                task.pin = mask
                self.touch(self.jobs[name])
        if self.rules.residence:
            for job in [self.jobs[name] for name, cores in counts.items() if self.jobs[name].cores not in (0, cores)]:
                job.rest_until = now + self.rules.residence
        self._set_targets(targets, counts, reason)
        self.settle_owners()

    def optimise_layout(self, job: Job, ranks: dict[int, Task | None]) -> None:
        """Share the cores of a job among new ranks. Raises `Refused` with nothing changed."""
        before, job.ranks = job.ranks, ranks
        self.touch(job)
        counts = {other.name: other.cores for other in self.jobs.values() if other.cores}
        pins = {(job.name, rank): 0 for rank in ranks}
        if job.planned & self.avoided:
            pins = self.divide(job, pins) or pins
        targets = self.place_all(counts, pins, {job.name})
        if isinstance(targets, NoPlacement):
            job.ranks = before
            self.touch(job)
            raise PlacementRefused(targets)
        gone = [job.targets.pop(rank) for rank in before.keys() - ranks.keys()]
        self.ledger.move([Move(job.name, mask, 0) for mask in gone])
        self._set_targets(targets, counts, "arrival")
        self.settle_owners()

    def _set_targets(self, targets: Mapping[Key, int], counts: Mapping[str, int], reason: str) -> None:
        """Set the targets of all tasks and the numbers of cores of all jobs."""
        moves: list[Move] = []
        before: dict[str, int] = {}
        new = next((name for name, _ in targets if not self.jobs[name].cores), None)
        event = self.event
        if new is not None and (event.kind, event.job) != ("arrival", new):
            event = replace(event, kind="admission", job=new)
        for (name, rank), mask in targets.items():
            job = self.jobs[name]
            old = job.targets.get(rank, 0)
            if mask == old:
                continue
            before.setdefault(name, job.planned)
            task = job.ranks[rank]
            if task:
                task.reason = reason if job.cores else "arrival"
            job.targets[rank] = mask
            moves.append(Move(name, old, mask))
        self.ledger.move(moves)
        for name, planned in before.items():
            self._note(self.jobs[name], planned, reason, event)
        for name in {name for name, _ in targets}:
            self.jobs[name].cores = counts[name]
        for name in dict.fromkeys(move.job for move in moves):
            self.touch(self.jobs[name])

    def _note(self, job: Job, planned: int, reason: str, event: Event) -> None:
        """Record how the job has changed since `self.event`; the CPUs planned before were `planned` or others."""
        before, last = self._before.setdefault(job.name, (planned, job.last))
        if not before:
            job.last = Change("arrival", self.event, 0)
        else:
            job.last = last if job.planned == before and len(job.ranks) == 1 else Change(reason, event, before)

    def adopt(self, owners: Sequence[Owner]) -> None:
        """Take over the present targets of the jobs, and the owner of each core."""
        self.ledger.move([Move(job.name, 0, target) for job in self.jobs.values() for target in job.targets.values()])
        self.ledger.own(dict(enumerate(owners)))
        self.settle_owners()
        for job in self.jobs.values():
            self.touch(job)

    def _has_cores(self, name: Owner) -> bool:
        job = self.jobs.get(name or "")
        return job is not None and bool(job.cores)

    def settle_owners(self) -> None:
        """Update the owners from the planned holders; avoided cores without a holder lose their owner."""
        changed = self.ledger.settle(self._has_cores)
        if idle := self.avoided & ~self.cores.whole(self.ledger.planned):
            changed |= self.ledger.own(dict.fromkeys(self.cores.numbers(idle)))
        for name in changed:
            self.touch(self.jobs[name])
