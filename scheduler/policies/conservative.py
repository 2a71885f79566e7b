# SPDX-License-Identifier: Apache-2.0
"""Conservative backfilling: every job has a reservation, and no job is moved behind its own.

As Mu'alem and Feitelson list it (IEEE TPDS 12(6), 2001), with compression: at each call every reservation, in order of
the queue, is given up and made again at the earliest time, which is never later than before.
"""

from __future__ import annotations

from scheduler.interface import NEVER, Actions, Event, Floats, State, plan, start
from scheduler.profile import earliest, profile_of, take


def decide(state: State, _event: Event, _options: Floats, actions: Actions) -> int:
    """Put the reservations into the profile, then move each to the earliest time; start those whose time is now."""
    jobs, now = state.jobs, state.now
    profile = profile_of(state, 2 * len(state.queue))
    for job in state.queue:
        if jobs.planned[job] != NEVER:
            take(profile, jobs.planned[job], jobs.planned[job] + jobs.requested[job], jobs.nodes[job])
    for job in state.queue:
        if jobs.planned[job] != NEVER:
            take(profile, jobs.planned[job], jobs.planned[job] + jobs.requested[job], -jobs.nodes[job])
        begin = earliest(profile, jobs.nodes[job], jobs.requested[job])
        take(profile, begin, begin + jobs.requested[job], jobs.nodes[job])
        if begin == now:
            start(actions, job)
        elif begin != jobs.planned[job]:
            plan(actions, job, begin)
    return NEVER
