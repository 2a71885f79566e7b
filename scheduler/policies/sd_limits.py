# SPDX-License-Identifier: Apache-2.0
"""Correction of the limits of jobs that no longer share nodes (decision D17, an option)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import nodes_of, routine, set_limit

if TYPE_CHECKING:
    from drom.scheduler.interface import Actions, State


@routine
def correct_limits(state: State, actions: Actions) -> bool:
    """Set the limits of jobs that no longer share and have all their cores to the end of their requested work.

    Return whether any limit was longer: the state shows the new end from the next call on.
    """
    jobs, found = state.jobs, False
    for job in state.running:
        if jobs.limit[job] > jobs.requested[job] and jobs.shared[job] == 0 and has_all(state, job):
            limit = jobs.requested[job] - (-jobs.lost[job] // (jobs.nodes[job] * state.cores))
            limit = max(limit, state.now - jobs.start[job] + 1)
            if limit < jobs.limit[job]:
                set_limit(actions, job, limit)
                found = True
    return found


@routine
def has_all(state: State, job: int) -> bool:
    """Return whether a job has all cores of its nodes."""
    least = state.cores
    for node in nodes_of(state, job):
        least = min(least, state.nodes.share[node, 0])
    return bool(least == state.cores)
