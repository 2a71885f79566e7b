# SPDX-License-Identifier: Apache-2.0
"""Dynamic equipartition: all jobs that fit with their minima run, and share what is left equally, up to their maxima.

The policy of Kale, Kumar and DeSouza, "A malleable-job system for timeshared parallel machines" (CCGRID 2002). At each
submission and end every waiting job, in order, is let in if the sum of the minima of all that run does not exceed the
processors (first fit). Each has its minimum; the rest is divided equally among those below their maximum, again until
none is left. What cannot be divided goes, a processor each, to those that started first. Shrinks come before starts,
and those before expansions, so that a job never waits for processors that another one still has.

A job that runs keeps its minimum whoever comes. Where minima grow while jobs run, those that started first are served
first, and a job that cannot have its new minimum keeps what it has of it.
"""

from __future__ import annotations

import numpy as np

from scheduler.interface import MALLEABLE, NEVER, Actions, Event, Floats, Ints, State, allot, compilable

POOL = True


def decide(state: State, _event: Event, _options: Floats, actions: Actions) -> int:
    """Let in whom the minima allow, divide the rest, and say who shrinks, starts and expands, in that order."""
    held, runners = state.jobs.held, len(state.running)
    members, share, room = admitted(state)
    spare = state.free - share.sum()
    for job in state.running:
        spare += held[job]
    divide(share, room, spare)
    for i in range(runners):
        if share[i] < held[members[i]]:
            allot(actions, members[i], share[i])
    for i in range(runners, len(members)):
        allot(actions, members[i], share[i])
    for i in range(runners):
        if share[i] > held[members[i]]:
            allot(actions, members[i], share[i])
    return NEVER


@compilable
def admitted(state: State) -> tuple[Ints, Ints, Ints]:
    """Return who is to run, running jobs first; what each of them has at least; and how much more it may have."""
    jobs, runners = state.jobs, len(state.running)
    members = np.concatenate((state.running, state.queue))
    share, room = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
    left = state.free
    for i in range(runners):
        held = jobs.held[members[i]]
        resizable = jobs.cls[members[i]] == MALLEABLE
        share[i] = min(held, jobs.least[members[i]]) if resizable else held
        left += held - share[i]
    for i in range(runners):
        job = members[i]
        if jobs.cls[job] == MALLEABLE:
            more = min(left, jobs.least[job] - share[i])
            share[i] += more
            left -= more
        room[i] = max(0, jobs.most[job] - share[i]) if jobs.cls[job] == MALLEABLE else 0
    count = runners
    for job in state.queue:
        if left == 0:
            break
        if jobs.least[job] <= left:
            members[count], share[count], room[count] = job, jobs.least[job], jobs.most[job] - jobs.least[job]
            left -= jobs.least[job]
            count += 1
    return members[:count], share[:count], room[:count]


@compilable
def divide(share: Ints, room: Ints, spare: int) -> None:
    """Add `spare` processors to the shares, equally as far as their `room` allows; earlier ones have the remainder."""
    while spare > 0:
        takers = 0
        for more in room:
            takers += more > 0
        if takers == 0:
            return
        equal = max(1, spare // takers)
        for i in range(len(share)):
            more = min(equal, room[i], spare)
            share[i] += more
            room[i] -= more
            spare -= more
