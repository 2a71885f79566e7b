# SPDX-License-Identifier: Apache-2.0
"""The time that jobs of a batch system lose because other jobs have some of their cores. Pure.

A job is taken to be as fast as it has cores: with a quarter of those that it could use, it loses three quarters of a
second in each second. Cores that it does not want, or gave up by an order of its own user, are no loss.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drom.agent.model.jobs import Job
    from drom.agent.node.plan import Plan


class LostTime:
    """Integrates what the jobs on a node lose. `seconds` are those that each has lost, by the name of the batch job."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._since = 0.0

    def update(self, plan: Plan, now: float) -> None:
        """Record what jobs have lost until `now` (seconds of CLOCK_MONOTONIC), and what they lose by `plan` later."""
        for name, rate in self._rates.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + rate * (now - self._since)
        self._rates, self._since = loss_rates(plan), now


def loss_rates(plan: Plan) -> dict[str, float]:
    """Return, for each job of a batch system that has tasks here, the part of its speed that it loses (0 to 1)."""
    jobs_of: dict[str, list[Job]] = defaultdict(list)
    for job in plan.jobs.values():
        if job.batch_job:
            jobs_of[job.batch_job].append(job)
    return {name: _loss(plan, jobs) for name, jobs in jobs_of.items()}


def _loss(plan: Plan, jobs: list[Job]) -> float:
    if any(job.hold_by == job.user for job in jobs):
        return 0.0
    fence = functools.reduce(operator.or_, (plan.fence(job) for job in jobs))
    full = min(plan.cores.count(fence), sum(plan.view(job).maximum for job in jobs))
    mine = functools.reduce(operator.or_, (job.planned for job in jobs))
    others = plan.cores.count(fence & (plan.ledger.planned | plan.foreign) & ~plan.cores.whole(mine))
    lost = min(full - sum(job.cores for job in jobs), others)
    return max(0, lost) / full if full else 0.0
