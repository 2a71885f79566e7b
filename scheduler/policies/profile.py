# SPDX-License-Identifier: Apache-2.0
"""The number of free nodes over time: what running jobs release at their predicted ends, less reservations.

A profile is a pair of arrays of the same length: ``free[i]`` nodes from ``times[i]`` until ``times[i + 1]``, the last
without end. Times rise strictly. It counts whole nodes: a node that jobs share comes free with the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import NEVER, RUNNING, compilable, lean

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints, State


class Profile(NamedTuple):
    """Free nodes over time; `size` has one entry, the number of steps in use."""

    times: Ints
    free: Ints
    size: Ints


@lean
def predicted_end(state: State, job: int) -> int:
    """Return the predicted end of a running job, or of a waiting one that starts now."""
    if state.jobs.state[job] == RUNNING:
        return int(state.jobs.ends[job])
    return int(state.now + state.jobs.limit[job])


@lean
def leaving(state: State, job: int) -> int:
    """Return when a running job is predicted to have left: after now, even if its end is later in this second."""
    return max(int(state.jobs.ends[job]), int(state.now) + 1)


@compilable
def by_end(state: State, started: int) -> Ints:
    """Return the running jobs and the first `started` of the queue, which start now, by predicted end."""
    if started == 0:
        return state.running
    jobs = np.concatenate((state.running, state.queue[:started]))
    ends = np.empty(len(jobs), np.int64)
    for i in range(len(jobs)):
        ends[i] = predicted_end(state, jobs[i])
    return jobs[np.argsort(ends, kind="mergesort")]


@compilable
def profile_of(state: State, reservations: int) -> Profile:
    """Return the profile of the running jobs, with room for this many reservations."""
    room = len(state.running) + 2 * reservations + 2
    profile = Profile(np.empty(room, np.int64), np.empty(room, np.int64), np.ones(1, np.int64))
    profile.times[0], profile.free[0] = state.now, state.free
    times, free, leaves, last = profile.times, profile.free, state.jobs.leaves, 0
    for job in state.running:
        end = leaving(state, job)
        if end > times[last]:
            last += 1
            times[last], free[last] = end, free[last - 1]
        free[last] += leaves[job]
    profile.size[0] = last + 1
    return profile


@lean
def earliest(profile: Profile, need: int, length: int) -> int:
    """Return the first time from which `need` nodes stay free for `length` seconds; NEVER if there is none."""
    step = next_fit(profile, need, length, 0)
    return int(profile.times[step]) if step < profile.size[0] else NEVER


@lean
def next_fit(profile: Profile, need: int, length: int, step: int) -> int:
    """Return the first step, from `step` on, with `need` nodes free for `length` seconds; the step count if none."""
    size = profile.size[0]
    times, free, begin = profile.times[:size], profile.free[:size], step
    while begin < size:
        begin += steps_below(free[begin:], need)
        if begin == size:
            break
        until = times[begin] + length
        after = begin + steps_with(times[begin:], free[begin:], need, until)
        if after == size or times[after] >= until:
            return int(begin)
        begin = after
    return int(size)


@lean
def steps_below(free: Ints, need: int) -> int:
    """Return the number of steps before the first one with `need` nodes free."""
    for i in range(len(free)):
        if free[i] >= need:
            return i
    return len(free)


@lean
def steps_with(times: Ints, free: Ints, need: int, until: int) -> int:
    """Return the number of steps with `need` nodes free before the first one without, or from `until` on."""
    for i in range(len(free)):
        if free[i] < need or times[i] >= until:
            return i
    return len(free)


@lean
def least_free(profile: Profile, begin: int, end: int) -> int:
    """Return the least number of nodes that are free at any time from `begin` until `end`."""
    times, free, size = profile.times, profile.free, profile.size[0]
    first = max(0, np.searchsorted(times[:size], begin, side="right") - 1)
    least = free[first]
    for i in range(first + 1, size):
        if times[i] >= end:
            break
        least = min(least, free[i])
    return int(least)


@lean
def take(profile: Profile, begin: int, end: int, nodes: int) -> None:
    """Reserve nodes from `begin` until `end`, or release a negative number; times before the profile are ignored."""
    if begin >= end:
        return
    first, free = cut(profile, begin), profile.free
    for i in range(first, cut(profile, end)):
        free[i] -= nodes


@lean
def cut(profile: Profile, time: int) -> int:
    """Make a step of the profile begin at this time and return its index."""
    times, free, size = profile.times, profile.free, profile.size[0]
    i = np.searchsorted(times[:size], time)
    if i < size and times[i] == time:
        return int(i)
    if i == 0:
        return 0
    for k in range(size, i, -1):
        times[k], free[k] = times[k - 1], free[k - 1]
    times[i], free[i] = time, free[i - 1]
    profile.size[0] = size + 1
    return int(i)
