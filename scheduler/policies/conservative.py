# SPDX-License-Identifier: Apache-2.0
"""Conservative backfilling: every job has a reservation, and no job starts later than its own.

As Mu'alem and Feitelson list it (IEEE TPDS 12(6), 2001), with compression: at each call every reservation, in order of
the queue, is cancelled and made again at the earliest time, which is never later than before. With `depth` only this
many jobs at the head of the queue have reservations, as in MAUI and Slurm; the others wait until they are among these.
If run times are only predicted, and a job exceeds its prediction, reservations cannot be kept: one whose time has
passed no longer counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import NEVER, Actions, Event, Floats, State, lean, plan, start
from drom.scheduler.policies.profile import earliest, profile_of, take

if TYPE_CHECKING:
    from collections.abc import Mapping

OPTIONS = {"depth": 0}
DEPTH = 0


def check(options: Mapping[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    depth = options["depth"]
    return "" if 0 <= depth <= 1e9 and depth % 1 == 0 else f"depth is a whole number from 0, not {depth:g}."


def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
    """Enter the reservations into the profile, move each to the earliest time, and start those that are due."""
    jobs, now, queue, started = state.jobs, state.now, state.queue, False
    if options[DEPTH] > 0:
        queue = queue[: int(options[DEPTH])]
    profile = profile_of(state, 2 * len(queue))
    for job in queue:
        if is_reserved(state, job):
            take(profile, jobs.planned[job], jobs.planned[job] + jobs.requested[job], jobs.nodes[job])
    for job in queue:
        if is_reserved(state, job):
            take(profile, jobs.planned[job], jobs.planned[job] + jobs.requested[job], -jobs.nodes[job])
        begin = earliest(profile, jobs.nodes[job], jobs.requested[job])
        take(profile, begin, begin + jobs.requested[job], jobs.nodes[job])
        if begin == now:
            start(actions, job)
            started = True
        elif begin != jobs.planned[job]:
            plan(actions, job, begin)
    return int(now) if started and len(queue) < len(state.queue) else NEVER


@lean
def is_reserved(state: State, job: int) -> bool:
    """Return whether a waiting job has a reservation that can still be kept."""
    return bool(state.now <= state.jobs.planned[job] < NEVER)
