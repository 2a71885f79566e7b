# SPDX-License-Identifier: Apache-2.0
"""Plans by constraint programming: the best of several greedy ones, improved in a neighbourhood by CP-SAT.

Every candidate is a plan of all waiting jobs in which nodes are never overcommitted. The one with the least objective,
equation (2), is chosen, so that a plan is never worse than that of the better rule. The candidates are those of the two
rules, jobs by weighted shortest work (Smith's ratio, with the largest share of a resource as width), and the order of
the last plan. CP-SAT gets the first `window` jobs of the best candidate, and the others keep their times. Its solution
is placed on nodes as an order, and is used if it is better. As the last plan is a candidate, improvements are kept.

The objective does not tell jobs of the same request, walltime and weight apart. These start in the order in which they
wait.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.cp.jobs import weights
from drom.scheduler.cp.model import DEFAULT, Problem, solve
from drom.scheduler.cp.placement import planned
from drom.scheduler.cp.rules import FIFO, RULES, WALLTIME
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.cp.model import Budget
    from drom.scheduler.cp.placement import Plan, State
    from drom.scheduler.cp.platform import Platform
    from drom.scheduler.interface import Floats, Ints


TRIED = 4
"""The most solutions of a model that are tried: the last one, and some earlier ones, which change the plan less."""


@dataclass
class Planner:
    """Plans by constraint programming; remembers its last plan."""

    platform: Platform
    budget: Budget = DEFAULT
    window: int = 8
    """The most jobs that CP-SAT orders at once; 0: only greedy plans."""
    name: str = "CP"
    last: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """The starts of the last plan, by job."""

    def __call__(self, state: State, jobs: Jobs) -> Plan:
        """Return the best plan of all waiting jobs."""
        weight = weights(jobs, self.platform)
        best = min(self._greedy(state, jobs, weight), key=lambda plan: objective(plan, state, jobs, weight))
        if self.window and len(state.waiting) > 1:
            better = self._improved(best, state, jobs, weight)
            best = min(best, better, key=lambda plan: objective(plan, state, jobs, weight))
        order_equals(best, state, jobs, weight)
        self.last = best.start
        return best

    def _greedy(self, state: State, jobs: Jobs, weight: Floats) -> Iterator[Plan]:
        for rule in RULES:
            yield rule.whole(state, jobs)
        yield in_order(state, jobs, state.waiting[np.argsort(ratio(state, jobs, weight), kind="stable")])
        if len(self.last) == len(jobs.submit):
            yield in_order(state, jobs, state.waiting[np.argsort(self.last[state.waiting], kind="stable")])

    def _improved(self, best: Plan, state: State, jobs: Jobs, weight: Floats) -> Plan:
        """Return the best plan with its first jobs in an order found by CP-SAT; `best` itself if none is better."""
        order = state.waiting[np.argsort(best.start[state.waiting], kind="stable")]
        first, rest = order[: self.window], order[self.window :]
        group = np.repeat(np.arange(len(self.platform.groups)), [group.nodes for group in self.platform.groups])
        found = solve(Problem(state, jobs, group, first, weight, best), self.budget)
        plans = [best]
        for i in range(0, len(found), math.ceil(len(found) / TRIED) or 1):
            starts = np.concatenate((state.now + found[-1 - i], best.start[rest]))
            plans.append(in_order(state, jobs, order[np.argsort(starts, kind="stable")]))
        return min(plans, key=lambda plan: objective(plan, state, jobs, weight))


def in_order(state: State, jobs: Jobs, order: Ints) -> Plan:
    """Return the plan in which each job in turn gets its earliest start."""
    return planned(state, jobs, order, NEVER, whole=True)


def objective(plan: Plan, state: State, jobs: Jobs, weight: Floats) -> float:
    """Return equation (2): the sum of the waits of the waiting jobs, each in expected waiting times of its queue."""
    waiting = state.waiting
    return float(((plan.start[waiting] - jobs.submit[waiting]) * weight[waiting]).sum())


def order_equals(plan: Plan, state: State, jobs: Jobs, weight: Floats) -> None:
    """Exchange starts and nodes among equal waiting jobs in a plan, so that they start in the order in which they wait.

    Neither the objective nor what is free on the nodes changes.
    """
    equals: dict[tuple[object, ...], list[int]] = {}
    for job in state.waiting.tolist():
        chunks = slice(jobs.chunk[job], jobs.chunk[job + 1])
        asked = (column[chunks].tobytes() for column in (jobs.units, jobs.request, jobs.nodes, jobs.most))
        equals.setdefault((jobs.walltime[job], weight[job], *asked), []).append(job)
    for each in equals.values():
        by_start = sorted(each, key=plan.start.__getitem__)
        if by_start != each:
            plan.start[each] = plan.start[by_start]
            plan.node[_units(jobs, each)] = plan.node[_units(jobs, by_start)]


def _units(jobs: Jobs, which: list[int]) -> Ints:
    return np.concatenate([np.arange(jobs.unit[job], jobs.unit[job + 1]) for job in which])


def ratio(state: State, jobs: Jobs, weight: Floats) -> Floats:
    """Return Smith's ratio of the waiting jobs: walltime times share of the machine, over weight."""
    waiting = state.waiting
    share = (jobs.total[waiting] / np.maximum(state.capacity.sum(axis=0), 1)).max(axis=1)
    return np.asarray(jobs.walltime[waiting] * share / weight[waiting], np.float64)


@dataclass
class Portfolio:
    """A rule or constraint programming, depending on the number of waiting jobs.

    For a single job there is nothing to order; for very many jobs the rule by walltime is far cheaper.
    """

    planner: Planner
    most: int = 150
    """The most waiting jobs for which constraint programming is used."""
    name: str = "portfolio"

    def __call__(self, state: State, jobs: Jobs) -> Plan:
        """Return the plan of the chosen scheduler."""
        waiting = len(state.waiting)
        if waiting == 1:
            return FIFO(state, jobs)
        return WALLTIME(state, jobs) if waiting > self.most else self.planner(state, jobs)
