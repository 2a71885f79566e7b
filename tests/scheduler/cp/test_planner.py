# SPDX-License-Identifier: Apache-2.0
"""Plans for heterogeneous nodes: rules on examples made by hand, and what is true of every plan."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.cp.jobs import Chunk, Job, Jobs, table_of, weights
from drom.scheduler.cp.model import Budget, Problem, solve
from drom.scheduler.cp.placement import Plan, State
from drom.scheduler.cp.planner import Planner, Portfolio, in_order, objective, order_equals
from drom.scheduler.cp.platform import Group, Platform, Queue, load_platform
from drom.scheduler.cp.rules import FIFO, RULES, WALLTIME, Rule
from drom.scheduler.cp.simulation import Outcome, simulate
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.scheduler.reproduction.cp.generate import TESTS, jobs_of
from drom.scheduler.reproduction.cp.metrics import metrics_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.cp.simulation import Scheduler
    from drom.scheduler.interface import Ints

pytest.importorskip("ortools", reason="OR-tools is not installed")

SMALL = Platform("small", ("cores",), (Group("all", 2, (4,)),), (Queue("day", 10, 20), Queue("now", 1, 2)))


def a_job(walltime: int, units: int, cores: int, submit: int = 0, *, run_time: int = 0, queue: int = 0) -> Job:
    """Return a job of one chunk for SMALL."""
    return Job(queue, submit, walltime, run_time or walltime, (Chunk(units, (cores,)),))


def starts(jobs: Sequence[Job], scheduler: Scheduler) -> list[int]:
    """Return when jobs start on SMALL."""
    found: list[int] = simulate(table_of(jobs, SMALL), SMALL.capacity, scheduler).start.tolist()
    return found


def check_schedule(jobs: Jobs, capacity: Ints, plan: Plan | Outcome, ends: Ints) -> None:
    """Assert that nodes never give more than they have, at every start; jobs without a start do not count."""
    there = np.flatnonzero(plan.start < NEVER)
    for now in sorted(set(plan.start[there].tolist())):
        used = np.zeros_like(capacity)
        for job in there[(plan.start[there] <= now) & (ends[there] > now)]:
            chunks = slice(jobs.chunk[job], jobs.chunk[job + 1])
            node = plan.node[jobs.unit[job] : jobs.unit[job + 1]]
            assert node.min() >= 0
            np.add.at(used, node, np.repeat(jobs.request[chunks], jobs.units[chunks], axis=0))
        assert (used <= capacity).all()


def test_fifo_keeps_the_first_from_waiting_longer() -> None:
    """A short job goes in front where it ends before the head can start; a longer one would delay the head."""
    jobs = [a_job(10, 1, 4), a_job(5, 2, 4, 1), a_job(20, 1, 4, 2), a_job(8, 1, 4, 2)]

    assert starts(jobs, FIFO) == [0, 10, 15, 2]


def test_fifo_without_reservations_delays_the_head() -> None:
    """With a depth of 0 nobody has a reservation: the long job starts at once, and the head waits for it."""
    jobs = [a_job(10, 1, 4), a_job(5, 2, 4, 1), a_job(20, 1, 4, 2)]

    assert starts(jobs, Rule("greedy", by_walltime=False, depth=0)) == [0, 22, 2]


def test_walltime_takes_short_jobs_first() -> None:
    """Of the jobs that wait the one with the shortest walltime starts first, whatever it really takes."""
    jobs = [a_job(10, 2, 4), a_job(9, 2, 4, 1, run_time=1), a_job(5, 2, 4, 2), a_job(7, 2, 4, 3)]

    assert starts(jobs, WALLTIME) == [0, 22, 10, 15]


def test_units_share_nodes() -> None:
    """Four units of two cores fill two nodes of four; a fifth job of one core waits."""
    assert starts([a_job(10, 4, 2), a_job(3, 1, 1)], FIFO) == [0, 10]


def test_planner_puts_the_urgent_job_first() -> None:
    """Of two jobs of the same walltime that of the queue with the shorter expected wait starts first."""
    jobs = [a_job(10, 2, 4), a_job(5, 2, 4, 1), a_job(5, 2, 4, 2, queue=1)]

    assert starts(jobs, Planner(SMALL)) == [0, 15, 10]


def test_equal_jobs_start_in_the_order_in_which_they_wait() -> None:
    """Of two jobs with the same request, walltime and queue the earlier one starts first; the objective is the same."""
    jobs = table_of([a_job(2, 1, 4), a_job(2, 2, 4), a_job(2, 2, 4), a_job(5, 1, 4)], SMALL)
    waiting = np.arange(4)
    state = State(0, np.zeros(0, np.int64), waiting, SMALL.capacity, np.full(4, NEVER), np.full(6, -1))

    for scheduler in (Planner(SMALL), Portfolio(Planner(SMALL))):
        assert scheduler(state, jobs).start.tolist() == [4, 0, 2, 4]


def test_ordering_equal_jobs_exchanges_starts_and_nodes() -> None:
    """Jobs that differ in walltime, queue or request keep their place, and no node is overcommitted."""
    other = [a_job(4, 1, 2), a_job(3, 1, 2, queue=1), a_job(3, 1, 1), a_job(3, 2, 2)]
    jobs = table_of([a_job(3, 1, 2), *other, a_job(3, 1, 2), a_job(3, 1, 2)], SMALL)
    waiting, weight = np.arange(7), weights(jobs, SMALL)
    state = State(0, np.zeros(0, np.int64), waiting, SMALL.capacity, np.full(7, NEVER), np.full(8, -1))
    plan = in_order(state, jobs, waiting[::-1])
    start, node, worth = plan.start.copy(), plan.node.copy(), objective(plan, state, jobs, weight)
    order_equals(plan, state, jobs, weight)

    equal, units = [0, 5, 6], [0, 6, 7]
    assert start[equal].tolist() == [3, 0, 0]
    assert plan.start[equal].tolist() == [0, 0, 3]
    assert plan.node[units].tolist() == node[[6, 7, 0]].tolist()
    assert plan.start[1:5].tolist() == start[1:5].tolist()
    assert objective(plan, state, jobs, weight) == pytest.approx(worth)
    check_schedule(jobs, SMALL.capacity, plan, plan.start + jobs.walltime)


def test_metrics() -> None:
    """Waits over the longest that the queue allows, late jobs, and what they wait beyond it."""
    jobs = table_of([a_job(9, 1, 1), a_job(9, 1, 1, queue=1)], SMALL)

    assert metrics_of(jobs, SMALL, np.array([20, 5]), 6.0, 3) == (3.5, 1, 3, 2.0)


def random_jobs(seed: int, count: int) -> Jobs:
    """Return the first jobs of the second test, submitted six times as fast."""
    platform = load_platform("eurora")
    return table_of(
        [job._replace(submit=job.submit // 6) for job in jobs_of(TESTS[1], platform, seed)[:count]], platform
    )


class Watched:
    """A planner of which every plan is checked."""

    name = "watched"

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.plans = self.better = 0

    def __call__(self, state: State, jobs: Jobs) -> Plan:
        plan = self.planner(state, jobs)
        weight = weights(jobs, self.planner.platform)
        assert (plan.start[state.waiting] >= state.now).all()
        assert (plan.start[state.waiting] < NEVER).all()
        whole = Plan(
            np.where(state.started < NEVER, state.started, plan.start), np.where(state.node >= 0, state.node, plan.node)
        )
        ends = whole.start + jobs.walltime
        gone = np.setdiff1d(np.arange(len(ends)), np.concatenate((state.running, state.waiting)))
        whole.start[gone] = NEVER
        check_schedule(jobs, state.capacity, whole, ends)
        worth = objective(plan, state, jobs, weight)
        best = min(objective(rule.whole(state, jobs), state, jobs, weight) for rule in RULES)
        assert worth <= best
        self.plans += 1
        self.better += worth < best - 1e-9
        return plan


def test_plans_are_never_worse_than_the_rules() -> None:
    """At each call: capacities hold for walltimes, all who wait are planned, and the objective is at most a rule's."""
    jobs, platform = random_jobs(101, 60), load_platform("eurora")
    watched = Watched(Planner(platform))
    outcome = simulate(jobs, platform.capacity, watched)

    assert watched.plans > 10
    assert watched.better > 0
    check_schedule(jobs, platform.capacity, outcome, outcome.start + jobs.run_time)


def test_runs_repeat() -> None:
    """The deterministic budget gives the same schedule, whatever the machine does meanwhile."""
    jobs, platform = random_jobs(103, 40), load_platform("eurora")
    first, second = (simulate(jobs, platform.capacity, Planner(platform)).start for _ in range(2))

    assert first.tolist() == second.tolist()


def test_rules_and_portfolio_keep_capacities() -> None:
    """Every scheduler starts all jobs, none before its submission, on nodes that have room."""
    jobs, platform = random_jobs(104, 50), load_platform("eurora")

    for scheduler in (FIFO, WALLTIME, Portfolio(Planner(platform, window=0), most=5)):
        outcome = simulate(jobs, platform.capacity, scheduler)
        assert (outcome.start >= jobs.submit).all()
        check_schedule(jobs, platform.capacity, outcome, outcome.start + jobs.run_time)


def test_the_model_finds_the_best_order() -> None:
    """On one node the model is exact: its last solution is the best of all orders, and what runs is respected."""
    platform = Platform("one", ("cores",), (Group("all", 1, (4,)),), (Queue("day", 10, 20), Queue("now", 3, 6)))
    lengths = [(9, 4, 0), (4, 2, 1), (6, 3, 0), (3, 2, 0), (5, 4, 1), (2, 1, 0)]
    jobs = table_of([a_job(7, 1, 3), *(a_job(w, 1, c, queue=q) for w, c, q in lengths)], platform)
    running, waiting = np.array([0]), np.arange(1, 7)
    started, node = np.full(7, NEVER), np.full(7, -1)
    started[0] = node[0] = 0
    state, weight = State(2, running, waiting, platform.capacity, started, node), weights(jobs, platform)
    known = in_order(state, jobs, waiting)
    best = min(
        objective(in_order(state, jobs, np.array(order)), state, jobs, weight)
        for order in itertools.permutations(waiting)
    )
    found = solve(Problem(state, jobs, np.zeros(1, np.int64), waiting, weight, known), Budget(5))
    last = known.start.copy()
    last[waiting] = state.now + found[-1]

    assert objective(Plan(last, node), state, jobs, weight) == pytest.approx(best)
    assert objective(known, state, jobs, weight) > best


def test_a_scheduler_that_starts_nobody() -> None:
    """Jobs that wait for good are an error, in a sentence."""

    class Idle:
        name = "idle"

        def __call__(self, state: State, jobs: Jobs) -> Plan:
            assert len(jobs.submit) == 1
            return Plan(state.started.copy(), state.node.copy())

    with pytest.raises(SchedulerError, match="idle leaves 1 jobs waiting forever"):
        starts([a_job(1, 1, 1)], Idle())
