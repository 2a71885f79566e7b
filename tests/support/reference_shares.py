# SPDX-License-Identifier: Apache-2.0
"""Equal shares again, slow and plain: core by core, each to the user, and the job of that user, that has least."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.agent.policy.fair_share import JobCores


def shares(jobs: Sequence[JobCores], total: int, cap: int = 0) -> dict[str, int]:
    """Return the cores that each job is entitled to: nobody has less than it keeps, and the rest is shared equally."""
    least = {job.name: job.cores if job.fixed else job.minimum for job in jobs}
    most = {job.name: job.cores if job.fixed else max(job.minimum, job.maximum) for job in jobs}
    users = list(dict.fromkeys(job.user for job in jobs))
    theirs = {user: [job.name for job in jobs if job.user == user] for user in users}
    lower = {user: sum(least[name] for name in theirs[user]) for user in users}
    upper = {user: sum(most[name] for name in theirs[user]) for user in users}
    upper = {user: max(lower[user], min(upper[user], cap or total)) for user in users}
    found: dict[str, int] = {}
    for user, amount in poured(users, lower, upper, total).items():
        names = theirs[user]
        found |= poured(names, {n: least[n] for n in names}, {n: most[n] for n in names}, amount)
    return {job.name: found[job.name] for job in jobs}


def poured(places: Sequence, lower: dict, upper: dict, total: int) -> dict:  # type: ignore[type-arg]
    """Give every place what is its least, then one by one to the first of those that have least and may have more."""
    has = dict(lower)
    for _ in range(total - sum(lower.values())):
        able = [place for place in places if has[place] < upper[place]]
        if not able:
            break
        has[min(able, key=lambda place: has[place])] += 1
    return has
