# SPDX-License-Identifier: Apache-2.0
"""The simulations of `drom reproduce cp`: their parameters, and the function that makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.cp.jobs import table_of
from drom.scheduler.cp.planner import Planner, Portfolio
from drom.scheduler.cp.platform import load_platform
from drom.scheduler.cp.rules import FIFO, WALLTIME
from drom.scheduler.cp.simulation import simulate
from drom.scheduler.reproduction.cp.generate import TESTS, jobs_of
from drom.scheduler.reproduction.cp.metrics import Metrics, metrics_of

if TYPE_CHECKING:
    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.cp.platform import Platform
    from drom.scheduler.cp.simulation import Scheduler


CP, PORTFOLIO, GREEDY = "CP", "portfolio", "greedy"


RULES = (FIFO.name, WALLTIME.name)


SCHEDULERS = (*RULES, CP, PORTFOLIO, GREEDY)


EURORA = "eurora"


class Task(NamedTuple):
    """A simulation: a test by its number from 0, a seed, a scheduler by name, a number of jobs, and a platform.

    `platform` is an argument of `load_platform`. `compression` is how much faster a live run goes; 0: it is simulated.
    """

    test: int
    seed: int
    scheduler: str
    first: int = 1000
    platform: str = EURORA
    compression: float = 0


def scheduler_of(name: str, platform: Platform) -> Scheduler:
    """Return a new scheduler: a rule has no memory, and a planner begins without a plan."""
    planners: dict[str, Scheduler] = {
        CP: Planner(platform),
        PORTFOLIO: Portfolio(Planner(platform)),
        GREEDY: Planner(platform, window=0, name=GREEDY),
    }
    return (planners | {rule.name: rule for rule in (FIFO, WALLTIME)})[name]


def setting(task: Task) -> tuple[Platform, Jobs]:
    """Return the machine and the jobs of a simulation. Raises SchedulerError for jobs that cannot run there."""
    platform = load_platform(task.platform)
    return platform, table_of(jobs_of(TESTS[task.test], platform, task.seed)[: task.first], platform)


def measure(task: Task) -> Metrics:
    """Return the metrics of a simulation. Raises SchedulerError as `setting` does."""
    platform, jobs = setting(task)
    outcome = simulate(jobs, platform.capacity, scheduler_of(task.scheduler, platform))
    return metrics_of(jobs, platform, outcome.start, outcome.seconds, outcome.calls)
