# SPDX-License-Identifier: Apache-2.0
"""The numbers in figures of schedules: levels over time, means per day, means by size and run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.schedule import UNKNOWN
from drom.workloads.levels import mean_level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.interface import Floats, Ints
    from drom.workloads.workload import Bools

HOUR, DAY = 3600, 86_400
TIMES = {"1 min": 60, "10 min": 600, "1 h": HOUR, "4 h": 4 * HOUR, "12 h": 12 * HOUR, "1 d": DAY}
"""The longest run time with all resources of each class; one more class has the longer ones."""


class Span(NamedTuple):
    """The time from the first submission to the last event, in seconds of the log."""

    begin: int
    end: int

    def edges(self, bins: int) -> Floats:
        """Return the ends of `bins` equal intervals, of shape ``(bins + 1,)``."""
        return np.linspace(self.begin, self.end, bins + 1)


def span_of(schedule: Schedule) -> Span:
    """Return the span of a schedule, of at least a second."""
    begin = int(schedule.table["submit"].min())
    return Span(begin, max(schedule.until, begin + 1))


def waiting(schedule: Schedule, edges: Floats) -> Floats:
    """Return the mean number of jobs in the queue in each interval."""
    table = schedule.table
    there = table["submit"] <= schedule.until
    left = np.where(table["start"] == UNKNOWN, schedule.until, table["start"])
    return mean_level(table["submit"][there], left[there], np.ones(int(there.sum())), edges)


def busy_nodes(schedule: Schedule, edges: Floats) -> Floats:
    """Return the mean number of busy nodes in each interval.

    A job's work, run time with all resources times nodes, is spread evenly over the time from its start to its end: the
    jobs of a shared node count for the parts that they have. A job that has not ended counts for all its nodes.
    """
    table = schedule.table
    there = table["start"] != UNKNOWN
    begin, nodes = table["start"][there], table["nodes"][there]
    ended = table["end"][there] != UNKNOWN
    end = np.where(ended, table["end"][there], schedule.until)
    speed = np.where(ended, table["full_speed_run_time"][there] / np.maximum(end - begin, 1), 1.0)
    return mean_level(begin, end, nodes * np.minimum(speed, 1), edges)


def period(span: Span) -> int:
    """Return the length in seconds of the periods into which charts divide a span: a day, or an hour if it is short."""
    return DAY if span.end - span.begin >= 4 * DAY else HOUR


def counts_per(length: int, span: Span, times: Ints) -> Ints:
    """Return the number of times in each period of the span."""
    return np.bincount((times - span.begin) // length, minlength=_periods(length, span)).astype(np.int64)


def means_per(length: int, span: Span, times: Ints, values: Floats) -> Floats:
    """Return the mean of the values in each period by their times; nan for a period without values."""
    sums = np.bincount((times - span.begin) // length, weights=values, minlength=_periods(length, span))
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts_per(length, span, times), np.float64)


def _periods(length: int, span: Span) -> int:
    return (span.end - span.begin) // length + 1


NODES, CORES = "nodes", "cores"
"""The units of the size of a job."""


class Grid(NamedTuple):
    """Means by class of job. Rows are sizes, columns run times; nan for a class without jobs."""

    means: Floats
    jobs: Ints
    sizes: tuple[str, ...]
    times: tuple[str, ...]
    unit: str = NODES


def unit_of(schedules: Iterable[Schedule]) -> str:
    """Return the unit in which the same jobs have the same sizes in all schedules: cores if their nodes differ."""
    sizes = {(schedule.cores, bool(schedule.shared)) for schedule in schedules}
    return NODES if len(sizes) == 1 and not sizes.pop()[1] else CORES


def grid_of(schedule: Schedule, values: Floats, which: Bools | None = None, unit: str = NODES) -> Grid:
    """Return the means of values, one per job, by size (powers of two) and run time with all resources."""
    needed = schedule.table["full_speed_run_time"]
    row = np.ceil(np.log2(schedule.table[unit])).astype(np.int64)
    column = np.searchsorted(list(TIMES.values()), needed)
    shape = (int(row.max()) + 1, len(TIMES) + 1)
    chosen = np.ones(len(row), np.bool_) if which is None else which
    place = np.ravel_multi_index((row[chosen], column[chosen]), shape)
    jobs = np.bincount(place, minlength=shape[0] * shape[1]).reshape(shape)
    sums = np.bincount(place, weights=values[chosen], minlength=shape[0] * shape[1]).reshape(shape)
    with np.errstate(invalid="ignore"):
        means = np.asarray(sums / jobs, np.float64)
    return Grid(means, jobs.astype(np.int64), size_names(shape[0]), (*TIMES, f"over {list(TIMES)[-1]}"), unit)


def size_names(count: int) -> tuple[str, ...]:
    """Return the names of `count` classes of sizes: 1, 2, 3-4, 5-8 and so on."""
    small = ("1", "2")
    return (*small, *(f"{2 ** (power - 1) + 1:,}-{2**power:,}" for power in range(2, count)))[:count]
