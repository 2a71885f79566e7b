# SPDX-License-Identifier: Apache-2.0
"""Failures of nodes: drawn by rates, or read from a table; and what becomes of the jobs on them.

A node fails after a time that is distributed exponentially, and comes back after a repair whose time is so as well. The
times depend on the seed, the number of nodes, the rates and the log, so that they are the same under all policies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.engine.state import (
    BEGUN,
    FAILED,
    FAILED_JOB,
    FAILURES,
    IS_UP,
    LOSES,
    NO_OUTAGES,
    ON_NODE,
    WASTED,
    WHEN,
    Outages,
)
from drom.scheduler.errors import SchedulerError
from drom.workloads.choices import number, read_choices
from drom.workloads.errors import WorkloadError
from drom.workloads.rows import read_rows, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drom.scheduler.interface import Ints
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.workload import Workload

COLUMNS = ("node", "down", "up")
MOST = 1_000_000
"""The most failures of a simulation."""
YEAR = 365 * 86_400
LONGER = 10
"""Failures are drawn for so many times the time from the first to the last submission and that of all the work."""
_LIMITS = {"rate": 10_000.0, "repair": float(YEAR), "checkpoint": float(YEAR), "restart": float(YEAR), "lost": 1.0}


class Rates(NamedTuple):
    """The parameters of failures; times are in seconds."""

    rate: float = 0.0
    """Failures of a node in a year of 365 days."""
    repair: float = 21_600.0
    """The mean time until a node comes back."""
    checkpoint: int = 0
    restart: int = 0
    """As in `Outages`."""
    lost: int = 0
    """Whether jobs whose nodes fail are lost."""
    trace: str = ""
    """A table of failures, in place of a rate."""


def outages_of(said: Sequence[str], work: Workload, nodes: int, cores: int, seed: int) -> Outages:
    """Return the failures that texts ``NAME=VALUE`` describe: drawn by a rate, or of a trace; none without both.

    Raises SchedulerError or WorkloadError for what cannot be.
    """
    rates = _parse(said)
    table = read_outages(rates.trace, nodes) if rates.trace else draw_outages(rates, work, nodes, cores, seed)
    return Outages(table, rates.checkpoint, rates.restart, bool(rates.lost))


def _parse(choices: Iterable[str]) -> Rates:
    found = read_choices("--failures", choices, Rates._fields, _value, SchedulerError)
    rates = Rates(**found)
    if rates.trace and rates.rate:
        msg = f"--failures: the trace {rates.trace} has all failures: omit rate."
        raise SchedulerError(msg)
    if rates.restart > rates.checkpoint:
        msg = (
            f"--failures: restart={rates.restart} is above checkpoint={rates.checkpoint}: a job goes on from a "
            "checkpoint only if that is shorter; write restart <= checkpoint."
        )
        raise SchedulerError(msg)
    if rates.lost and rates.checkpoint:
        msg = "--failures: jobs that are lost do not go on from a checkpoint: omit lost=1 or checkpoint."
        raise SchedulerError(msg)
    return rates


def _value(name: str, text: str) -> tuple[Any, str]:
    if name == "trace":
        return text or None, "the name of a file"
    value, most = number(text), _LIMITS[name]
    if name in {"rate", "repair"}:
        return (value if 0 <= value <= most else None), f"a number from 0 to {most:,.0f}"
    return (int(value) if 0 <= value <= most and value % 1 == 0 else None), f"a whole number from 0 to {most:,.0f}"


def draw_outages(rates: Rates, work: Workload, nodes: int, cores: int, seed: int) -> Ints:
    """Return the failures and repairs of all nodes, as `World.outages`, from the first submission on.

    They end LONGER times after the submissions and the work would have ended one after the other: so every simulation
    ends, even if jobs fail again and again until then.
    """
    if not rates.rate or not len(work):
        return NO_OUTAGES.table
    begin, node_seconds = int(work.submit.min()), (-(-work.allocated // cores) * work.run_time).sum(dtype=np.float64)
    end = begin + LONGER * (int(work.submit.max()) - begin + node_seconds / nodes + int(work.run_time.max()))
    expected = rates.rate * nodes * (end - begin) / YEAR
    if expected > MOST / 2:
        msg = f"--failures: rate={rates.rate:g} makes {expected:,.0f} failures of {MOST:,}: choose a smaller rate."
        raise SchedulerError(msg)
    rng = np.random.default_rng(seed)
    found: list[Ints] = []
    node, then = np.arange(nodes), np.full(nodes, float(begin))
    while len(node):
        down = np.ceil(then + np.maximum(rng.exponential(YEAR / rates.rate, len(node)), 1))
        up = down + np.maximum(np.ceil(rng.exponential(rates.repair, len(node))), 1)
        there = down < end
        node, down, then = node[there], down[there], up[there]
        found.append(np.stack((node, down, then), axis=1).astype(np.int64))
    return _table(np.concatenate(found))


def read_outages(path: str, nodes: int) -> Ints:
    """Return the failures in a table with the columns node, down and up. Raises WorkloadError with the place."""
    rows, free = list[tuple[int, int, int]](), dict[int, int]()
    for row in sorted(read_rows(path, [COLUMNS]), key=lambda row: row.values["down"]):
        node, down, up = (whole(row, name) for name in COLUMNS)
        fault = ""
        if node >= nodes:
            fault = f"there is no node {node}: the machine has 0 to {nodes - 1}"
        elif up <= down:
            fault = f"node {node} comes back at {up}, and goes down at {down}: write a later second for up"
        elif down <= free.get(node, -1):
            fault = f"node {node} is down until {free[node]}: write one line for both times"
        if fault:
            msg = f"{row.place}: {fault}."
            raise WorkloadError(msg)
        free[node] = up
        rows.append((node, down, up))
    if len(rows) > MOST:
        msg = f"{path} has {len(rows):,} failures, and {MOST:,} are the most: take out some."
        raise WorkloadError(msg)
    return _table(np.array(rows, np.int64).reshape(-1, 3))


def _table(spans: Ints) -> Ints:
    """Return rows of a node, the second at which it goes down and that at which it comes back as changes of nodes."""
    node, down, up = spans.T
    changes = np.concatenate(
        [np.stack((when, node, np.full(len(node), is_up)), axis=1) for when, is_up in ((down, 0), (up, 1))]
    )
    return np.ascontiguousarray(changes[np.lexsort((changes[:, 1], changes[:, WHEN]))], np.int64)


def lost_jobs(run: Simulation) -> Ints:
    """Return the jobs that were lost, by index."""
    s = run.world.scalars
    return run.world.failures[: s[FAILURES], FAILED_JOB] if s[LOSES] else np.zeros(0, np.int64)


def failures_table(run: Simulation) -> dict[str, Ints]:
    """Return the failures of jobs, in their order: a column per property, times in seconds of the log."""
    rows = run.world.failures[: run.world.scalars[FAILURES]]
    jobs = rows[:, FAILED_JOB]
    return {
        "job_id": run.work.job[jobs],
        "start": rows[:, BEGUN],
        "end": rows[:, FAILED],
        "nodes": run.world.jobs.nodes[jobs],
        "node": rows[:, ON_NODE],
        "wasted_core_seconds": rows[:, WASTED],
    }


def figures(run: Simulation) -> dict[str, Any] | None:
    """Return what failed up to the last event; None if no node of the simulation fails."""
    table, begin, until = run.world.outages, int(run.work.submit[0]), run.now
    if not len(table):
        return None
    rows = run.world.failures[: run.world.scalars[FAILURES]]
    when = np.clip(table[:, WHEN], begin, max(begin, until))
    down = int(np.where(table[:, IS_UP] == 1, when, -when).sum())
    return {
        "node_failures": int(((table[:, IS_UP] == 0) & (table[:, WHEN] <= until)).sum()),
        "availability": 1 - down / (run.machine.nodes * max(1, until - begin)),
        "failures_of_jobs": len(rows),
        "failed_jobs": len(np.unique(rows[:, FAILED_JOB])),
        "lost_jobs": len(lost_jobs(run)),
        "wasted_core_seconds": int(rows[:, WASTED].sum()),
    }
