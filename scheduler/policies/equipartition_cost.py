# SPDX-License-Identifier: Apache-2.0
"""Which changes of processors are worth their cost: for `equipartition` with a cost.

Given are the shares of equipartition. Running jobs keep what they have, unless a change is expected to lower the sum of
response times. With left(n), the time that a job still takes on n processors, and its speed s(n):

* Growing from p to q makes it end later by cost + left(q) - left(p), which has to be below 0.
* Shrinking from p to q for a job that starts, and then runs for d, makes it end later by the cost and by
  min(left(q) - left(p), d (1 - s(q) / s(p))); q of all P processors are idle for the cost, and for each of them the w
  waiting jobs wait longer by cost q / P. Jobs shrink to their shares, those that give most first, if all this together
  is less than the wait of the starting job for the ends of others.

Free processors go to starting jobs, then to running ones.
"""

from __future__ import annotations

import numpy as np
from drom.scheduler.interface import MALLEABLE, Ints, State, compilable, lean
from drom.scheduler.policies.pool_math import divide, time_on


@compilable
def profitable_changes(state: State, members: Ints, target: Ints, cost: float) -> Ints:
    """Return the processors of each job, 0 if it does not start; `target` are the shares, running jobs come first."""
    jobs, runners = state.jobs, len(state.running)
    share, free = must(state, members, target)
    for i in range(runners, len(members)):
        if free < jobs.least[members[i]]:
            free += room_for(state, members, target, share, free, i, cost)
        if free >= jobs.least[members[i]]:
            share[i] = min(target[i], free)
            free -= share[i]
    room = np.zeros(len(members), np.int64)
    for i in range(runners, len(members)):
        room[i] = jobs.most[members[i]] - share[i] if share[i] > 0 else 0
    before = share.sum()
    divide(share, room, free)
    grow(state, members, share, free - (share.sum() - before), cost)
    return share


@compilable
def must(state: State, members: Ints, target: Ints) -> tuple[Ints, int]:
    """Return the processors of each job after the changes that its range requires, and how many are free then."""
    jobs, share, free = state.jobs, np.zeros(len(members), np.int64), state.free
    for i in range(len(state.running)):
        share[i] = jobs.held[members[i]]
        if share[i] > jobs.most[members[i]] and target[i] < share[i]:
            free += share[i] - target[i]
            share[i] = target[i]
    for i in range(len(state.running)):
        if share[i] < jobs.least[members[i]] and target[i] > share[i]:
            more = min(free, target[i] - share[i])
            share[i] += more
            free -= more
    return share, free


@compilable
def room_for(  # noqa: PLR0917 - columns by position
    state: State, members: Ints, target: Ints, share: Ints, free: int, newcomer: int, cost: float
) -> int:
    """Shrink jobs so that a waiting one can start, if that is worth it; return how many processors they give."""
    wanted, harm, given = state.jobs.least[members[newcomer]] - free, 0.0, 0
    meanwhile = time_on(state, members[newcomer], target[newcomer])
    shrunk = share.copy()
    while given < wanted:
        one = np.argmax(shrunk[: len(state.running)] - target[: len(state.running)]) if len(state.running) > 0 else 0
        surplus = shrunk[one] - target[one]
        if len(state.running) == 0 or surplus <= 0:
            return 0
        all_wait = len(state.queue) * cost * target[one] / len(state.nodes.up)
        harm += cost + all_wait + later(state, members[one], shrunk[one], target[one], meanwhile)
        shrunk[one] = target[one]
        given += surplus
    if harm >= expected_wait(state, members, share, wanted):
        return 0
    share[:] = shrunk
    return int(given)


@lean
def later(state: State, job: int, before: int, after: int, meanwhile: int) -> float:
    """Return how much later a job ends with fewer processors for `meanwhile` seconds, or until its own end."""
    most = time_on(state, job, after) - time_on(state, job, before)
    return float(min(most, meanwhile * (1 - state.speed[after] / state.speed[before])))


@compilable
def expected_wait(state: State, members: Ints, share: Ints, wanted: int) -> int:
    """Return how long it takes until `wanted` processors come free as jobs end."""
    ends = np.zeros(len(members), np.int64)
    for i, job in enumerate(members):
        if share[i] > 0:
            ends[i] = time_on(state, job, share[i])
    for i in np.argsort(ends, kind="mergesort"):
        wanted -= share[i]
        if wanted <= 0:
            return int(ends[i])
    return int(ends.sum())


@compilable
def grow(state: State, members: Ints, share: Ints, free: int, cost: float) -> None:
    """Divide free processors equally among the running jobs that end earlier with their new number."""
    room = np.zeros(len(members), np.int64)
    for i in range(len(state.running)):
        if state.jobs.cls[members[i]] == MALLEABLE and share[i] == state.jobs.held[members[i]]:
            room[i] = max(0, state.jobs.most[members[i]] - share[i])
    while free > 0 and room.sum() > 0:
        trial, left = share.copy(), room.copy()
        divide(trial, left, free)
        refused = False
        for i in range(len(state.running)):
            if room[i] > 0 and not gains(state, members[i], share[i], trial[i], cost):
                room[i] = 0
                refused = True
        if not refused:
            share[:] = trial
            return


@lean
def gains(state: State, job: int, before: int, after: int, cost: float) -> bool:
    """Return whether a job ends earlier with more processors."""
    return bool(after > before and cost + time_on(state, job, after) < time_on(state, job, before))
