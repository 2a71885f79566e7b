# SPDX-License-Identifier: Apache-2.0
"""The cores that are left to jobs of a batch system that run no program under drom. Pure.

Such a foreign job keeps the cores that the batch system has given to it alone, and an equal share of those that it has
given to others as well. Nothing can take cores from a foreign job, so the other jobs of the batch system get at least
their minimum within their cpusets, where they then run beside it, as the batch system has decided.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.agent.node.plan import Plan


def cores_of_foreign_jobs(plan: Plan, foreign: Mapping[str, int]) -> int:
    """Return the mask of the whole cores that are left to the `foreign` jobs, given the OS CPUs of each by its name.

    Of cores that they share with others, those on which no job is planned are preferred, and then the last ones.
    """
    sharers = [job for job in plan.jobs.values() if job.batch_job]
    regions: dict[tuple[int, frozenset[str]], list[int]] = defaultdict(list)
    for core in reversed(plan.cores.masks):
        theirs = sum(1 for cpus in foreign.values() if cpus & core)
        if theirs:
            regions[theirs, frozenset(job.batch_job for job in sharers if plan.cpuset(job) & core)].append(core)
    left = 0
    for (theirs, others), cores in regions.items():
        order = sorted(cores, key=lambda core: bool(core & plan.ledger.planned))
        left |= sum(order[: len(cores) * theirs // (theirs + len(others))])
    for job in sharers:
        cpuset, least = plan.cpuset(job), job.least
        for core in plan.cores:
            if plan.cores.count(cpuset & ~left) >= least:
                break
            left &= ~(core & cpuset)
    return left
