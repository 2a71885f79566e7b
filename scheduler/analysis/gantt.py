# SPDX-License-Identifier: Apache-2.0
"""The parts of nodes that jobs had over time, as the rectangles of a Gantt chart.

The parts are derived from the starts. The residents of a node gave up what a guest has of it at its start, the owner
first. A job that leaves gives its part to the owner; an owner that leaves gives its part to its first guest, which
becomes the owner. That is exact for policies that resize jobs for guests alone.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.metrics import malleable
from drom.scheduler.analysis.schedule import UNKNOWN
from drom.scheduler.analysis.series import DAY, Span, counts_per, span_of, waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from drom.scheduler.analysis.schedule import Schedule, SharedNode
    from drom.scheduler.interface import Ints
    from drom.workloads.workload import Bools

WHOLE, SHRUNK, GUEST, FILLER, ON_CORES, WITH_GPUS, GPUS = range(7)
"""The kinds of boxes: a job on a whole node, an owner on what its guests leave it, a guest on a part, a gap filler; on
cores of a shared node a job without GPUs and one with GPUs, and its GPUs."""
GPU_HEIGHT, GAP = 0.5, 0.7
"""The heights of a GPU and of the space between two nodes in a chart of cores, where a core has the height 1."""
_MOST = 4000


class GanttBox(NamedTuple):
    """A job on consecutive nodes from a time to another; `low` and `high` are in nodes, with fractions for parts."""

    job: int
    """Index of the job."""
    begin: int
    end: int
    low: float
    high: float
    kind: int


class Residency(NamedTuple):
    """A job on a node."""

    begin: int
    end: int
    job: int
    cores: int


def window_of(schedule: Schedule) -> Span:
    """Return the time to chart: all of a short schedule, else the day with most guests, else with most waiting jobs."""
    span = span_of(schedule)
    days = (span.end - span.begin) // DAY + 1
    if len(schedule.runs) <= _MOST or days == 1:
        return span
    table = schedule.table
    starts = table["start"][malleable(table, schedule.cores)]
    busiest = int(counts_per(DAY, span, starts).argmax())
    if not len(starts):
        edges = span.begin + DAY * np.arange(days + 1, dtype=np.float64)
        busiest = int(waiting(schedule, edges).argmax())
    return Span(span.begin + busiest * DAY, min(span.end, span.begin + (busiest + 1) * DAY))


def boxes(schedule: Schedule, window: Span) -> list[GanttBox]:
    """Return the boxes of the jobs that run in a window, clipped to it."""
    table = schedule.table
    end = np.where(table["end"] == UNKNOWN, schedule.until, table["end"])
    started = (table["start"] != UNKNOWN) & (table["start"] < window.end)
    sharing = started & (malleable(table, schedule.cores) | (table["lent"] > 0))
    sharing |= _on_left_nodes(schedule, started & (end > window.begin), end)
    alone = _whole_boxes(schedule, started & (end > window.begin) & ~sharing)
    shared = _shared_boxes(schedule, _with_history(sharing, table["start"], end, window.begin))
    return [_cut(box, window) for box in (*alone, *shared) if _inside(box, window)]


def _on_left_nodes(schedule: Schedule, which: Bools, end: Ints) -> Bools:
    """Return those jobs among `which` that started on a node of another one of them, which has lent cores."""
    start, found = schedule.table["start"], np.zeros(len(which), np.bool_)
    owner = np.repeat(np.arange(len(which)), np.diff(schedule.first))
    owner, (low, high) = owner[which[owner]], schedule.runs[which[owner]].T
    for job in np.flatnonzero(which & (schedule.table["lent"] > 0)):
        later = (start[owner] >= start[job]) & (start[owner] < end[job]) & (owner != job)
        for first, last in schedule.runs[schedule.first[job] : schedule.first[job + 1]]:
            found[owner[later & (low <= last) & (high >= first)]] = True
    return found


class Band(NamedTuple):
    """The rows of a chart for the cores or the GPUs of a node: `rows` of them, each of a `height`, from `top` down."""

    first: int
    """The number of the first one in the schedule."""
    rows: int
    top: float
    height: float


def bands(nodes: Sequence[SharedNode]) -> list[Band]:
    """Return the bands of the cores of each node, then those of the GPUs of each node, which are below its cores."""
    cores, gpus, top = list[Band](), list[Band](), 0.0
    core, gpu = 0, sum(node.cores for node in nodes)
    for node in nodes:
        cores.append(Band(core, node.cores, top, 1.0))
        gpus.append(Band(gpu, node.gpus, top + node.cores, GPU_HEIGHT))
        core, gpu, top = core + node.cores, gpu + node.gpus, top + node.cores + node.gpus * GPU_HEIGHT + GAP
    return cores + gpus


def shared_boxes(schedule: Schedule, window: Span) -> list[GanttBox]:
    """Return the boxes of jobs on the cores and GPUs of shared nodes; `low` and `high` are heights in the chart."""
    where = bands(schedule.shared)
    firsts = [band.first for band in where]
    found, drawn = boxes(schedule, window), list[GanttBox]()
    with_gpus = {box.job for box in found if box.low >= schedule.nodes}
    for box in found:
        band = where[bisect_right(firsts, box.low) - 1]
        low, high = (band.top + (row - band.first) * band.height for row in (box.low, box.high))
        kind = GPUS if box.low >= schedule.nodes else WITH_GPUS if box.job in with_gpus else ON_CORES
        drawn.append(box._replace(low=low, high=high, kind=kind))
    return drawn


class Stay(NamedTuple):
    """The time for which a job has some cores of a node."""

    begin: int
    end: int
    cores: int


def core_rows(stays: Sequence[Stay], cores: int) -> list[list[tuple[int, int]]]:
    """Return the rows of each stay on a node of `cores` rows, as ranges from a first to a last row.

    No two stays have a row at the same time: each gets the first free rows in the order of their beginnings, adjacent
    ones where there are any (interval colouring, which is optimal in this order). Stays that do not fit get rows after
    those of the node.
    """
    found: list[list[tuple[int, int]]] = [[] for _ in stays]
    until = np.full(cores, np.iinfo(np.int64).min)
    for at in sorted(range(len(stays)), key=lambda at: (stays[at].begin, -stays[at].cores)):
        begin, end, wanted = stays[at]
        free = np.flatnonzero(until <= begin)
        if len(free) < wanted:
            until = np.pad(until, (0, wanted - len(free)), constant_values=begin)
            free = np.flatnonzero(until <= begin)
        adjacent = np.flatnonzero(free[wanted - 1 :] - free[: len(free) - wanted + 1] == wanted - 1)
        first = int(adjacent[0]) if len(adjacent) else 0
        rows = free[first : first + wanted]
        until[rows] = end
        found[at] = ranges(rows)
    return found


def ranges(numbers: Ints) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers in increasing numbers, each from its first to its last one."""
    begins = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 2) != 1)
    ends = np.flatnonzero(np.diff(numbers, append=numbers[-1:] + 2) != 1)
    return list(zip(numbers[begins].tolist(), numbers[ends].tolist(), strict=True))


def filler_boxes(runs: Ints | None, window: Span) -> list[GanttBox]:
    """Return the boxes of the runs of filler jobs in a window, clipped to it."""
    if runs is None:
        return []
    shown = runs[(runs[:, 2] < window.end) & (runs[:, 3] > window.begin)].tolist()
    return [_cut(GanttBox(one, begin, end, node, node + 1, FILLER), window) for one, node, begin, end in shown]


def _with_history(which: Bools, start: Ints, end: Ints, begin: int) -> Bools:
    """Return the jobs that end after `begin`, and the earlier jobs that may determine the parts of these."""
    while True:
        there = which & (end > begin)
        before = int(start[there].min(initial=begin))
        if before == begin:
            return there
        begin = before


def _inside(box: GanttBox, window: Span) -> bool:
    return box.begin < window.end and box.end > window.begin


def _cut(box: GanttBox, window: Span) -> GanttBox:
    return box._replace(begin=max(box.begin, window.begin), end=min(box.end, window.end))


def _whole_boxes(schedule: Schedule, which: Bools) -> Iterator[GanttBox]:
    for job, begin, end, _, runs in _rows(schedule, which):
        yield from (GanttBox(job, begin, end, low, high + 1, WHOLE) for low, high in runs)


def _shared_boxes(schedule: Schedule, which: Bools) -> Iterator[GanttBox]:
    nodes: dict[int, list[Residency]] = defaultdict(list)
    for job, begin, end, cores, runs in _rows(schedule, which):
        for node in itertools.chain.from_iterable(range(low, high + 1) for low, high in runs):
            nodes[node].append(Residency(begin, end, job, cores))
    for node, stays in nodes.items():
        for part in parts(stays, schedule.cores):
            yield part._replace(low=node + part.low / schedule.cores, high=node + part.high / schedule.cores)


def _rows(schedule: Schedule, which: Bools) -> Iterator[tuple[int, int, int, int, list[list[int]]]]:
    """Yield the index, start, end, cores of each node and runs of nodes of each of these jobs."""
    table = schedule.table
    for job in np.flatnonzero(which).tolist():
        end = int(table["end"][job])
        runs = schedule.runs[schedule.first[job] : schedule.first[job + 1]].tolist()
        begin, cores = int(table["start"][job]), int(table["share_at_start"][job])
        yield job, begin, schedule.until if end == UNKNOWN else end, cores, runs


def parts(stays: Iterable[Residency], cores: int) -> Iterator[GanttBox]:
    """Yield the part of a node that each of its jobs has, from change to change; `low` and `high` are in cores."""
    coming = sorted(stays, key=lambda stay: (stay.begin, -stay.cores, stay.job))
    times = sorted({stay.begin for stay in coming} | {stay.end for stay in coming})
    here: dict[Residency, int] = {}
    for now, then in itertools.pairwise(times):
        for stay in [stay for stay in here if stay.end <= now]:
            _leave(here, stay)
        while coming and coming[0].begin <= now:
            _join(here, coming.pop(0), cores)
        yield from _stacked(here, now, then, cores)


def _leave(here: dict[Residency, int], stay: Residency) -> None:
    left = here.pop(stay)
    for owner in itertools.islice(here, 1):
        here[owner] += left


def _join(here: dict[Residency, int], stay: Residency, cores: int) -> None:
    missing = stay.cores - (cores - sum(here.values()))
    for other, share in here.items():
        given = max(0, min(missing, share - (stay.cores < cores)))
        here[other] = share - given
        missing -= given
    here[stay] = stay.cores


def _stacked(here: dict[Residency, int], begin: int, end: int, cores: int) -> Iterator[GanttBox]:
    low = 0
    for place, (stay, share) in enumerate(here.items()):
        kind = WHOLE if share == cores else GUEST if place or len(here) == 1 else SHRUNK
        if share:
            yield GanttBox(stay.job, begin, end, low, low + share, kind)
        low += share
