# SPDX-License-Identifier: Apache-2.0
"""The power of a simulated machine over time, by the node model of `drom.scheduler.analysis.metrics`.

It follows from the schedule: a node is empty between its jobs, and off when it has been empty for long enough. So its
integral is the energy of the metrics.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.analysis.metrics import malleable
from drom.scheduler.analysis.schedule import UNKNOWN
from drom.scheduler.analysis.series import span_of
from drom.scheduler.simulator.sleep import sleep_of
from drom.workloads.levels import mean_level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.analysis.metrics import Power
    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.interface import Floats, Ints
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.workload import Bools

_ROWS = 500_000
"""About how many stays of jobs on nodes are sorted at a time."""


def watts(run: Simulation, schedule: Schedule, power: Power, edges: Floats) -> Floats:
    """Return the mean power of the machine between each two of `edges`; nan in a pool, and if nodes fail.

    Which processors jobs had in a pool is not kept, nor are the nodes that a job had before it failed.
    """
    if run.policy.pooled or len(run.world.outages):
        return np.full(len(edges) - 1, np.nan)
    table, sleep = schedule.table, sleep_of(run.world)
    started, ended = table["start"] != UNKNOWN, table["end"] != UNKNOWN
    begin = np.where(started, table["start"] if sleep is None else run.world.taken, schedule.until)
    end = np.where(ended, table["end"], schedule.until)
    if sleep is None:
        busy, off = _busy(schedule, begin, end, edges), np.zeros(len(edges) - 1)
    else:
        busy, off = _busy_and_off(schedule, begin, end, sleep.after, edges)
    return np.asarray(power.idle * schedule.nodes + (power.peak - power.idle) * busy + (power.off - power.idle) * off)


def _busy(schedule: Schedule, begin: Ints, end: Ints, edges: Floats) -> Floats:
    """Return the mean number of nodes with a job; only jobs that share nodes are looked at node by node."""
    shares = malleable(schedule.table, schedule.cores) | (schedule.table["lent"] > 0)
    busy = schedule.nodes + mean_level(begin[~shares], end[~shares], schedule.table["nodes"][~shares], edges)
    for since, until in _gaps(schedule, begin, end, shares):
        busy -= mean_level(since, until, np.ones(len(since)), edges)
    return busy


def _busy_and_off(schedule: Schedule, begin: Ints, end: Ints, after: int, edges: Floats) -> tuple[Floats, Floats]:
    """Return the mean number of nodes with a job, also if they wake up for it, and that of nodes that are off."""
    busy, off = np.full(len(edges) - 1, float(schedule.nodes)), np.zeros(len(edges) - 1)
    for since, until in _gaps(schedule, begin, end, np.ones(len(begin), np.bool_)):
        busy -= mean_level(since, until, np.ones(len(since)), edges)
        dark = until - since > after
        off += mean_level(since[dark] + after, until[dark], np.ones(int(dark.sum())), edges)
    return busy, off


def _gaps(schedule: Schedule, begin: Ints, end: Ints, which: Bools) -> Iterator[tuple[Ints, Ints]]:
    """Yield when nodes have none of some jobs, which are there from `begin` to `end`: a block of nodes at a time.

    A stay of no time at the beginning and one at the end of the schedule bound these gaps.
    """
    span = span_of(schedule)
    of = np.repeat(np.arange(len(which)), np.diff(schedule.first))
    of, (lows, highs) = of[which[of]], schedule.runs[which[of]].T
    blocks = min(schedule.nodes, 1 + int((highs - lows + 1).sum()) // _ROWS)
    for low, high in pairwise(np.linspace(0, schedule.nodes, blocks + 1).astype(int).tolist()):
        first, last = np.maximum(lows, low), np.minimum(highs, high - 1)
        count = np.maximum(last - first + 1, 0)
        stays = np.repeat(of, count)
        bounds, width = np.arange(low, high), span.end - span.begin + 1
        own = np.arange(len(stays)) + np.repeat(first - np.cumsum(count) + count, count)
        node = np.concatenate((bounds, own, bounds))
        since = np.concatenate((np.full(len(bounds), span.begin), begin[stays], np.full(len(bounds), span.end)))
        until = np.concatenate((np.full(len(bounds), span.begin), end[stays], np.full(len(bounds), span.end)))
        order = np.lexsort((since, node))
        base = (node * width - span.begin)[order]  # puts the times of a node behind those of the nodes before it
        latest, then = np.maximum.accumulate(until[order] + base)[:-1], (since[order] + base)[1:]
        empty = np.flatnonzero((then > latest) & (base[1:] == base[:-1]))
        yield (latest - base[:-1])[empty], (then - base[1:])[empty]
