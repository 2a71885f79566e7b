# SPDX-License-Identifier: Apache-2.0
"""Pay-off: jobs with contracts, in order of gain per processor time that they need.

The next step that Kale, Kumar and DeSouza announce ("A malleable-job system for timeshared parallel machines", CCGRID
2002), as a greedy rule. A job needs the fewest processors on which it ends by its soft deadline, or all that it can use
if that is too late. Its gain is the value of that end over that of never ending. At each event running and waiting jobs
get the processors they need in order of gain per processor-second, the largest first; a running job has its minimum
before all of them, and a waiting one starts with less than it needs if it still gains by that. The rest is divided
equally up to the maxima.

A job is hopeless when it gains nothing even on all processors that it can use. It is not dropped: a running one has its
minimum and what the others cannot use of the rest, and a waiting one starts, in order of the queue, once no waiting job
can still gain.

The time that a job needs is calculated from its requested time, for its whole remaining run, at each event.
"""

from __future__ import annotations

import numpy as np
from drom.scheduler.interface import (
    MALLEABLE,
    NEVER,
    PENALTY,
    RIGID,
    SOFT,
    Actions,
    Event,
    Floats,
    Ints,
    State,
    allot,
    compilable,
    lean,
)
from drom.scheduler.policies.pool_math import divide, time_on, worth

POOL = True


def decide(state: State, _event: Event, _options: Floats, actions: Actions) -> int:
    """Divide the processors: jobs shrink first, then others start, then others expand."""
    held = state.jobs.held
    members = np.concatenate((state.running, state.queue))
    least, most = ranges(state, members)
    need, gain, density = needs(state, members, least, most)
    share, left = minima(state, members, least)
    paying = np.argsort(-density, kind="mergesort")
    left = serve(state, members, paying, least, need, gain, share, left)
    left = admit_hopeless(members, len(state.running), least, gain, share, left)
    share_rest(share, most, gain, left)
    for i, job in enumerate(members):
        if share[i] < held[job]:
            allot(actions, job, share[i])
    for i, job in enumerate(members):
        if held[job] == 0 and share[i] > 0:
            allot(actions, job, share[i])
    for i, job in enumerate(members):
        if share[i] > held[job] > 0:
            allot(actions, job, share[i])
    return NEVER


@compilable
def ranges(state: State, members: Ints) -> tuple[Ints, Ints]:
    """Return the fewest and most processors that each job may have now: jobs that cannot change keep theirs."""
    jobs = state.jobs
    least, most = jobs.least[members], jobs.most[members]
    for i, job in enumerate(members):
        if jobs.held[job] > 0 and jobs.cls[job] != MALLEABLE:
            least[i] = most[i] = jobs.held[job]
        elif jobs.cls[job] == RIGID:
            least[i] = most[i] = jobs.nodes[job]
    return least, most


@compilable
def needs(state: State, members: Ints, least: Ints, most: Ints) -> tuple[Ints, Ints, Floats]:
    """Return the processors that each job needs, its gain on them, and its gain per processor-second."""
    need, gain, density = most.copy(), np.zeros(len(members), np.int64), np.zeros(len(members))
    for i, job in enumerate(members):
        need[i] = needed(state, job, least[i], most[i])
        gain[i] = gained(state, job, need[i])
        density[i] = gain[i] / (need[i] * time_on(state, job, need[i]))
    return need, gain, density


@lean
def needed(state: State, job: int, least: int, most: int) -> int:
    """Return the fewest processors on which a job ends by its soft deadline; `most` if none are enough."""
    if len(state.contracts) == 0:
        return least
    while least < most:
        middle = (least + most) // 2
        if state.now + time_on(state, job, middle) <= state.contracts[job, SOFT]:
            most = middle
        else:
            least = middle + 1
    return most


@lean
def gained(state: State, job: int, processors: int) -> int:
    """Return the gain of a job with `processors` processors from now to its end, over that of never ending."""
    if len(state.contracts) == 0:
        return 0
    end = state.now + time_on(state, job, processors)
    return int(worth(state.contracts, job, end) + state.contracts[job, PENALTY])


@compilable
def minima(state: State, members: Ints, least: Ints) -> tuple[Ints, int]:
    """Return the processors that each running job has in any case, and how many are left."""
    share, left = np.zeros(len(members), np.int64), state.free
    for i in range(len(state.running)):
        share[i] = min(state.jobs.held[members[i]], least[i])
        left += state.jobs.held[members[i]] - share[i]
    return share, left


@compilable
def serve(  # noqa: PLR0917 - columns by position
    state: State, members: Ints, order: Ints, least: Ints, need: Ints, gain: Ints, share: Ints, left: int
) -> int:
    """Give the jobs that gain the processors they need, in `order`, and return how many are left."""
    for i in order:
        if gain[i] <= 0 or left == 0:
            break
        more = min(left, need[i] - share[i])
        starts = share[i] == 0
        if starts and (more < least[i] or gained(state, members[i], more) <= 0):
            continue
        share[i] += more
        left -= more
    return left


@compilable
def admit_hopeless(  # noqa: PLR0917 - columns by position
    members: Ints, runners: int, least: Ints, gain: Ints, share: Ints, left: int
) -> int:
    """Start jobs that gain nothing, if no job that gains waits, and return how many processors are left."""
    for i in range(runners, len(members)):
        if gain[i] > 0 and share[i] == 0:
            return left
    for i in range(runners, len(members)):
        if share[i] == 0 and least[i] <= left:
            share[i] = least[i]
            left -= least[i]
    return left


@compilable
def share_rest(share: Ints, most: Ints, gain: Ints, left: int) -> None:
    """Divide the rest equally among the jobs that gain, and what they cannot use among the others."""
    for hopeless in (False, True):
        room = np.zeros(len(share), np.int64)
        for i in range(len(share)):
            if share[i] > 0 and (gain[i] <= 0) == hopeless:
                room[i] = most[i] - share[i]
        before = share.sum()
        divide(share, room, left)
        left -= share.sum() - before
