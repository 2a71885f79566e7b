# SPDX-License-Identifier: Apache-2.0
"""The areas of a node: jobs that compete for the same cores. Pure.

A cpuset is the CPUs to which the kernel confines a job, as a batch system or a container set them. Jobs whose cpusets
do not overlap, directly or through those of others, are in different areas and never affect each other. Without
cpusets the whole node is one area.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.policy import fair_share

if TYPE_CHECKING:
    from drom.agent.model.jobs import Job
    from drom.agent.node.plan import Plan
    from drom.agent.policy.fair_share import JobCores


class Area:
    """The jobs of `plan` with these `names` (None: all), and the CPUs in `mask`, which are those of their cpusets."""

    def __init__(self, plan: Plan, mask: int, names: frozenset[str] | None = None) -> None:
        self.plan = plan
        self.mask = mask
        self._names = names

    def has(self, job: Job) -> bool:
        """Return whether a job is in this area."""
        return self._names is None or job.name in self._names

    def jobs(self) -> list[Job]:
        """Return the jobs in the order of arrival."""
        return [job for job in self.plan.jobs.values() if self.has(job)]

    def total(self, leaving: int = 0) -> int:
        """Return how many cores are shared: the usable ones, and others on which jobs stay.

        CPUs in `leaving` are those whose tasks do not have to stay.
        """
        plan = self.plan
        stay = plan.ledger.planned & plan.avoided & ~leaving
        return plan.cores.count(plan.usable & self.mask) + plan.cores.count(stay & self.mask)

    def running(self) -> list[JobCores]:
        """Return the jobs that have cores, as the policy sees them."""
        views = self.plan.running()
        return views if self._names is None else [view for view in views if view.name in self._names]

    def running_at(self, now: float) -> list[JobCores]:
        """Return the jobs that have cores, as the policy sees them at `now`, marked if they rest or have rested."""
        jobs = self.running()
        if not self.plan.rules.residence:
            return jobs
        timed = [self.plan.jobs[name] for name in self.plan.timed.members()]
        rests = {job.name: job.rest_until for job in timed if job.rest_until is not None}
        return [replace(j, rests=rests[j.name] > now, due=rests[j.name] <= now) if j.name in rests else j for j in jobs]

    def growable_jobs(self) -> list[str]:
        """Return the jobs that could use another core, may have it, and are not resting."""
        running, total, cap = self.running(), self.total(), self.plan.cap
        rooms = {user: fair_share.user_headroom(user, running, total, cap) for user in {job.user for job in running}}
        able = [job for job in running if not job.fixed and job.cores < job.maximum]
        return [job.name for job in able if rooms[job.user] and self.plan.jobs[job.name].rest_until is None]

    def owed_to(self) -> Counter[str]:
        """Return, for each job, how many free cores it owns."""
        plan = self.plan
        free = plan.cores.numbers(plan.usable & self.mask & ~plan.cores.whole(plan.ledger.planned))
        return Counter(owner for core in free if (owner := plan.ledger.owners[core]) is not None)

    def reclaimable_cores(self, now: float) -> int:
        """Return how many free cores are kept for resting owners: no job may grow into them."""
        owed = self.owed_to()
        if not owed:
            return 0
        running = self.running_at(now)
        after_rest = [replace(job, rests=not job.rests) if job.name in owed else job for job in running]
        cores = fair_share.return_to_owners(after_rest, owed, self.total(), self.plan.cap)
        return sum(cores[job.name] - job.cores for job in after_rest)


def areas(plan: Plan) -> list[Area]:
    """Return the areas of a plan, each with at least one job unless it is the whole node."""
    if not plan.confined.members():
        return [Area(plan, plan.cores.all)]
    found: list[tuple[int, frozenset[str]]] = []
    for job in plan.jobs.values():
        mask, names = plan.cpuset(job), frozenset((job.name,))
        near = [one for one in found if one[0] & mask]
        for other, theirs in near:
            mask, names = mask | other, names | theirs
        found = [*(one for one in found if one not in near), (mask, names)]
    return [Area(plan, mask, names) for mask, names in found]


def area_of(job: Job, plan: Plan) -> Area:
    """Return the area of a job of the plan."""
    return next(area for area in areas(plan) if area.has(job))
