# SPDX-License-Identifier: Apache-2.0
"""`drom simulate --policy cp`: a log on equal nodes, planned by constraint programming.

Jobs have whole nodes, so that the machine is one node whose only resource is nodes, and a job one unit of it: exact,
and fast. Logs say nothing of expected waiting times: all jobs are in one queue, and the objective is the sum of waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.cp.jobs import Jobs
from scheduler.cp.model import Budget, require
from scheduler.cp.plan import Planner, Portfolio
from scheduler.cp.platform import Group, Platform, Queue
from scheduler.cp.run import simulate
from scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.simulation import Simulation

HOUR = 3600


def plan(run: Simulation, progress: Callable[[float], None]) -> None:
    """Find out when the jobs of a simulation start, and leave that for the policy `cp` to carry out.

    `progress` is called now and then with the fraction of jobs that have started. Raises SchedulerError where OR-tools
    is missing, for partitions, and for event rules under which jobs would start at other times.
    """
    require()
    if run.machine.event_rule != "instant" or run.machine.partitions:
        raise SchedulerError("The policy cp plans for the instant rule and the whole machine: omit the option.")
    options = run.policy.options
    platform = Platform("log", ("nodes",), (Group("all", 1, (run.machine.nodes,)),), (Queue("all", HOUR, HOUR),))
    planner = Planner(platform, Budget(options["work"]), int(options["window"]))
    outcome = simulate(_jobs(run), platform.capacity, Portfolio(planner, int(options["most"])), progress)
    run.world.jobs.planned[:] = outcome.start


def _jobs(run: Simulation) -> Jobs:
    jobs, count = run.world.jobs, len(run.work)
    each = np.arange(count + 1, dtype=np.int64)
    ones = np.ones(count, np.int64)
    size = jobs.nodes.reshape(-1, 1).copy()
    return Jobs(
        queue=np.zeros(count, np.int64),
        submit=jobs.submit.copy(),
        walltime=jobs.requested.copy(),
        run_time=np.minimum(run.world.run, jobs.requested),
        chunk=each,
        unit=each,
        units=ones,
        request=size,
        total=size,
        nodes=np.zeros((count, 1), np.int64),
    )
