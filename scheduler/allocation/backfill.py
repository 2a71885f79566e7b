# SPDX-License-Identifier: Apache-2.0
"""Backfilling over resources: which waiting jobs start now, on which nodes, and when the first others can.

Jobs are considered in an order. Each starts now if its units have room until its limit ends. Otherwise, the first
`depth` of them get a reservation at the earliest possible time, and later jobs start only where they delay none of
these. Depth 0 is first-fit, 1 is EASY backfilling (Lifka 1995), and PBS Professional calls the number
`backfill_depth`. Run times are the limits of jobs.

Free resources of a node only grow, except where a reservation takes some. What a job finds free until its end is
therefore the minimum of what is free at its start, and of what each reservation that begins in between leaves. The
earliest start is found in one pass over the changes to come, each of which changes the units that fit on one node.

Times are whole seconds, amounts whole numbers, nodes 0-based indices. Pure loops that numba compiles (`compiled`).
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.system import numba_cache
from drom.scheduler import interface
from drom.scheduler.interface import NEVER, NOBODY, lean, routine

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

MOST_DEPTH = 400
"""The most reservations: each costs memory and time for all nodes."""


class Machine(NamedTuple):
    """The nodes: what they have and have free, of shape ``(nodes, resources)``, and which suit a kind of jobs.

    `suited`, of shape ``(kinds, nodes)``, has nodes in the order in which they are tried, then NOBODY.
    """

    capacity: Ints
    free: Ints
    suited: Ints


class Requests(NamedTuple):
    """The waiting jobs in their order: `units` that each ask for `amount`, of which a node may have `most`.

    `length` is in seconds, `kind` a row of `Machine.suited`; `amount` has shape ``(jobs, resources)``, cores first.
    """

    units: Ints
    most: Ints
    length: Ints
    kind: Ints
    amount: Ints


class Held(NamedTuple):
    """What running jobs hold: an `amount`, of shape ``(parts, resources)``, of a `node` until a future `end`."""

    end: Ints
    node: Ints
    amount: Ints


class Answer(NamedTuple):
    """The decisions: the start of each job, the present second or that of its reservation, NEVER without one.

    `rows`, of shape ``(capacity, 3)``, has a job, one of its nodes and its units there, for the jobs that start now.
    `later` has the same for those with a reservation.
    """

    start: Ints
    rows: Ints
    later: Ints


class _Timeline(NamedTuple):
    """What is `free` of each node now, and the changes to come: ends of jobs, beginnings and ends of reservations.

    A change has a `time`, a `node` and an `amount` that comes free, negative where a reservation begins. `size` has one
    entry, the number of changes, and `order` sorts them by time. `left` is what beginning reservations leave of a node.
    `first` is the first such change of each node, `next` the following one of the same node, or NOBODY.
    """

    free: Ints
    size: Ints
    order: Ints
    time: Ints
    node: Ints
    amount: Ints
    left: Ints
    first: Ints
    next: Ints


class _Reservations(NamedTuple):
    """When reservations begin, in order, and the least that is free of each node until then, summed over nodes.

    `low` has shape ``(reservations + 1, resources)``: row 0 is for now, row ``m + 1`` includes reservation `m`.
    """

    begin: Ints
    low: Ints


@lean
def room(free: Ints, amount: Ints, most: int) -> int:
    """Return how many units, at most `most`, fit into what is free of a node."""
    fit = most
    for r in range(len(amount)):
        if free[r] < amount[r]:
            return 0
        if amount[r] > 0:
            fit = min(fit, 1 if free[r] < 2 * amount[r] else free[r] // amount[r])  # a division takes long
    return fit


@lean
def has_room(free: Ints, machine: Machine, requests: Requests, job: int) -> bool:
    """Return whether what is free of the nodes has room for all units of a job."""
    rest = requests.units[job]
    for node in machine.suited[requests.kind[job]]:
        if node < 0:
            break
        rest -= room(free[node], requests.amount[job], min(requests.most[job], rest))
        if rest <= 0:
            return True
    return False


@lean
def _lasting(line: _Timeline, fit: int, amount: Ints, take: int, end: int) -> int:
    """Return how many of `fit` units have room on a node until `end`; `take` is the next reservation's change there."""
    while fit > 0 and take >= 0 and line.time[take] < end:
        fit = room(line.left[take], amount, fit)
        take = line.next[take]
    return fit


@lean
def _pack(  # noqa: PLR0917 - numba wants them by position
    line: _Timeline, machine: Machine, requests: Requests, job: int, free: Ints, first: Ints, end: int, found: Ints
) -> int:
    """Find the first nodes that have room for all units until `end`; return how many, 0 if the room is not enough.

    `free` and `first` are as in the timeline, at the start of the job. `found`, of shape ``(nodes, 2)``, gets the nodes
    and the units on them.
    """
    amount, most = requests.amount[job], requests.most[job]
    count, rest = 0, requests.units[job]
    for node in machine.suited[requests.kind[job]]:
        if node < 0:
            break
        fit = _lasting(line, room(free[node], amount, min(most, rest)), amount, first[node], end)
        if fit > 0:
            found[count, 0] = node
            found[count, 1] = fit
            count += 1
            rest -= fit
            if rest == 0:
                return count
    return 0


@lean
def _is_enough(total: Ints, units: int, amount: Ints) -> bool:
    for r in range(len(amount)):  # noqa: SIM110 - numba knows no generators
        if total[r] < units * amount[r]:
            return False
    return True


@routine
def _timeline(free: Ints, held: Held, most: int) -> _Timeline:
    """Return the timeline of the running jobs, with space for `most` other changes."""
    nodes, resources = free.shape
    parts = len(held.end)
    most += parts
    line = _Timeline(
        free.copy(),
        np.full(1, parts, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty((most, resources), np.int64),
        np.empty((most, resources), np.int64),
        np.full(nodes, NOBODY, np.int64),
        np.empty(most, np.int64),
    )
    line.order[:parts] = np.argsort(held.end, kind="mergesort")
    line.time[:parts] = held.end
    line.node[:parts] = held.node
    line.amount[:parts] = held.amount
    return line


@lean
def _add(  # noqa: PLR0917 - numba wants them by position
    line: _Timeline, time: int, found: Ints, count: int, amount: Ints, sign: int
) -> int:
    """Add a change for each of the `found` nodes, after those of the same time; return the first."""
    size: int = line.size[0]
    at = size
    while at > 0 and line.time[line.order[at - 1]] > time:
        line.order[at - 1 + count] = line.order[at - 1]
        at -= 1
    for i in range(count):
        line.order[at + i] = size + i
        line.time[size + i] = time
        line.node[size + i] = found[i, 0]
        for r in range(len(amount)):
            line.amount[size + i, r] = sign * found[i, 1] * amount[r]
    line.size[0] = size + count
    return size


@lean
def _link(line: _Timeline, take: int) -> None:
    """Link the beginning of a reservation with others on its node, after those of the same time."""
    node, before = line.node[take], NOBODY
    after = line.first[node]
    while after >= 0 and line.time[after] <= line.time[take]:
        before, after = after, line.next[after]
    line.next[take] = after
    if before >= 0:
        line.next[before] = take
    else:
        line.first[node] = take


@lean
def _count(  # noqa: PLR0917 - numba wants them by position
    line: _Timeline, kept: _Reservations, row: int, size: int, node: int, sign: int
) -> None:
    """Add a node to the sums from a `row` on, or subtract it (`sign`)."""
    for r in range(line.free.shape[1]):
        low, take = line.free[node, r], line.first[node]
        for m in range(row, size + 1):
            while m > 0 and take >= 0 and line.time[take] <= kept.begin[m - 1]:
                low = min(low, line.left[take, r])
                take = line.next[take]
            kept.low[m, r] += sign * low


@routine
def _insert(kept: _Reservations, size: int, begin: int) -> int:
    """Insert the beginning of a reservation that has no nodes yet; return its row of `low`."""
    row = size + 1
    while row > 1 and kept.begin[row - 2] > begin:
        kept.begin[row - 1] = kept.begin[row - 2]
        kept.low[row] = kept.low[row - 1]
        row -= 1
    kept.begin[row - 1] = begin
    kept.low[row] = kept.low[row - 1]
    return row


@routine
def _put(  # noqa: PLR0917 - numba wants them by position
    line: _Timeline,
    kept: _Reservations,
    size: int,
    now: int,
    begin: int,
    end: int,
    free: Ints,
    found: Ints,
    count: int,
    amount: Ints,
) -> int:
    """Give a job its units from `begin` until `end`; return the new number of reservations.

    `free` is what the nodes have free at `begin`.
    """
    row, first = 0, NOBODY
    if begin > now:
        row = _insert(kept, size, begin)
        first = _add(line, begin, found, count, amount, -1)
        size += 1
    for i in range(count):
        node, taken = found[i, 0], found[i, 1] * amount
        _count(line, kept, row, size, node, -1)
        take = line.first[node]
        while take >= 0 and line.time[take] < end:
            if line.time[take] >= begin:
                line.left[take] -= taken
            take = line.next[take]
        if begin > now:
            line.left[first + i] = free[node] - taken
            _link(line, first + i)
        else:
            line.free[node] -= taken
        _count(line, kept, row, size, node, 1)
    _add(line, end, found, count, amount, 1)
    return size


@lean
def _refit(  # noqa: PLR0917 - numba wants them by position
    line: _Timeline, node: int, fits: Ints, free: Ints, first: Ints, amount: Ints, most: int, end: int
) -> int:
    """Count anew the units that fit on a node until `end`, if it suits the job; return how many more there are."""
    before = fits[node]
    if before < 0:
        return 0
    fit = _lasting(line, room(free[node], amount, most), amount, first[node], end)
    fits[node] = fit
    return int(fit - before)


@routine
def _earliest(  # noqa: PLR0917 - numba wants them by position
    line: _Timeline, machine: Machine, requests: Requests, job: int, free: Ints, first: Ints, found: Ints
) -> tuple[int, int]:
    """Return the earliest start of a job that finds no room now, or NEVER, and the number of `found` nodes.

    It is the time of a change. `free` and `first` get the values of the timeline at this time.
    """
    units, most, length = requests.units[job], requests.most[job], requests.length[job]
    amount, size = requests.amount[job], line.size[0]
    free[:] = line.free
    first[:] = line.first
    fits, total = np.full(len(free), NOBODY, np.int64), 0
    for node in machine.suited[requests.kind[job]]:
        if node < 0:
            break
        fits[node] = room(free[node], amount, most)
        total += fits[node]
    i = j = 0
    while i < size:
        time = line.time[line.order[i]]
        end = time + length
        while i < size and line.time[line.order[i]] == time:
            change = line.order[i]
            node = line.node[change]
            for r in range(len(amount)):
                free[node, r] += line.amount[change, r]
            if line.amount[change, 0] < 0:
                first[node] = line.next[change]
            total += _refit(line, node, fits, free, first, amount, most, end)
            i += 1
        while j < size and line.time[line.order[j]] < end:
            if line.amount[line.order[j], 0] < 0:
                total += _refit(line, line.node[line.order[j]], fits, free, first, amount, most, end)
            j += 1
        if total >= units:
            return time, _pack(line, machine, requests, job, free, first, end, found)
    return NEVER, 0


@routine
def _write(table: Ints, size: int, job: int, found: Ints, count: int) -> int:
    """Write a job's nodes and its units there behind the `size` rows of a table, and return how many there are then."""
    for i in range(count):
        table[size + i, 0] = job
        table[size + i, 1] = found[i, 0]
        table[size + i, 2] = found[i, 1]
    return size + count


@routine
def backfill(  # noqa: PLR0917 - numba wants them by position
    now: int, machine: Machine, requests: Requests, held: Held, depth: int, answer: Answer
) -> tuple[int, int]:
    """Decide on the waiting jobs in their order, and return how many of the answer's `rows` and of `later` are used."""
    nodes, resources = machine.free.shape
    jobs = len(requests.units)
    most = min(depth, jobs)
    parts = min(nodes, requests.units.max()) if jobs else 0
    line = _timeline(machine.free, held, len(answer.rows) + 2 * most * parts)
    kept = _Reservations(np.empty(most, np.int64), np.empty((most + 1, resources), np.int64))
    kept.low[0] = machine.free.sum(axis=0)
    found = np.empty((nodes, 2), np.int64)
    size = rows = later = 0
    free, first = line.free.copy(), line.first.copy()
    for job in range(jobs):
        answer.start[job] = NEVER
        amount, length = requests.amount[job], requests.length[job]
        begin, count, until = now, 0, 0
        while until < size and kept.begin[until] < now + length:
            until += 1
        if _is_enough(kept.low[until], requests.units[job], amount):
            count = _pack(line, machine, requests, job, line.free, line.first, now + length, found)
        if count == 0 and size < most and has_room(machine.capacity, machine, requests, job):
            begin, count = _earliest(line, machine, requests, job, free, first, found)
        if count == 0:
            continue
        answer.start[job] = begin
        size = _put(line, kept, size, now, begin, begin + length, free, found, count, amount)
        if begin == now:
            rows = _write(answer.rows, rows, job, found, count)
        else:
            later = _write(answer.later, later, job, found, count)
    return rows, later


@routine
def which_fit(machine: Machine, requests: Requests, now: Ints, ever: Ints) -> None:
    """Write for each job whether the nodes have room for it now, and whether they would if no job were running."""
    for job in range(len(requests.units)):
        now[job] = has_room(machine.free, machine, requests, job)
        ever[job] = has_room(machine.capacity, machine, requests, job)


def fitting(machine: Machine, requests: Requests) -> tuple[Ints, Ints]:
    """Return for each job 1 or 0: whether there is room for it now, and whether there would be on empty nodes."""
    now, ever = np.zeros(len(requests.units), np.int64), np.zeros(len(requests.units), np.int64)
    compiled().which_fit(machine, requests, now, ever)
    return now, ever


def decide(now: int, machine: Machine, requests: Requests, held: Held, depth: int) -> Answer:
    """Return the decisions on the waiting jobs, with the rows that are in use.

    `depth` is from 0 to `MOST_DEPTH`. Each unit asks for at least one core.
    """
    capacity = int(np.maximum(machine.free[:, 0], 0).sum()) if len(machine.free) else 0
    most = min(depth, len(requests.units)) * len(machine.free)
    starts = np.full(len(requests.units), NEVER, np.int64)
    answer = Answer(starts, np.empty((capacity, 3), np.int64), np.empty((most, 3), np.int64))
    rows, later = compiled().backfill(now, machine, requests, held, depth, answer)
    return answer._replace(rows=answer.rows[:rows], later=answer.later[:later])


def suited_nodes(capacity: Ints, allowed: Ints, used: Ints) -> Ints:
    """Return the allowed nodes in the order in which they are tried, then NOBODY, of shape ``(nodes,)``.

    First come those with the smallest shares of the resources that a job does not use: jobs without GPUs leave those
    with GPUs to others. `allowed` is 1 for nodes that a job may have, `used` 1 for the resources that it asks for.
    """
    share = capacity / np.maximum(capacity.max(axis=0, initial=0), 1)
    wasted = share @ (used == 0).astype(np.float64)
    order = np.argsort(wasted, kind="stable")
    order = order[allowed[order] == 1]
    return np.concatenate((order, np.full(len(capacity) - len(order), NOBODY))).astype(np.int64)


class Compiled(NamedTuple):
    """The functions that are called from outside, as machine code."""

    backfill: Any
    which_fit: Any


@functools.cache
def compiled() -> Compiled:
    """Return the functions compiled at their first call, or from numba's cache; as they are without numba."""
    return Compiled(*numba_cache.compiled("allocation", (sys.modules[__name__], interface), backfill, which_fit))
