# SPDX-License-Identifier: Apache-2.0
"""Constraint programming live: the decisions of the simulator, without ever waiting for them."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.allocation.gaps import Gaps
from drom.scheduler.allocation.snapshot import PlannedStarts
from drom.scheduler.cp import simulation
from drom.scheduler.cp.jobs import Chunk, Job, table_of
from drom.scheduler.cp.live_planner import LivePlanner
from drom.scheduler.cp.model import Budget
from drom.scheduler.cp.planner import Planner, Portfolio
from drom.scheduler.cp.platform import Group, Platform, Queue
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster.controller import JobRequest
from drom.scheduler.live.cluster.resource_controller import PATIENCE, ResourceController

if TYPE_CHECKING:
    from drom.scheduler.cp.jobs import Jobs

pytest.importorskip("ortools")
pytestmark = pytest.mark.timeout(600)

GIB = 1 << 10
"""In MiB, as policies count memory."""
PLATFORM = Platform(
    "small",
    ("cores", "memory", "gpu"),
    (Group("gpu", 3, (8, 32 * GIB, 2)), Group("fat", 2, (16, 64 * GIB, 0))),
    (Queue("short", 600, 1800), Queue("usual", 3600, 21600), Queue("long", 28800, 86400)),
)
POLICY = load_policy("cp", ["window=6", "work=0.005"])


def some_jobs(seed: int, count: int = 40) -> Jobs:
    """Return jobs with one chunk each."""
    rng = np.random.default_rng(seed)
    jobs = []
    for _ in range(count):
        run_time = int(rng.integers(1, 600))
        request = int(rng.integers(1, 9)), int(rng.integers(0, 16)) * GIB, int(rng.choice((0, 0, 1, 2)))
        chunk = Chunk(int(rng.integers(1, 4)), request)
        queue, submit = int(rng.integers(0, 3)), int(rng.integers(0, 2000))
        jobs.append(Job(queue, submit, int(run_time * rng.uniform(1, 4)) + 1, run_time, (chunk,)))
    return table_of(jobs, PLATFORM)


def controller() -> ResourceController:
    """Return a controller that has the nodes of the platform."""
    found = ResourceController(POLICY)
    for node, (cores, memory, gpus) in enumerate(PLATFORM.capacity.tolist()):
        found.describe(node, cores, memory << 20, {"gpu": gpus} if gpus else {})
        found.node_up(node)
    return found


def request(jobs: Jobs, job: int) -> JobRequest:
    """Return what a policy knows of a job."""
    amounts = tuple(zip(PLATFORM.resources, jobs.request[job].tolist(), strict=True))
    expected = PLATFORM.queues[jobs.queue[job]].expected_wait_s
    units, walltime = int(jobs.units[job]), int(jobs.walltime[job])
    return JobRequest(units, walltime, most=NEVER, amounts=amounts, expected_wait=expected)


def turn(here: ResourceController, planner: LivePlanner, now: int) -> list[int]:
    """Let a controller decide at a second, with a planner that answers at once."""
    started = here.turn(now)
    if asked := here.take_question():
        here.answered(asked, planner(asked))
        started += here.turn(now)
    return started


@pytest.mark.parametrize("seed", range(5))
def test_the_same_events_give_the_decisions_of_the_simulator(seed: int) -> None:
    """Job by job and node by node, in three queues: submissions and ends come at the same seconds."""
    jobs = some_jobs(seed)
    planner = Planner(PLATFORM, Budget(0.005), 6)
    expected = simulation.simulate(jobs, PLATFORM.capacity, Portfolio(planner))

    here, live = controller(), LivePlanner(POLICY.options, 60.0)
    ends: list[tuple[int, int]] = []
    starts: dict[int, int] = {}
    nodes: dict[int, dict[int, int]] = {}
    arrived = 0
    while len(starts) < len(jobs.submit):
        coming = int(jobs.submit[arrived]) if arrived < len(jobs.submit) else NEVER
        now = min(ends[0][0] if ends else NEVER, coming)
        while ends and ends[0][0] <= now:
            here.ended(heapq.heappop(ends)[1], now)
        while arrived < len(jobs.submit) and jobs.submit[arrived] <= now:
            here.submit(arrived, request(jobs, arrived), now)
            arrived += 1
        for job in turn(here, live, now):
            starts[job], nodes[job] = now, {node: here.cores_on(job, node) for node in here.nodes_of(job)}
            heapq.heappush(ends, (now + int(jobs.run_time[job]), job))

    assert starts == dict(enumerate(expected.start.tolist()))
    for job, found in nodes.items():
        which, counts = np.unique(expected.node[jobs.unit[job] : jobs.unit[job + 1]], return_counts=True)
        assert found == dict(zip(which.tolist(), (counts * jobs.request[job, 0]).tolist(), strict=True))


def test_nothing_starts_before_the_plan_and_the_rule_decides_if_it_does_not_come() -> None:
    """For so long as patience lasts; a late answer changes nothing."""
    jobs, here = some_jobs(1), controller()
    here.submit(0, request(jobs, 0), 10)
    assert here.turn(10) == []
    asked = here.take_question()
    assert asked
    assert here.take_question() is None
    assert here.wake == 10 + PATIENCE
    assert here.turn(10 + PATIENCE - 1) == []
    assert here.turn(10 + PATIENCE) == [0]
    here.answered(asked, PlannedStarts({0: 10}, {0: {0: 1}}))
    assert here.turn(10 + PATIENCE) == []
    assert here.counts == (0, 1)


def test_the_rule_decides_at_once_where_the_planner_has_failed() -> None:
    """The next event is asked about again."""
    jobs, here = some_jobs(1), controller()
    here.submit(0, request(jobs, 0), 10)
    here.turn(10)
    asked = here.take_question()
    assert asked
    here.answered(asked, None)
    assert here.wake == 0
    assert here.turn(10) == [0]
    here.submit(1, request(jobs, 1), 11)
    here.turn(11)
    assert here.take_question()


def test_a_plan_starts_what_is_still_possible() -> None:
    """A job was cancelled meanwhile, and a node drained: another plan is asked for."""
    here, each = controller(), (("cores", 8), ("memory", 0))
    for job in range(3):
        here.submit(job, JobRequest(1, 60, amounts=each), 10)
    here.turn(10)
    asked = here.take_question()
    assert asked
    here.withdraw(0)
    here.node_down(4)
    here.answered(asked, PlannedStarts(dict.fromkeys(range(3), 10), {0: {3: 1}, 1: {4: 1}, 2: {3: 1}}))
    assert here.turn(11) == [2]
    assert here.wake == 0
    assert here.turn(11) == []
    again = here.take_question()
    assert again
    assert again.numbers == [1]


def test_jobs_that_do_not_fit_now_are_not_asked_about() -> None:
    """No plan could start one; and jobs whose nodes are down are left out."""
    here, everything = controller(), (("cores", 16), ("memory", 0))
    for job in range(3):
        here.submit(job, JobRequest(1, 60, amounts=everything), 10)
    here.submit(3, JobRequest(4, 60, amounts=(("cores", 8), ("gpu", 2))), 10)
    here.turn(10)
    asked = here.take_question()
    assert asked
    assert asked.numbers == [0, 1, 2]
    here.answered(asked, LivePlanner(POLICY.options, 60.0)(asked))
    assert here.turn(10) == [0, 1]
    here.submit(4, JobRequest(1, 60, amounts=everything), 11)
    assert here.turn(11) == []
    assert here.take_question() is None
    assert here.planned(2) == 70


def test_fillers_leave_before_a_planned_start() -> None:
    """They run at once, without the planner, and the nodes of a plan are free of them in time."""
    here, whole = ResourceController(POLICY, Gaps(0, 10)), (("cores", 4), ("memory", 0))
    for node in range(2):
        here.describe(node, 4, 0, {})
        here.node_up(node)
    here.submit(0, JobRequest(1, 60, amounts=whole), 10)
    for filler in (1, 2):
        here.submit(filler, JobRequest(1, 10**6, amounts=(("cores", 3), ("memory", 0)), fills=True), 10)
    assert sorted(here.turn(10)) == [1, 2]
    asked = here.take_question()
    assert asked
    assert asked.numbers == [0]
    here.answered(asked, PlannedStarts({0: 100}, {0: {1: 1}}))
    assert here.turn(10) == []
    assert here.fillers_to_save(10_999) == []
    assert here.save_at == 90_000
    assert here.turn(89) == []
    assert here.fillers_to_save(89_999) == []
    here.turn(90)
    (there,) = here.residents(1)
    assert here.fillers_to_save(90_000) == [there]
    here.ended(there, 93)
    assert here.turn(93) == []
