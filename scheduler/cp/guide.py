# SPDX-License-Identifier: Apache-2.0
"""`drom simulate --policy cp`: a log on equal nodes, planned by constraint programming before each call of the policy.

The search is not a loop over arrays that could be compiled with a policy. The simulation therefore calls a `Guide`, and
the policy `cp` carries out its decisions. A guide sees what any policy sees: running jobs, waiting jobs and requested
times.

Jobs have whole nodes. The machine is therefore modelled as one node whose only resource is nodes, and a job as one unit
of it, which is exact and fast. Logs have no expected waiting times: all jobs are in one queue, and the objective is the
sum of waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.cp.jobs import Jobs
from drom.scheduler.cp.model import Budget, require
from drom.scheduler.cp.placement import State, compiled
from drom.scheduler.cp.planner import Planner, Portfolio
from drom.scheduler.cp.platform import Group, Platform, Queue
from drom.scheduler.cp.simulation import warm_up
from drom.scheduler.engine.present import present_jobs
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Floats, Ints

HOUR = 3600


class CpPlanner:
    """Plans the waiting jobs of a simulation for the policy `cp`. Its only memory between calls is `Jobs.planned`."""

    def __init__(self, world: World, options: Mapping[str, float]) -> None:
        """Create a guide for a simulation's world and the policy's options. Raises SchedulerError without OR-tools."""
        require()
        nodes = len(world.nodes.up)
        platform = Platform("log", ("nodes",), (Group("all", 1, (nodes,)),), (Queue("all", HOUR, HOUR),))
        self._capacity = platform.capacity
        self._jobs = _table(world)
        self._planner = Planner(platform, Budget(options["work"]), int(options["window"]))
        self._scheduler = Portfolio(self._planner, int(options["most"]))
        warm_up(self._jobs, self._capacity)

    def __call__(self, world: World, now: int) -> Floats:
        """Return the planned start of each job, of shape ``(jobs,)``, for a second at which the policy is called.

        It is NEVER for jobs that are not planned, and for all jobs if none can start now.
        """
        state = self._state(world, now)
        if not (len(state.waiting) and compiled().any_fits(state, self._jobs)):
            return np.full(len(world.queue), NEVER, np.float64)
        self._planner.last = world.jobs.planned
        return self._scheduler(state, self._jobs).start.astype(np.float64)

    def _state(self, world: World, now: int) -> State:
        """Return the jobs that run and wait once all events up to the second `now` have happened."""
        running, waiting = present_jobs(world, now)
        everywhere = np.zeros(len(world.queue), np.int64)
        return State(now, running, waiting, self._capacity, world.jobs.start, everywhere)


def _table(world: World) -> Jobs:
    """Return the jobs for the planner, which does not see real run times."""
    jobs, count = world.jobs, len(world.queue)
    each: Ints = np.arange(count + 1, dtype=np.int64)
    size = jobs.nodes.reshape(-1, 1).copy()
    return Jobs(
        queue=np.zeros(count, np.int64),
        submit=jobs.submit.copy(),
        walltime=jobs.requested.copy(),
        run_time=jobs.requested.copy(),
        chunk=each,
        unit=each,
        units=np.ones(count, np.int64),
        request=size,
        total=size,
        nodes=np.zeros((count, 1), np.int64),
        most=np.ones(count, np.int64),
    )
