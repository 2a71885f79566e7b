# SPDX-License-Identifier: Apache-2.0
"""An online simulation of jobs under a scheduler, which is called at each submission and each end.

The scheduler knows the jobs' walltimes but not their run times. In each second, ends come before submissions, and one
call handles both. The resources of running jobs never change; of a plan, only the jobs that start now are used.
"""

from __future__ import annotations

import heapq
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from drom.scheduler.cp.placement import State, compiled, planned
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.cp.placement import Plan
    from drom.scheduler.interface import Ints


class Scheduler(Protocol):
    """A scheduler that plans waiting jobs."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def __call__(self, state: State, jobs: Jobs) -> Plan:
        """Return a plan of at least the waiting jobs that are to start now."""


class Outcome(NamedTuple):
    """The result of a simulation: starts by job, nodes by unit, and the time that the scheduler took."""

    start: Ints
    node: Ints
    calls: int
    seconds: float
    """The CPU time, on which other programs of the machine have little effect."""
    longest: float
    """The CPU time of the longest call."""


def simulate(jobs: Jobs, capacity: Ints, scheduler: Scheduler) -> Outcome:
    """Simulate jobs until all have started.

    `capacity` has shape ``(nodes, resources)``. Raises SchedulerError if the scheduler leaves jobs waiting forever.
    """
    warm_up(jobs, capacity)
    plan = Outcome(np.full(len(jobs.submit), NEVER, np.int64), np.full(int(jobs.unit[-1]), -1, np.int64), 0, 0.0, 0.0)
    waiting: list[int] = []
    running: list[tuple[int, int]] = []  # a heap of ends and jobs
    took: list[float] = []
    arrived = 0
    while waiting or arrived < len(jobs.submit):
        if not running and arrived == len(jobs.submit):
            msg = f"{scheduler.name} leaves {len(waiting)} jobs waiting forever."
            raise SchedulerError(msg)
        now = min(
            running[0][0] if running else NEVER, int(jobs.submit[arrived]) if arrived < len(jobs.submit) else NEVER
        )
        while running and running[0][0] <= now:
            heapq.heappop(running)
        while arrived < len(jobs.submit) and jobs.submit[arrived] <= now:
            waiting.append(arrived)
            arrived += 1
        if not waiting:
            continue
        going = np.array([job for _, job in running], np.int64)
        state = State(now, going, np.array(waiting, np.int64), capacity, plan.start, plan.node)
        begun = time.process_time()
        if compiled().any_fits(state, jobs):
            for job in _started(scheduler(state, jobs), state, jobs):
                heapq.heappush(running, (now + int(jobs.run_time[job]), job))
                waiting.remove(job)
        took.append(time.process_time() - begun)
    return plan._replace(calls=len(took), seconds=sum(took), longest=max(took, default=0.0))


def _started(plan: Plan, state: State, jobs: Jobs) -> list[int]:
    """Start the jobs that a plan starts now and return them."""
    started: list[int] = state.waiting[plan.start[state.waiting] == state.now].tolist()
    for job in started:
        units = slice(jobs.unit[job], jobs.unit[job + 1])
        state.started[job], state.node[units] = state.now, plan.node[units]
    return started


def warm_up(jobs: Jobs, capacity: Ints) -> None:
    """Compile the functions of schedulers, as compilation must not count as their overhead."""
    nobody = np.zeros(0, np.int64)
    blank = np.full(int(jobs.unit[-1]), -1, np.int64)
    state = State(0, nobody, nobody, capacity, np.full(len(jobs.submit), NEVER, np.int64), blank)
    compiled().any_fits(state, jobs)
    planned(state, jobs, nobody, 0, whole=True)
