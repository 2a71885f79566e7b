# SPDX-License-Identifier: Apache-2.0
"""The parts of nodes that jobs had over time, as the rectangles of a Gantt chart.

The parts are derived from the starts. The residents of a node gave up what a guest has of it at its start, the owner
first. A job that leaves gives its part to the owner; an owner that leaves gives its part to its first guest, which
becomes the owner. That is exact for policies that resize jobs for guests alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.metrics import malleable
from drom.scheduler.analysis.schedule import UNKNOWN
from drom.scheduler.analysis.series import DAY, Span, counts_per, span_of, waiting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.interface import Ints
    from drom.workloads.workload import Bools

WHOLE, SHRUNK, GUEST, FILLER = 0, 1, 2, 3
"""The kinds of boxes: a job on a whole node, an owner on what its guests leave it, a guest on a part, a gap filler."""
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
    alone = _whole_boxes(schedule, started & (end > window.begin) & ~sharing)
    shared = _shared_boxes(schedule, _with_history(sharing, table["start"], end, window.begin))
    return [_cut(box, window) for box in (*alone, *shared) if _inside(box, window)]


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
        given = max(0, min(missing, share - 1))
        here[other] = share - given
        missing -= given
    here[stay] = stay.cores


def _stacked(here: dict[Residency, int], begin: int, end: int, cores: int) -> Iterator[GanttBox]:
    low = 0
    for place, (stay, share) in enumerate(here.items()):
        kind = WHOLE if share == cores else GUEST if place or len(here) == 1 else SHRUNK
        yield GanttBox(stay.job, begin, end, low, low + share, kind)
        low += share
