# SPDX-License-Identifier: Apache-2.0
"""The simulator's portfolio of constraint programming and rules, asked with the jobs of a live cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.allocation.snapshot import PlannedStarts
from drom.scheduler.cp.jobs import Jobs
from drom.scheduler.cp.model import Budget
from drom.scheduler.cp.placement import State
from drom.scheduler.cp.planner import Planner, Portfolio
from drom.scheduler.cp.platform import Group, Platform, Queue
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.allocation.snapshot import Snapshot
    from drom.scheduler.interface import Ints


class LivePlanner:
    """Plans by constraint programming or a rule, as the parameters of policy `cp` say; remembers its last plan."""

    def __init__(self, options: Mapping[str, float], seconds: float) -> None:
        """Create a planner; its solver stops by its deterministic budget, and after `seconds` at the latest."""
        self._budget = Budget(options["work"], seconds)
        self._window, self._most = int(options["window"]), int(options["most"])
        self._last: dict[int, int] = {}

    def __call__(self, asked: Snapshot) -> PlannedStarts:
        """Return the plan for a snapshot."""
        capacity, back = _grouped(asked.capacity)
        waits, queue = np.unique(asked.expected, return_inverse=True)
        queues = tuple(Queue("", wait, wait) for wait in waits.tolist())
        platform = Platform("cluster", (), _groups_of(capacity), queues)
        running = len(asked.held.end)
        jobs, state = _jobs_of(asked, queue.ravel(), back), _state_of(asked, capacity, back)
        planner = Planner(platform, self._budget, self._window)
        if self._last:
            planner.last = np.full(len(jobs.submit), NEVER, np.int64)
            planner.last[running:] = [self._last.get(number, NEVER) for number in asked.numbers]
        plan = Portfolio(planner, self._most)(state, jobs)
        starts = {number: int(plan.start[running + row]) for row, number in enumerate(asked.numbers)}
        by_rule = planner.last is not plan.start
        if not by_rule:
            self._last = {number: start for number, start in starts.items() if start < NEVER}
        units: dict[int, dict[int, int]] = {}
        place = np.argsort(back)
        for row, number in enumerate(asked.numbers):
            if starts[number] < NEVER:
                job = running + row
                nodes, counts = np.unique(plan.node[jobs.unit[job] : jobs.unit[job + 1]], return_counts=True)
                units[number] = dict(zip(place[nodes].tolist(), counts.tolist(), strict=True))
        return PlannedStarts(starts, units, by_rule)


def _grouped(capacity: Ints) -> tuple[Ints, Ints]:
    """Return nodes with equal ones side by side, in the order of the first of each kind, and their new numbers."""
    _, first, group = np.unique(capacity, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first[group.ravel()], kind="stable")
    return capacity[order], np.argsort(order).astype(np.int64)


def _groups_of(capacity: Ints) -> tuple[Group, ...]:
    """Return the groups of equal nodes that lie side by side."""
    starts = np.flatnonzero(np.concatenate(([True], (capacity[1:] != capacity[:-1]).any(axis=1))))
    counts = np.diff(np.concatenate((starts, [len(capacity)])))
    return tuple(
        Group(f"nodes{number}", int(count), tuple(capacity[start].tolist()))
        for number, (start, count) in enumerate(zip(starts, counts, strict=True))
    )


def _jobs_of(asked: Snapshot, queue: Ints, back: Ints) -> Jobs:
    """Return the parts of running jobs, as jobs of one unit, and the waiting jobs behind them, in their queues."""
    running, waiting = len(asked.held.end), len(asked.numbers)
    one, zeros = np.ones(running, np.int64), np.zeros(running + waiting, np.int64)
    units = np.concatenate((one, asked.requests.units))
    length = np.concatenate((asked.held.end - asked.now, asked.requests.length))
    request = np.concatenate((asked.held.amount, asked.requests.amount))
    suited = np.where(asked.suited >= 0, back[asked.suited], -1)
    nodes = np.full((running + waiting, len(back)), -1, np.int64)
    nodes[running:] = suited[asked.requests.kind]
    return Jobs(
        queue=np.concatenate((zeros[:running], queue)),
        submit=np.concatenate((zeros[:running], asked.submitted)),
        walltime=length,
        run_time=length,
        chunk=np.arange(running + waiting + 1, dtype=np.int64),
        unit=np.concatenate(([0], np.cumsum(units))).astype(np.int64),
        units=units,
        request=request,
        total=request * units[:, None],
        nodes=nodes,
        most=np.concatenate((one, asked.requests.most)),
    )


def _state_of(asked: Snapshot, capacity: Ints, back: Ints) -> State:
    running, waiting = len(asked.held.end), len(asked.numbers)
    started = np.full(running + waiting, NEVER, np.int64)
    started[:running] = asked.now
    node = np.full(running + int(asked.requests.units.sum()), -1, np.int64)
    node[:running] = back[asked.held.node]
    return State(
        asked.now,
        np.arange(running, dtype=np.int64),
        np.arange(running, running + waiting, dtype=np.int64),
        capacity,
        started,
        node,
    )
