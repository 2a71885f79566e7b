# SPDX-License-Identifier: Apache-2.0
"""EASY backfilling in the order of a score: the policy of a module with a function `score` in place of `decide`.

At each call the queue is ordered by falling priority, then by rising score; jobs of equal score keep their order, which
is that of submission, then of number. A score that is no number comes last. The first job that does not fit is the
head: it alone has a reservation, made anew at each call. So a job that is overtaken loses its reservation.

A module with ``FIXED = True`` states that the score of a job does not change while it waits. A simulation then computes
the scores of all jobs once, and makes priorities of their order, in which the queue is kept.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.interface import NEVER, State, compilable, plan
from drom.scheduler.policies.easy import backfill, start_heads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drom.scheduler.interface import Actions, Event, Floats

    Score = Callable[[State, int, Floats], float]
    Decide = Callable[[State, Event, Floats, Actions], int]

OPTIONS = {"backfill": np.inf}
"""How many jobs behind the head may be backfilled, in order; 0: none."""
WORDS = {"backfill": {"all": np.inf}}


def check(options: Mapping[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    most = options["backfill"]
    return "" if most >= 0 and (most == np.inf or most % 1 == 0) else "backfill is a whole number from 0, or all."


@functools.cache
def by_score(score: Score, place: int) -> Decide:
    """Return the policy of a score; `place` is that of `backfill` among its parameters, from the end."""
    score = compilable(score)

    def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
        scores = np.empty(len(state.queue))
        for i in range(len(scores)):
            scores[i] = score(state, state.queue[i], options)
        return start_jobs(state, scores, options[place], actions)

    decide.__module__ = score.__module__
    return decide


@functools.cache
def in_queue_order(place: int) -> Decide:
    """Return the policy of a fixed score, for a queue that is in its order; `place` as above."""

    def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
        return from_head(state, options[place], actions)

    return decide


@functools.cache
def all_scores(score: Score) -> Callable[[State, Floats, Floats], int]:
    """Return a function that computes the scores of all jobs."""
    score = compilable(score)

    def scores(state: State, options: Floats, found: Floats) -> int:
        for job in range(len(found)):
            found[job] = score(state, job, options)
        return 0

    scores.__module__ = score.__module__
    return scores


def start_jobs(state: State, scores: Floats, most: float, actions: Actions) -> int:
    """Start jobs in the order of their scores as `from_head` does.

    The compiler compiles this once for the scores of all users, as that takes longer than the rest of such a policy.
    """
    return from_head(in_order(state, scores), most, actions)


@compilable
def from_head(state: State, most: float, actions: Actions) -> int:
    """Start heads of an ordered queue while they fit, and backfill at most so many jobs behind; return NEVER."""
    head, free = start_heads(state, actions)
    withdraw_plans(state, head, actions)
    backfill(state, head, free, int(min(most, len(state.queue))), actions)
    return NEVER


@compilable
def in_order(state: State, scores: Floats) -> State:
    """Return the state with its queue by falling priority, then by rising score; `scores` are in order of the queue."""
    queue, priority, first = state.queue.copy(), state.jobs.priority, 0
    while first < len(queue):
        last = first + 1
        while last < len(queue) and priority[queue[last]] == priority[queue[first]]:
            last += 1
        queue[first:last] = queue[first:last][np.argsort(scores[first:last], kind="mergesort")]
        first = last
    return State(
        state.now,
        state.free,
        state.cores,
        queue,
        state.running,
        state.jobs,
        state.nodes,
        state.speed,
        state.contracts,
        state.rates,
    )


@compilable
def withdraw_plans(state: State, head: int, actions: Actions) -> None:
    """Withdraw the planned starts of the jobs behind the head, which have no reservation any more."""
    for job in state.queue[head + 1 :]:
        if state.jobs.planned[job] != NEVER:
            plan(actions, job, NEVER)
