# SPDX-License-Identifier: Apache-2.0
"""The mean of the last two run times of the user, in order of their ends; until there are two, the requested time.

The predictor of Tsafrir, Etsion and Feitelson, "Backfilling using system-generated predictions rather than user runtime
estimates" (IEEE TPDS 18(6), 2007).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import NOBODY, compilable

if TYPE_CHECKING:
    from drom.scheduler.interface import Jobs
    from drom.scheduler.predictors.knowledge import RuntimeKnowledge

COUNT, LAST, BEFORE = range(3)
"""Columns of `RuntimeKnowledge.by_user`: how many jobs have ended, and the run times of the last two."""


def predict(jobs: Jobs, known: RuntimeKnowledge, job: int) -> int:
    """Return the expected run time of a job that is submitted now."""
    learn(known)
    user = known.user[job]
    if user == NOBODY or known.by_user[user, COUNT] < 2:
        return int(jobs.requested[job])
    return int((known.by_user[user, LAST] + known.by_user[user, BEFORE]) / 2)


@compilable
def learn(known: RuntimeKnowledge) -> None:
    """Record the run times of the jobs that have ended since the last call."""
    for i in range(known.counts[1], known.counts[0]):
        job = known.gone[i]
        user = known.user[job]
        if user != NOBODY:
            known.by_user[user, BEFORE] = known.by_user[user, LAST]
            known.by_user[user, LAST] = known.took[job]
            known.by_user[user, COUNT] += 1
    known.counts[1] = known.counts[0]
