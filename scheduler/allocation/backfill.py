# SPDX-License-Identifier: Apache-2.0
"""Backfilling over resources: which waiting jobs start now, on which nodes, and when the first others can.

Jobs are considered in an order. Each starts now if its units have room until its limit ends. Otherwise, the first
`depth` of them get a reservation at the earliest possible time, and later jobs start only where they delay none of
these. Depth 0 is first-fit, 1 is EASY backfilling (Lifka 1995), and PBS Professional calls the number
`backfill_depth`. Run times are the limits of jobs.

Free resources only grow until a reservation begins. What a job finds free until its end is therefore the minimum of
what is free now, and of what is left at the beginning of each reservation in between: the search needs these few
moments alone, however many jobs run.

Times are whole seconds, amounts whole numbers, nodes 0-based indices. Pure loops that numba compiles (`compiled`).
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.system.numba_cache import cache_folder, start_without_scipy
from drom.scheduler import interface
from drom.scheduler.interface import NEVER, NOBODY, routine

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


class _Reservations(NamedTuple):
    """The reservations in order of time: when they begin and end, and what they take and leave of each node.

    `low[m]` is the least that is free of each node from now until the beginning of reservation `m`, `sum` its total.
    """

    begin: Ints
    end: Ints
    use: Ints
    left: Ints
    low: Ints
    sum: Ints


@routine
def room(free: Ints, amount: Ints, most: int) -> int:
    """Return how many units, at most `most`, fit into what is free of a node."""
    fit = most
    for r in range(len(amount)):
        if free[r] < amount[r]:
            return 0
        if amount[r] > 0:
            fit = min(fit, 1 if free[r] < 2 * amount[r] else free[r] // amount[r])  # a division takes long
    return fit


@routine
def pack(  # noqa: PLR0917 - numba wants them by position
    free: Ints, suited: Ints, units: int, most: int, amount: Ints, found: Ints
) -> int:
    """Find nodes for all units, the first that have room; return how many, or 0 where there is not enough room.

    `found`, of shape ``(nodes, 2)``, gets the nodes and the units on them.
    """
    count, rest = 0, units
    for node in suited:
        if node < 0:
            break
        fit = room(free[node], amount, min(most, rest))
        if fit > 0:
            found[count, 0] = node
            found[count, 1] = fit
            count += 1
            rest -= fit
            if rest == 0:
                return count
    return 0


@routine
def could_ever(machine: Machine, requests: Requests, job: int) -> bool:
    """Return whether the empty nodes have room for a job."""
    rest = requests.units[job]
    for node in machine.suited[requests.kind[job]]:
        if node < 0:
            break
        rest -= room(machine.capacity[node], requests.amount[job], min(requests.most[job], rest))
        if rest <= 0:
            return True
    return False


@routine
def _is_enough(total: Ints, units: int, amount: Ints) -> bool:
    for r in range(len(amount)):  # noqa: SIM110 - numba knows no generators
        if total[r] < units * amount[r]:
            return False
    return True


@routine
def _take(free: Ints, found: Ints, count: int, amount: Ints, sign: int) -> None:
    for i in range(count):
        for r in range(len(amount)):
            free[found[i, 0], r] -= sign * found[i, 1] * amount[r]


@routine
def _lower(kept: _Reservations, size: int, first: int, node: int) -> None:
    """Compute `low` of a node anew, from `first` on, after what is left of it has changed."""
    for m in range(first, size + 1):
        for r in range(kept.low.shape[2]):
            now = kept.low[m - 1, node, r]
            now = min(now, kept.left[m - 1, node, r])
            kept.sum[m, r] += now - kept.low[m, node, r]
            kept.low[m, node, r] = now


@routine
def _start(  # noqa: PLR0917 - numba wants them by position
    kept: _Reservations, size: int, end: int, found: Ints, count: int, amount: Ints
) -> None:
    """Subtract a job that starts now and may take until `end`."""
    for i in range(count):
        node = found[i, 0]
        for r in range(len(amount)):
            taken = found[i, 1] * amount[r]
            kept.low[0, node, r] -= taken
            kept.sum[0, r] -= taken
            for m in range(size):
                if kept.begin[m] < end:
                    kept.left[m, node, r] -= taken
        _lower(kept, size, 1, node)


@routine
def _events(  # noqa: PLR0917 - numba wants them by position
    now: int, requests: Requests, held: Held, answer: Answer, rows: int, kept: _Reservations, size: int
) -> Ints:
    """Return the times at which held amounts come free, those of jobs that start now, and those of reservations."""
    parts = len(held.end)
    times = np.empty(parts + rows + 2 * size, np.int64)
    times[:parts] = held.end
    for i in range(rows):
        times[parts + i] = now + requests.length[answer.rows[i, 0]]
    for m in range(size):
        times[parts + rows + 2 * m] = kept.begin[m]
        times[parts + rows + 2 * m + 1] = kept.end[m]
    return times


@routine
def _apply(  # noqa: PLR0917 - numba wants them by position
    event: int,
    requests: Requests,
    held: Held,
    answer: Answer,
    rows: int,
    kept: _Reservations,
    free: Ints,
    job: int,
    fits: Ints,
) -> int:
    """Change what is free of nodes by an event of `_events`; return how many more units of a job then fit."""
    parts, more, resources = len(held.end), 0, free.shape[1]
    amount, most = requests.amount[job], requests.most[job]
    first, last = 0, free.shape[0]
    if event < parts:
        first = held.node[event]
        last = first + 1
    elif event < parts + rows:
        first = answer.rows[event - parts, 1]
        last = first + 1
    for node in range(first, last):
        changed = False
        for r in range(resources):
            if event < parts:
                change = held.amount[event, r]
            elif event < parts + rows:
                row = event - parts
                change = answer.rows[row, 2] * requests.amount[answer.rows[row, 0], r]
            else:
                m = (event - parts - rows) // 2
                change = kept.use[m, node, r] if (event - parts - rows) % 2 else -kept.use[m, node, r]
            free[node, r] += change
            changed = changed or change != 0
        if changed and fits[node] >= 0:
            fit = room(free[node], amount, most)
            more += fit - fits[node]
            fits[node] = fit
    return more


@routine
def _reserve(  # noqa: PLR0917 - numba wants them by position
    now: int,
    machine: Machine,
    requests: Requests,
    held: Held,
    answer: Answer,
    rows: int,
    kept: _Reservations,
    size: int,
    job: int,
    found: Ints,
) -> bool:
    """Reserve nodes for a job at the earliest second; return whether there is one."""
    nodes, resources = machine.free.shape
    units, most, length = requests.units[job], requests.most[job], requests.length[job]
    amount, suited = requests.amount[job], machine.suited[requests.kind[job]]
    free = kept.low[0].copy()
    fits = np.full(nodes, -1, np.int64)
    total = 0
    for node in suited:
        if node < 0:
            break
        fits[node] = room(free[node], amount, most)
        total += fits[node]
    times = _events(now, requests, held, answer, rows, kept, size)
    order = np.argsort(times, kind="mergesort")
    low = np.empty((nodes, resources), np.int64)
    i = 0
    while i < len(order):
        time = times[order[i]]
        while i < len(order) and times[order[i]] == time:
            total += _apply(order[i], requests, held, answer, rows, kept, free, job, fits)
            i += 1
        if total < units:
            continue
        low[:] = free
        for m in range(size):
            if time < kept.begin[m] < time + length:
                low = np.minimum(low, kept.left[m])
        count = pack(low, suited, units, most, amount, found)
        if count:
            _insert(kept, size, time, time + length, free, found, count, amount)
            answer.start[job] = time
            return True
    return False


@routine
def _insert(  # noqa: PLR0917 - numba wants them by position
    kept: _Reservations, size: int, begin: int, end: int, free: Ints, found: Ints, count: int, amount: Ints
) -> None:
    """Add a reservation at its place, and compute what is left until each anew."""
    at = size
    while at > 0 and kept.begin[at - 1] > begin:
        kept.begin[at], kept.end[at] = kept.begin[at - 1], kept.end[at - 1]
        kept.use[at] = kept.use[at - 1]
        kept.left[at] = kept.left[at - 1]
        at -= 1
    kept.begin[at], kept.end[at] = begin, end
    kept.use[at] = 0
    _take(kept.use[at], found, count, amount, -1)
    kept.left[at] = free
    for m in range(size + 1):
        if begin <= kept.begin[m] < end:
            _take(kept.left[m], found, count, amount, 1)
    for m in range(at, size + 1):
        kept.low[m + 1] = np.minimum(kept.low[m], kept.left[m])
        kept.sum[m + 1] = kept.low[m + 1].sum(axis=0)


@routine
def backfill(  # noqa: PLR0917 - numba wants them by position
    now: int, machine: Machine, requests: Requests, held: Held, depth: int, answer: Answer
) -> tuple[int, int]:
    """Decide on the waiting jobs in their order, and return how many of the answer's `rows` and of `later` are used."""
    nodes, resources = machine.free.shape
    jobs = len(requests.units)
    most = min(depth, jobs)
    shape = (most, nodes, resources)
    kept = _Reservations(
        np.zeros(most, np.int64),
        np.zeros(most, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros((most + 1, nodes, resources), np.int64),
        np.zeros((most + 1, resources), np.int64),
    )
    kept.low[0] = machine.free
    kept.sum[0] = machine.free.sum(axis=0)
    found = np.empty((nodes, 2), np.int64)
    size = rows = later = 0
    for job in range(jobs):
        answer.start[job] = NEVER
        units, amount = requests.units[job], requests.amount[job]
        end = now + requests.length[job]
        until = 0
        while until < size and kept.begin[until] < end:
            until += 1
        count = 0
        if _is_enough(kept.sum[until], units, amount):
            count = pack(kept.low[until], machine.suited[requests.kind[job]], units, requests.most[job], amount, found)
        if count:
            answer.start[job] = now
            for i in range(count):
                answer.rows[rows, 0] = job
                answer.rows[rows, 1] = found[i, 0]
                answer.rows[rows, 2] = found[i, 1]
                rows += 1
            _start(kept, size, end, found, count, amount)
        elif (
            size < most
            and could_ever(machine, requests, job)
            and _reserve(now, machine, requests, held, answer, rows, kept, size, job, found)
        ):
            size += 1
            rest = units
            for i in range(nodes):
                if rest <= 0:
                    break
                answer.later[later, 0] = job
                answer.later[later, 1] = found[i, 0]
                answer.later[later, 2] = found[i, 1]
                later += 1
                rest -= found[i, 1]
    return rows, later


@routine
def which_fit(machine: Machine, requests: Requests, now: Ints, ever: Ints) -> None:
    """Write for each job whether the nodes have room for it now, and whether they would if no job were running."""
    found = np.empty((machine.free.shape[0], 2), np.int64)
    for job in range(len(requests.units)):
        suited, amount = machine.suited[requests.kind[job]], requests.amount[job]
        now[job] = pack(machine.free, suited, requests.units[job], requests.most[job], amount, found) > 0
        ever[job] = could_ever(machine, requests, job)


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
    numba: Any = importlib.import_module("numba")  # untyped
    if numba.config.DISABLE_JIT:
        return Compiled(backfill, which_fit)
    start_without_scipy()
    folder = cache_folder("allocation", [Path(str(module)) for module in (__file__, interface.__file__)])
    configured = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or configured)
    try:
        options = {"cache": folder is not None, "error_model": "numpy"}
        return Compiled(numba.njit(backfill, **options), numba.njit(which_fit, **options))
    finally:
        numba.config.CACHE_DIR = configured
