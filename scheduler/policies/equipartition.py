# SPDX-License-Identifier: Apache-2.0
"""Dynamic equipartition: all jobs that fit with their minima run, and share the rest equally, up to their maxima.

The policy of Kale, Kumar and DeSouza, "A malleable-job system for timeshared parallel machines" (CCGRID 2002). At each
submission and end every waiting job, in order, is admitted if the sum of the minima of all admitted jobs does not
exceed the processors (first fit). Each has its minimum; the rest is divided equally among those below their maximum,
again until none is left. The indivisible remainder goes, a processor each, to the jobs that started first. Shrinks come
before starts, and those before expansions, so that a job never waits for processors that another one still has.

A running job keeps its minimum whichever jobs arrive. If minima grow while jobs run, the jobs that started first are
served first, and a job that cannot have its new minimum keeps what it has of it.

The paper's policy ignores the cost of a change. With `cost` above 0, the assumed cost of a change for a job, only
changes that are worth it are made (`equipartition_cost`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.interface import MALLEABLE, NEVER, Actions, Event, Floats, Ints, State, allot, compilable
from drom.scheduler.policies.equipartition_cost import profitable_changes
from drom.scheduler.policies.pool_math import divide

if TYPE_CHECKING:
    from collections.abc import Mapping

POOL = True
OPTIONS = {"cost": 0.0}
"""Seconds that a change of processors is taken to cost a job; 0: all changes are made."""
COST = 0


def check(options: Mapping[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    return "" if 0 <= options["cost"] < math.inf else "cost is a number of seconds of at least 0."


def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
    """Admit jobs while their minima fit, and divide the rest. Shrinking comes first, then starts, then expansion."""
    held, runners = state.jobs.held, len(state.running)
    members, share, room = admitted(state)
    spare = state.free - share.sum()
    for job in state.running:
        spare += held[job]
    divide(share, room, spare)
    if options[COST] > 0:
        share = profitable_changes(state, members, share, options[COST])
    for i in range(runners):
        if share[i] < held[members[i]]:
            allot(actions, members[i], share[i])
    for i in range(runners, len(members)):
        if share[i] > 0:
            allot(actions, members[i], share[i])
    for i in range(runners):
        if share[i] > held[members[i]]:
            allot(actions, members[i], share[i])
    return NEVER


@compilable
def admitted(state: State) -> tuple[Ints, Ints, Ints]:
    """Return the jobs that are to run, running ones first, their minima, and how many more processors each may have."""
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
