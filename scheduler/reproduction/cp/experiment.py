# SPDX-License-Identifier: Apache-2.0
"""The two tests of Bridi et al., "A CP Scheduler for High-Performance Computers": their Table 1, and drom's.

Each seed's jobs are simulated under every scheduler. The assumptions are in docs/constraint-programming.md.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.estimates import Estimate, estimate
from drom.scheduler.cp.rules import FIFO, WALLTIME
from drom.scheduler.reproduction.cp.generate import TESTS, Case
from drom.scheduler.reproduction.cp.metrics import Metrics
from drom.scheduler.reproduction.cp.tasks import CP, EURORA, GREEDY, PORTFOLIO, RULES, Task, measure, setting
from drom.scheduler.simulator.worker_pool import run_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from drom.scheduler.reproduction.cp.completed import Kept
    from drom.workloads.workload import Floats

PAPER = {
    "test 1": {
        FIFO.name: Metrics(152.94, 65, 1_298_810, 0.47),
        WALLTIME.name: Metrics(137.74, 60, 1_223_690, 3.14),
        CP: Metrics(119.77, 46, 1_003_970, 11.45),
    },
    "test 2": {
        FIFO.name: Metrics(1034.2, 234, 16_798_300, 1.02),
        WALLTIME.name: Metrics(853.681, 200, 13_693_000, 15.47),
        CP: Metrics(2441.3, 376, 16_774_800, 34.82),
    },
}
"""Table 1, by test and scheduler."""


class Contest(NamedTuple):
    """CP and a rule: the seeds in which a metric is less, the same and more, and the mean of CP minus the rule."""

    test: str
    metric: str
    rule: str
    wins: int
    ties: int
    losses: int
    difference: Estimate
    change: float | None
    """The difference of the means, as a fraction of the rule's mean; None if that is 0."""


def tasks_of(
    seeds: Sequence[int], first: int = 1000, platform: str = EURORA, tests: Sequence[Case] = TESTS
) -> list[Task]:
    """Return all simulations, with `first` jobs of each test: seed by seed, the longest of a seed first."""
    order = (CP, PORTFOLIO, WALLTIME.name, GREEDY, FIFO.name)
    numbers = tuple(reversed([TESTS.index(test) for test in tests]))
    return [Task(test, seed, name, first, platform) for seed, name, test in product(seeds, order, numbers)]


def tests_in(found: Iterable[Task]) -> list[Case]:
    """Return the tests that have been made."""
    return [test for number, test in enumerate(TESTS) if any(task.test == number for task in found)]


def measure_all(
    tasks: Sequence[Task], at_once: int | None, show: Callable[[float], None], kept: Kept[Metrics] | None = None
) -> dict[Task, Metrics]:
    """Make all simulations that are not completed yet, several at a time; `show` gets the fraction that is done.

    On Ctrl-C all stop at once; those that have ended are kept. Raises SchedulerError, before anything is simulated,
    for jobs that cannot run, and if a simulating process is killed.
    """
    found = {} if kept is None else {task: kept.done[task] for task in tasks if task in kept.done}
    left = [task for task in tasks if task not in found]
    if not left:
        return found
    for task in dict.fromkeys(task._replace(scheduler=FIFO.name) for task in left):
        setting(task)
    measure(left[0]._replace(scheduler=FIFO.name, first=1))  # compiles, so that the others need not

    def take(number: int, metrics: Metrics) -> None:
        found[left[number]] = metrics
        if kept is not None:
            kept.keep(left[number], metrics)
        show(len(found) / len(tasks))

    run_each(measure, [(task,) for task in left], at_once, take)
    return found


def values(found: dict[Task, Metrics], test: Case, scheduler: str, metric: str) -> Floats:
    """Return the values of a metric by seed."""
    number = TESTS.index(test)
    return np.array(
        [
            getattr(one, metric)
            for task, one in sorted(found.items())
            if (task.test, task.scheduler) == (number, scheduler)
        ]
    )


def contests(found: dict[Task, Metrics]) -> list[Contest]:
    """Return the comparison of CP with each rule, by test and metric, except overhead."""
    told = []
    for test in tests_in(found):
        for metric in ("wqt", "nl", "tr"):
            mine = values(found, test, CP, metric)
            for rule in RULES:
                theirs = values(found, test, rule, metric)
                gain = mine - theirs
                wins, ties, losses = (int(which.sum()) for which in (gain < 0, gain == 0, gain > 0))
                change = float(mine.mean() / theirs.mean() - 1) if theirs.any() else None
                told.append(Contest(test.name, metric, rule, wins, ties, losses, estimate(gain), change))
    return told
