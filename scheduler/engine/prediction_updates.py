# SPDX-License-Identifier: Apache-2.0
"""Predicted run times in the event loop: made at submission, raised when a job runs for longer.

As Tsafrir, Etsion and Feitelson do it (IEEE TPDS 18(6), 2007): a prediction never exceeds the requested time, and no
job is killed because of it. When a job has run for as long as predicted, the prediction is raised by the first of
STEPS, the next time by the second, and so on. A job ends when its work is done, or when it has had its requested time
at full speed.

Predictions are raised right before a policy is called: only the policy reads them, and their values do not depend on
when they are raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.node_shares import full_rate, set_limit, update_ends
from drom.scheduler.engine.state import RUNNERS, SUBMISSIONS, UNLIMITED
from drom.scheduler.interface import lean

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Jobs
    from drom.scheduler.predictors.knowledge import RuntimeKnowledge

MINUTE, HOUR = 60, 3600
STEPS = (
    MINUTE,
    5 * MINUTE,
    15 * MINUTE,
    30 * MINUTE,
    HOUR,
    2 * HOUR,
    5 * HOUR,
    10 * HOUR,
    20 * HOUR,
    50 * HOUR,
    100 * HOUR,
)
"""The last one again and again."""


@lean
def predict_submitted(
    world: World, predict: Callable[[Jobs, RuntimeKnowledge, int], int], first: int, now: int
) -> None:
    """Predict the run times of the new jobs, from `first` on; raise predictions that have passed."""
    jobs, known = world.jobs, world.foresight
    for job in range(first, world.scalars[SUBMISSIONS]):
        expected = max(1, min(predict(jobs, known, job), known.allowed[job]))
        jobs.requested[job], jobs.limit[job] = expected, expected
    while world.scalars[RUNNERS] > 0 and jobs.ends[world.running[0]] <= now:
        raise_limit(world, world.running[0], now)
    update_ends(world, now)


@lean
def raise_limit(world: World, job: int, now: int) -> None:
    """Raise the prediction of a running job until its predicted end is in the future."""
    jobs, known = world.jobs, world.foresight
    limit, most = jobs.limit[job], latest_end(world, job)
    while jobs.start[job] + limit <= now:
        limit = min(limit + STEPS[min(known.raised[job], len(STEPS) - 1)], most)
        known.raised[job] += 1
    set_limit(world, job, limit, now)


@lean
def latest_end(world: World, job: int) -> int:
    """Return how long a job can take from its start, at its present speed."""
    full = full_rate(world, job)
    if world.rate[job] != full:
        return UNLIMITED
    return int(world.foresight.allowed[job] - (-world.jobs.lost[job] // full))


@lean
def record_end(world: World, job: int, now: int) -> None:
    """Record for the predictor that a job has ended."""
    known, lost = world.foresight, world.jobs.lost[job] // full_rate(world, job)
    known.took[job] = now - world.jobs.start[job] - lost
    known.gone[known.counts[0]] = job
    known.counts[0] += 1
