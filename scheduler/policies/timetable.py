# SPDX-License-Identifier: Apache-2.0
"""The nodes that are free over time: what running jobs release at their predicted ends, less reservations.

`profile` only counts nodes; this module knows them. A job gets the lowest-numbered nodes that are free for all of its
time and, if it is in a partition, belong to that; if it needs contiguous nodes, the first consecutive ones. A node that
jobs share comes free with the last of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import NEVER, NOBODY, lean, routine
from drom.scheduler.policies.nodesets import (
    Words,
    copy,
    count,
    count_common,
    insert,
    keep,
    keep_lowest,
    keep_run,
    take_away,
    words_for,
)
from drom.scheduler.policies.profile import Profile, cut, leaving, next_fit, profile_of

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints, State

FOUND, FREE, USABLE, ASIDE = range(4)
"""Rows of `Timetable.sets`: the nodes found last; those free for a guest; those whose jobs may be its mates; for
counting."""


class Timetable(NamedTuple):
    """Free nodes over time. `profile` counts the nodes in the sets; without sets only `profile` is used."""

    profile: Profile
    ends: Ints
    """When nodes come free, rising; the first time is now."""
    free: Words
    """Shape ``(ends, words)``: the nodes that no running job has from then on."""
    begin: Ints
    end: Ints
    """For each reservation; it holds its nodes from `begin` until `end`."""
    rank: Ints
    """Its number among the reservations of waiting jobs; NEVER for a job that starts now."""
    held: Words
    """Shape ``(reservations, words)``."""
    allowed: Words
    """Shape ``(partitions, words)``."""
    sets: Words
    freed: Ints
    """For each step of the profile, how many nodes come free with it: an upper bound, as some may be reserved then."""
    used: Ints
    """Shape ``(3,)``: the numbers of ends, of reservations, and of nodes in the last search."""


@routine
def counts_of(state: State, reservations: int) -> Timetable:
    """Return a timetable without sets of nodes."""
    none, no_sets = np.empty(0, np.int64), np.empty((0, 0), np.uint64)
    profile = profile_of(state, reservations)
    return Timetable(profile, none, no_sets, none, none, none, no_sets, no_sets, no_sets, none, np.zeros(3, np.int64))


@lean
def has_sets(table: Timetable) -> bool:
    """Return whether a timetable knows the nodes."""
    return len(table.sets) > 0


@routine
def timetable_of(state: State, reservations: int) -> Timetable:
    """Return the timetable of the running jobs, with room for this many reservations."""
    words, partitions = words_for(len(state.nodes.up)), len(state.nodes.allowed)
    profile = profile_of(state, reservations)
    table = Timetable(
        profile,
        profile.times[: profile.size[0]].copy(),
        np.zeros((profile.size[0], words), np.uint64),
        np.empty(reservations, np.int64),
        np.empty(reservations, np.int64),
        np.empty(reservations, np.int64),
        np.empty((reservations, words), np.uint64),
        np.zeros((partitions, words), np.uint64),
        np.zeros((4, words), np.uint64),
        np.zeros(len(profile.times), np.int64),
        np.zeros(3, np.int64),
    )
    fill(state, table)
    fill_partitions(state, table)
    return table


@lean
def fill(state: State, table: Timetable) -> None:
    """Store the free nodes, and those that running jobs release."""
    jobs, house = state.jobs, state.nodes
    for node in range(len(house.up)):
        if house.up[node] and house.resident[node, 0] == NOBODY:
            insert(table.free[0], node)
    last = 0
    for job in state.running:
        if leaving(state, job) > table.ends[last]:
            last += 1
            copy(table.free[last], table.free[last - 1])
        for node in house.place[house.first[job] : house.first[job] + jobs.nodes[job]]:
            if jobs.shared[job] == 0 or is_last(state, node, job):
                insert(table.free[last], node)
    for step in range(1, table.profile.size[0]):
        table.freed[step] = table.profile.free[step] - table.profile.free[step - 1]
    table.used[0] = last + 1


@lean
def fill_partitions(state: State, table: Timetable) -> None:
    """Store the nodes of partitions."""
    allowed = state.nodes.allowed
    for partition in range(len(allowed)):
        for node in range(len(state.nodes.up)):
            if allowed[partition, node]:
                insert(table.allowed[partition], node)


@lean
def is_last(state: State, node: int, job: int) -> bool:
    """Return whether a job is predicted to stay on a node at least as long as all others there."""
    for other in state.nodes.resident[node]:
        if other != NOBODY and state.jobs.ends[other] > state.jobs.ends[job]:
            return False
    return True


@lean
def find(table: Timetable, need: int, length: int, partition: int, contiguous: int) -> int:
    """Return the first time from which `need` nodes are free for `length` seconds; NEVER if there is none.

    The nodes are then in `table.sets[FOUND]`.
    """
    profile, i = table.profile, 0
    while True:
        i = next_fit(profile, need, length, i)
        if i == profile.size[0]:
            return NEVER
        if choose(table, need, profile.times[i], profile.times[i] + length, partition, contiguous):
            return int(profile.times[i])
        lacking, i = 1 if contiguous else need - table.used[2], i + 1
        while i < profile.size[0] and lacking > table.freed[i]:
            lacking -= table.freed[i]
            i += 1


@lean
def choose(  # noqa: PLR0917 - numba wants them by position
    table: Timetable, need: int, begin: int, end: int, partition: int, contiguous: int
) -> bool:
    """Choose the nodes for a job from `begin` until `end` into `table.sets[FOUND]`; return whether there are enough."""
    found = table.sets[FOUND]
    available(table, found, begin, end, partition)
    if contiguous:
        return keep_run(found, need)
    table.used[2] = count(found)
    if table.used[2] < need:
        return False
    keep_lowest(found, need)
    return True


@lean
def available(table: Timetable, nodes: Words, begin: int, end: int, partition: int) -> None:
    """Fill a set with the nodes of a partition (NOBODY: of the machine) that are free from `begin` until `end`."""
    low, high = 0, table.used[0]
    while high - low > 1:
        middle = (low + high) // 2
        if table.ends[middle] <= begin:
            low = middle
        else:
            high = middle
    copy(nodes, table.free[low])
    narrow(table, nodes, begin, end, partition)


@lean
def narrow(table: Timetable, nodes: Words, begin: int, end: int, partition: int) -> None:
    """Remove from a set nodes outside a partition (NOBODY: outside none), and nodes reserved between two times."""
    if partition != NOBODY:
        keep(nodes, table.allowed[partition])
    for i in range(table.used[1]):
        if table.begin[i] < end and table.end[i] > begin:
            take_away(nodes, table.held[i])


@lean
def hold(table: Timetable, begin: int, end: int, since: int, rank: int) -> None:
    """Reserve the nodes found last from `begin` until `end`; they are free from `since` on, perhaps after `begin`."""
    if begin >= end:
        return
    found, profile, i = table.sets[FOUND], table.profile, table.used[1]
    need, first = count(found), step_at(table, begin)
    last = step_at(table, end)
    table.freed[last] += need
    for step in range(first, last):
        taken = need
        if profile.times[step] < since:
            available(table, table.sets[ASIDE], profile.times[step], profile.times[step] + 1, NOBODY)
            taken = count_common(found, table.sets[ASIDE])
        profile.free[step] -= taken
    table.begin[i], table.end[i], table.rank[i] = begin, end, rank
    copy(table.held[i], found)
    table.used[1] = i + 1


@lean
def step_at(table: Timetable, time: int) -> int:
    """Make a step of the profile begin at this time and return its index."""
    before, step, freed = table.profile.size[0], cut(table.profile, time), table.freed
    if table.profile.size[0] > before:
        for i in range(before, step, -1):
            freed[i] = freed[i - 1]
        freed[step] = 0
    return step
