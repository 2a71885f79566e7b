# SPDX-License-Identifier: Apache-2.0
"""The model of Bridi et al., section 6, for OR-tools CP-SAT, over groups of equal nodes in place of single nodes.

Given: now t; waiting jobs i with walltimes d_i and weights w_i = 1 / ewt of their queue; their chunks c, u_c units each
of which asks for r_cl of resource l; groups g of nodes, and what these have free over time: running jobs stay, and so
do waiting ones that are not chosen. Variables: starts s_i >= t, and how many units of a chunk are in a group, n_cg.

    minimise  sum_i w_i s_i                       equation (2), whose submission times are constant
    sum_g n_cg = u_c                              alternative: each unit is somewhere
    cumulative over [s_i, s_i + d_i) of sum_c n_cg f_v(r_c), within F_gv over time, for each g and each size v

A size v is what some chunk asks for, as a whole or of one resource; f_v(r) = min_l floor(r_l / v_l) units of that size
would fit where a unit with request r is, and F_gv is how many fit on the nodes of g, one by one. Whatever fits on nodes
obeys this; in a group of one node, and v of one resource and amount 1, it is the paper's cumulative. For larger groups
it is a relaxation: what is taken from a solution is the order of its starts, and `placement` finds nodes and times.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.cp.jobs import fitting
from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.cp.placement import Plan, State
    from drom.scheduler.interface import Floats, Ints


class Budget(NamedTuple):
    """The time that CP-SAT may spend on a model."""

    work: float = 0.01
    """The deterministic time, which gives the same result on every machine; a unit is about a second."""
    seconds: float = 60.0
    """The real time: a guard that should not be reached, as results would then depend on the machine."""


DEFAULT = Budget()


class Problem(NamedTuple):
    """The jobs to order: the running jobs, the chosen waiting jobs, the weights of waits, and an initial plan."""

    state: State
    jobs: Jobs
    group: Ints
    """The group of each node, from 0 on."""
    chosen: Ints
    weight: Floats
    """By job."""
    plan: Plan
    """A known plan: its starts are the initial solution of the chosen jobs; the other waiting jobs keep them."""


def require() -> None:
    """Raise SchedulerError, with the remedy, if OR-tools is missing."""
    if importlib.util.find_spec("ortools") is None:
        raise SchedulerError("Constraint programming needs OR-tools: run pip install 'drom[cp]'.")


def solve(problem: Problem, budget: Budget) -> list[Ints]:
    """Return the solutions found in time, each better than the one before: a start for each chosen job.

    Starts are in the order of `chosen`, in seconds from now.
    """
    cp_model: Any = importlib.import_module("ortools.sat.python.cp_model")
    model, starts = _build(problem, cp_model.CpModel())
    found: list[Ints] = []

    class Collect(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]  # OR-tools is optional
        def on_solution_callback(self) -> None:
            found.append(np.array([self.value(start) for start in starts], np.int64))

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = budget.work
    solver.parameters.max_time_in_seconds = budget.seconds
    solver.parameters.catch_sigint_signal = False  # otherwise SIGINT ends this process at once from then on
    solver.solve(model, Collect())
    return found


def _build(problem: Problem, model: Any) -> tuple[Any, list[Any]]:  # noqa: ANN401 - OR-tools is optional
    """Add variables and constraints to a model, and return it with the starts."""
    state, jobs = problem.state, problem.jobs
    known = np.maximum(problem.plan.start[problem.chosen] - state.now, 0)
    horizon = int((known + jobs.walltime[problem.chosen]).max())
    starts = [model.new_int_var(0, horizon, "") for _ in problem.chosen]
    spans = [
        model.new_fixed_size_interval_var(start, int(jobs.walltime[job]), "")
        for start, job in zip(starts, problem.chosen, strict=True)
    ]
    for start, hint in zip(starts, known.tolist(), strict=True):
        model.add_hint(start, hint)
    units = [list(_units(problem, model, int(job))) for job in problem.chosen]
    left = FreeCapacity.of(problem)
    steps = [model.new_fixed_size_interval_var(a, b - a, "") for a, b in itertools.pairwise(left.times.tolist())]
    for group, size in _sizes(problem):
        asked = [sum(numbers[group] * fit(request, size) for request, numbers in each) for each in units]
        used = [(span, amount) for span, amount in zip(spans, asked, strict=True) if not _is_zero(amount)]
        most, held = left.slots(problem, group, size)
        taken = [(span, amount) for span, amount in zip(steps, held, strict=False) if amount]
        if used:
            model.add_cumulative(*zip(*used, *taken, strict=True), most)
    scaled = np.rint(1000 * problem.weight[problem.chosen] / problem.weight[problem.chosen].min()).astype(np.int64)
    model.minimize(sum(start * int(weight) for start, weight in zip(starts, scaled, strict=True)))
    return model, starts


def _is_zero(amount: Any) -> bool:  # noqa: ANN401 - a number or an expression
    return isinstance(amount, int) and amount == 0


def _units(problem: Problem, model: Any, job: int) -> Iterator[tuple[Ints, list[Any]]]:  # noqa: ANN401 - as above
    """Yield the request of each chunk of a job, and the numbers of its units in each group."""
    jobs, unit = problem.jobs, int(problem.jobs.unit[job])
    for chunk in range(jobs.chunk[job], jobs.chunk[job + 1]):
        request, units = jobs.request[chunk], int(jobs.units[chunk])
        room = np.bincount(problem.group, fitting(problem.state.capacity, request)).astype(np.int64)
        if np.count_nonzero(room) == 1:
            yield request, [units if most else 0 for most in room.tolist()]
            unit += units
            continue
        numbers = [model.new_int_var(0, min(units, most), "") if most else 0 for most in room.tolist()]
        model.add(sum(numbers) == units)
        hints = np.bincount(problem.group[problem.plan.node[unit : unit + units]], minlength=len(room))
        for number, hint in zip(numbers, hints.tolist(), strict=True):
            if not isinstance(number, int):
                model.add_hint(number, hint)
        unit += units
        yield request, numbers


def _sizes(problem: Problem) -> Iterator[tuple[int, Ints]]:
    """Yield groups and the sizes of units counted in them: the requests of chunks, as a whole and of each resource."""
    jobs = problem.jobs
    chunks = np.concatenate([np.arange(jobs.chunk[job], jobs.chunk[job + 1]) for job in problem.chosen])
    requests = np.unique(jobs.request[chunks], axis=0)
    single = [np.diag(request) for request in requests]
    sizes = np.unique(np.concatenate((requests, *single)), axis=0)
    sizes = sizes[sizes.any(axis=1)]
    for group in range(int(problem.group.max()) + 1):
        capacity = problem.state.capacity[problem.group == group]
        seen: set[tuple[int, ...]] = set()
        for size in sizes:
            key = (*(fit(request, size) for request in requests), *fitting(capacity, size).tolist())
            if any(key) and key not in seen:
                seen.add(key)
                yield group, size


def fit(request: Ints, size: Ints) -> int:
    """Return the number of units of a size that would fit in the place of a unit with this request."""
    which = size > 0
    return int((request[which] // size[which]).min())


class FreeCapacity(NamedTuple):
    """The resources left for the chosen jobs: seconds from now, 0 first, and the free amounts of nodes from each on."""

    times: Ints
    free: Ints
    """Shape ``(times, nodes, resources)``; after the last one everything is free."""

    @classmethod
    def of(cls, problem: Problem) -> FreeCapacity:
        """Return the resources that the running jobs, and the waiting jobs that are not chosen, leave."""
        state, jobs, plan = problem.state, problem.jobs, problem.plan
        fixed = np.setdiff1d(state.waiting, problem.chosen)
        begins = np.concatenate((np.zeros(len(state.running), np.int64), plan.start[fixed] - state.now))
        ends = np.concatenate((state.started[state.running], plan.start[fixed])) - state.now
        ends = np.maximum(ends + jobs.walltime[np.concatenate((state.running, fixed))], 1)
        times = np.unique(np.concatenate(([0], begins, ends)))
        change = np.zeros((len(times), *state.capacity.shape), np.int64)
        change[0] = state.capacity
        first, last = np.searchsorted(times, begins), np.searchsorted(times, ends)
        nodes = [state.node] * len(state.running) + [plan.node] * len(fixed)
        for i, job in enumerate([*state.running.tolist(), *fixed.tolist()]):
            chunks = slice(jobs.chunk[job], jobs.chunk[job + 1])
            asked = np.repeat(jobs.request[chunks], jobs.units[chunks], axis=0)
            node = nodes[i][jobs.unit[job] : jobs.unit[job + 1]]
            np.subtract.at(change[first[i]], node, asked)
            np.add.at(change[last[i]], node, asked)
        return cls(times, change.cumsum(axis=0))

    def slots(self, problem: Problem, group: int, size: Ints) -> tuple[int, list[int]]:
        """Return how many units of a size fit on the empty nodes of a group, and how many fewer from each time on."""
        which = size > 0
        fits = (self.free[:, problem.group == group][:, :, which] // size[which]).min(axis=2).sum(axis=1)
        return int(fits[-1]), (fits[-1] - fits).tolist()
