# SPDX-License-Identifier: Apache-2.0
"""What jobs of Slurm used, by job and by user. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.model.core_use import CoreUse, total_use
from drom.scheduler.slurm.records import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.slurm.records import Job


class JobUse(NamedTuple):
    """What a job used. Times are seconds since 1970; `ended` is None while it runs.

    `cpus` are those that Slurm gave it, on `nodes` nodes; `used` are core-seconds.
    """

    job: str
    user: str
    account: str
    name: str
    nodes: int
    cpus: int
    started: int
    ended: int | None
    used: CoreUse

    def given(self, now: float) -> float:
        """Return the CPU-seconds that Slurm gave the job until now, or until its end."""
        return self.cpus * max(0.0, (now if self.ended is None else self.ended) - self.started)


class UserUse(NamedTuple):
    """What all `jobs` of a user used: CPU-seconds that Slurm gave, and core-seconds."""

    user: str
    jobs: int
    given: float
    used: CoreUse


def job_uses(jobs: Iterable[Job], now: float) -> list[JobUse]:
    """Return what the jobs used until `now`, in seconds since 1970, or until their ends.

    Jobs of which no agent has written anything into the comment are left out.
    """
    found = []
    for job in jobs:
        has_ended = bool(job.states & ENDED)
        if job.started is None or not (job.runs or has_ended):
            continue
        ended = job.ends if has_ended else None
        if used := total_use(job.admin_comment, job.nodes, now if ended is None else ended):
            about = (job.user, job.account, job.name, len(job.nodes), job.cpus, job.started)
            found.append(JobUse(job.identifier, *about, ended, used))
    return found


def by_user(uses: Iterable[JobUse], now: float) -> list[UserUse]:
    """Return what each user's jobs used, those with the most core-seconds first."""
    of_user: dict[str, list[JobUse]] = defaultdict(list)
    for use in uses:
        of_user[use.user].append(use)
    rows = [
        UserUse(user, len(mine), sum(use.given(now) for use in mine), total(use.used for use in mine))
        for user, mine in of_user.items()
    ]
    return sorted(rows, key=lambda row: (-row.used.held, row.user))


def total(uses: Iterable[CoreUse]) -> CoreUse:
    """Return the sum of core-seconds."""
    return CoreUse(*map(sum, zip(CoreUse(), *uses, strict=True)))
