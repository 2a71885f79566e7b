# SPDX-License-Identifier: Apache-2.0
"""The remaining times and work of jobs of a pool, by their requested times."""

from __future__ import annotations

from drom.scheduler.interface import RUNNING, State, lean


@lean
def time_on(state: State, job: int, processors: int) -> int:
    """Return how many seconds a job is expected to take on this many processors, at least one."""
    return int(max(1, -(-work_left(state, job) // state.speed[processors])))


@lean
def work_left(state: State, job: int) -> int:
    """Return the expected remaining work of a job, in the unit of `state.speed`."""
    jobs = state.jobs
    full = state.speed[jobs.nodes[job]]
    if jobs.state[job] != RUNNING:
        return int(jobs.requested[job] * full)
    lost = jobs.lost[job] + (full - state.speed[jobs.held[job]]) * (state.now - jobs.since[job])
    return int((jobs.requested[job] - (state.now - jobs.start[job])) * full + lost)
