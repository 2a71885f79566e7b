# SPDX-License-Identifier: Apache-2.0
"""What policies of a pool compute: remaining work by requested times, equal division, and the value of an end."""

from __future__ import annotations

from drom.scheduler.interface import HARD, PAYOFF, PENALTY, RUNNING, SOFT, Ints, State, compilable, lean


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


@compilable
def divide(share: Ints, room: Ints, spare: int) -> None:
    """Add `spare` processors to the shares, equally as far as `room` allows; earlier shares get the remainder."""
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


@lean
def worth(contracts: Ints, job: int, end: int) -> int:
    """Return the value by its contract if a job ends at this second, rounded down; contracts are those of `State`.

    It is the whole pay-off until the soft deadline, falls linearly to 0 at the hard deadline, and is minus the penalty
    after it.
    """
    soft, hard, payoff = contracts[job, SOFT], contracts[job, HARD], contracts[job, PAYOFF]
    if end <= soft:
        return int(payoff)
    if end <= hard:
        left, span = hard - end, hard - soft
        return int(payoff // span * left + payoff % span * left // span)  # pay-off times seconds is beyond 64 bits
    return int(-contracts[job, PENALTY])
