# SPDX-License-Identifier: Apache-2.0
"""The cores that jobs of a batch system have on a node, and the time that they lose to other jobs, over time. Pure.

A job is taken to be as fast as it has cores: with a quarter of those that it could use, it loses three quarters of a
second in each second. Cores that it does not want, or gave up by an order of its own user, are no loss.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.model.core_use import CoreUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drom.agent.model.jobs import Job
    from drom.agent.node.plan import Plan


class Use(NamedTuple):
    """The `cores` that a job has and the part of its speed that it loses (0 to 1); summed up, in seconds of these."""

    cores: CoreUse
    lost: float


NOTHING = Use(CoreUse(), 0.0)


class BatchUse:
    """Sums up what the jobs on a node use. `total` is that of each job until the last update, by its batch name.

    `present` is what they use now. `adopted` are the jobs that were there at the first update, before which they have
    not been seen.
    """

    def __init__(self) -> None:
        self.total: dict[str, Use] = {}
        self.present: dict[str, Use] = {}
        self.adopted: frozenset[str] | None = None
        self._began = self._since = 0.0

    @property
    def seconds(self) -> float:
        """The seconds between the first update and the last one."""
        return self._since - self._began

    def update(self, plan: Plan, now: float) -> None:
        """Add what jobs have used until `now` (seconds of CLOCK_MONOTONIC), and record what they use by `plan`."""
        seconds = now - self._since
        for name, use in self.present.items():
            total = self.total.get(name, NOTHING)
            self.total[name] = Use(total.cores.plus(use.cores, seconds), total.lost + use.lost * seconds)
        self.present, self._since = uses(plan), now
        if self.adopted is None:
            self.adopted = frozenset(self.present)
            self._began = now

    def forget(self, names: Iterable[str]) -> None:
        """Forget jobs."""
        for name in names:
            self.total.pop(name, None)


def uses(plan: Plan) -> dict[str, Use]:
    """Return, for each job of a batch system that has tasks here, what it uses and loses now."""
    jobs_of: dict[str, list[Job]] = defaultdict(list)
    for job in plan.jobs.values():
        if job.batch_job:
            jobs_of[job.batch_job].append(job)
    return {name: Use(_cores(plan, jobs), _loss(plan, jobs)) for name, jobs in jobs_of.items()}


def _cores(plan: Plan, jobs: list[Job]) -> CoreUse:
    count = plan.cores.count
    mine = _union(jobs, lambda job: job.planned)
    owned = _union(jobs, lambda job: plan.ledger.owned.get(job.name, 0))
    lent = owned & plan.ledger.planned & ~plan.cores.whole(mine)
    return CoreUse(count(mine), count(lent), count(mine & ~owned))


def _loss(plan: Plan, jobs: list[Job]) -> float:
    if any(job.hold_by == job.user for job in jobs):
        return 0.0
    cpuset = _union(jobs, plan.cpuset)
    full = min(plan.cores.count(cpuset), sum(plan.view(job).maximum for job in jobs))
    mine = _union(jobs, lambda job: job.planned)
    others = plan.cores.count(cpuset & (plan.ledger.planned | plan.foreign) & ~plan.cores.whole(mine))
    lost = min(full - sum(job.cores for job in jobs), others)
    return max(0, lost) / full if full else 0.0


def _union(jobs: list[Job], mask: Callable[[Job], int]) -> int:
    return functools.reduce(operator.or_, map(mask, jobs))
