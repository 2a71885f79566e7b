# SPDX-License-Identifier: Apache-2.0
"""Jobs put on nodes one after the other, each at the earliest time at which its units have room until they end.

A profile stores the free resources of each node over time: ``free[i]``, of shape ``(nodes, resources)``, from
``times[i]`` until ``times[i + 1]``, the last without end. Times rise strictly, the first is now. Free resources never
decrease before a job ends except at the start of a planned one, so that the earliest start is always one of these
times.

Pure loops that numba compiles (`compiled`).
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.system import numba_cache
from drom.scheduler import interface
from drom.scheduler.allocation import backfill
from drom.scheduler.allocation.backfill import room
from drom.scheduler.interface import NEVER, routine

if TYPE_CHECKING:
    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.interface import Ints


class Profile(NamedTuple):
    """Free resources over time; `size` has one entry, the number of steps in use. Arrays have room for more."""

    times: Ints
    free: Ints
    total: Ints
    """Shape ``(steps, resources)``: the free resources of all nodes together."""
    size: Ints


class Plan(NamedTuple):
    """The starts and nodes of jobs: `start` by job, NEVER if unplanned; `node` by unit, as `Jobs.unit` has it."""

    start: Ints
    node: Ints


class State(NamedTuple):
    """The input of a plan at one second: the running jobs, which stay as they are, and the waiting ones by submission.

    `started` and `node` are by job and by unit, as a plan.
    """

    now: int
    running: Ints
    waiting: Ints
    capacity: Ints
    """Shape ``(nodes, resources)``."""
    started: Ints
    node: Ints


@routine
def profile_of(state: State, jobs: Jobs) -> Profile:
    """Return what running jobs leave free until their walltime is over, with room for all waiting jobs."""
    ends = np.empty(len(state.running), np.int64)
    for i, job in enumerate(state.running):
        ends[i] = max(state.started[job] + jobs.walltime[job], state.now + 1)
    most = len(state.running) + len(state.waiting) + 1
    nodes, resources = state.capacity.shape
    profile = Profile(
        np.empty(most, np.int64),
        np.empty((most, nodes, resources), np.int64),
        np.empty((most, resources), np.int64),
        np.ones(1, np.int64),
    )
    profile.times[0] = state.now
    profile.free[0] = state.capacity
    profile.total[0] = state.capacity.sum(axis=0)
    for i in np.argsort(ends, kind="mergesort"):
        step(profile, ends[i])
    for i, job in enumerate(state.running):
        take(profile, jobs, job, 0, ends[i], state.node)
    return profile


@routine
def step(profile: Profile, time: int) -> None:
    """Insert a step into the profile at this time, unless there is one."""
    size = profile.size[0]
    i = size
    while profile.times[i - 1] > time:
        i -= 1
    if profile.times[i - 1] == time:
        return
    for k in range(size, i, -1):
        profile.times[k] = profile.times[k - 1]
        profile.free[k] = profile.free[k - 1]
        profile.total[k] = profile.total[k - 1]
    profile.times[i] = time
    profile.free[i] = profile.free[i - 1]
    profile.total[i] = profile.total[i - 1]
    profile.size[0] = size + 1


@routine
def take(  # noqa: PLR0917 - numba wants them by position
    profile: Profile, jobs: Jobs, job: int, first: int, end: int, node: Ints
) -> None:
    """Subtract a job's request from the profile from the step `first` until the step at time `end`."""
    k = first
    while k < profile.size[0] and profile.times[k] < end:
        add(profile.free[k], jobs, job, node, -1)
        profile.total[k] -= jobs.total[job]
        k += 1


@routine
def add(free: Ints, jobs: Jobs, job: int, node: Ints, sign: int) -> None:
    """Add a job's request to the free resources of its nodes, or subtract it (`sign`); -1 is no node."""
    unit = jobs.unit[job]
    for chunk in range(jobs.chunk[job], jobs.chunk[job + 1]):
        for _ in range(jobs.units[chunk]):
            if node[unit] >= 0:
                for r in range(free.shape[1]):
                    free[node[unit], r] += sign * jobs.request[chunk, r]
            unit += 1


@routine
def pack(free: Ints, jobs: Jobs, job: int, node: Ints) -> bool:
    """Find nodes for all units of a job, and return whether there are enough; `free` is unchanged afterwards."""
    unit = jobs.unit[job]
    node[unit : jobs.unit[job + 1]] = -1
    for chunk in range(jobs.chunk[job], jobs.chunk[job + 1]):
        rest = jobs.units[chunk]
        for n in jobs.nodes[chunk]:
            if n < 0:
                break
            fit = room(free[n], jobs.request[chunk], min(rest, jobs.most[chunk]))
            node[unit : unit + fit] = n
            unit += fit
            rest -= fit
            for r in range(free.shape[1]):
                free[n, r] -= fit * jobs.request[chunk, r]
            if rest == 0:
                break
        if rest > 0:
            break
    add(free, jobs, job, node, 1)
    return bool(unit == jobs.unit[job + 1])


@routine
def enough(total: Ints, asked: Ints) -> bool:
    """Return whether all nodes together have what a job requests: a quick test."""
    for r in range(len(total)):  # noqa: SIM110 - numba knows no generators
        if total[r] < asked[r]:
            return False
    return True


@routine
def lower(low: Ints, free: Ints) -> bool:
    """Lower `low` to at most `free`, and return whether that changed it."""
    changed = False
    for n in range(low.shape[0]):
        for r in range(low.shape[1]):
            if free[n, r] < low[n, r]:
                low[n, r] = free[n, r]
                changed = True
    return changed


@routine
def find(profile: Profile, jobs: Jobs, job: int, latest: int, node: Ints) -> int:
    """Return the first step at which a job can start, with its nodes in `node`; -1 if there is none up to `latest`."""
    low = np.empty(profile.free.shape[1:], np.int64)
    i = 0
    while i < profile.size[0] and profile.times[i] <= latest:
        if not (enough(profile.total[i], jobs.total[job]) and pack(profile.free[i], jobs, job, node)):
            i += 1
            continue
        low[:] = profile.free[i]
        blocked, k = -1, i + 1
        while k < profile.size[0] and profile.times[k] < profile.times[i] + jobs.walltime[job]:
            if not enough(profile.total[k], jobs.total[job]) or (
                lower(low, profile.free[k]) and not pack(low, jobs, job, node)
            ):
                blocked = k
                break
            k += 1
        if blocked < 0:
            return i
        alone = enough(profile.total[blocked], jobs.total[job]) and pack(profile.free[blocked], jobs, job, node)
        i = i + 1 if alone else blocked + 1
    return -1


@routine
def put(profile: Profile, jobs: Jobs, job: int, latest: int, plan: Plan) -> bool:
    """Plan a job as early as it can start, and return whether that is at `latest` or before."""
    first = find(profile, jobs, job, latest, plan.node)
    if first < 0:
        return False
    plan.start[job] = profile.times[first]
    end = profile.times[first] + jobs.walltime[job]
    step(profile, end)
    take(profile, jobs, job, first, end, plan.node)
    return True


@routine
def plan_in_order(  # noqa: PLR0917 - numba wants them by position
    state: State,
    jobs: Jobs,
    order: Ints,
    depth: int,
    whole: bool,  # noqa: FBT001 - likewise
    plan: Plan,
) -> None:
    """Plan waiting jobs in an order: each at its earliest time, until `depth` of them have to wait.

    Later jobs start only if they can do so now without delaying these. `whole`: the rest is planned too.
    """
    profile = profile_of(state, jobs)
    late, rest = 0, np.zeros(len(order), np.bool_)
    for i, job in enumerate(order):
        if late < depth:
            put(profile, jobs, job, NEVER, plan)
            late += plan.start[job] > state.now
        else:
            rest[i] = not put(profile, jobs, job, state.now, plan)
    if whole:
        for job in order[rest]:
            put(profile, jobs, job, NEVER, plan)


@routine
def any_fits(state: State, jobs: Jobs) -> bool:
    """Return whether a waiting job fits now: otherwise no plan could start one."""
    free = state.capacity.copy()
    for job in state.running:
        add(free, jobs, job, state.node, -1)
    node = np.empty(len(state.node), np.int64)
    for job in state.waiting:  # noqa: SIM110 - numba knows no generators
        if pack(free, jobs, job, node):
            return True
    return False


def planned(state: State, jobs: Jobs, order: Ints, depth: int, *, whole: bool) -> Plan:
    """Return what `plan_in_order` makes; -1 for the nodes of jobs that are not planned."""
    plan = Plan(np.full(len(jobs.submit), NEVER, np.int64), np.full(len(state.node), -1, np.int64))
    compiled().plan_in_order(state, jobs, order, depth, whole, plan)
    plan.node[np.repeat(plan.start == NEVER, np.diff(jobs.unit))] = -1
    return plan


class Compiled(NamedTuple):
    """The functions that are called from outside, as machine code."""

    plan_in_order: Any
    any_fits: Any


@functools.cache
def compiled() -> Compiled:
    """Return the functions compiled at their first call, or from numba's cache; as they are without numba."""
    modules = sys.modules[__name__], interface, backfill
    return Compiled(*numba_cache.compiled("cp", modules, plan_in_order, any_fits))
