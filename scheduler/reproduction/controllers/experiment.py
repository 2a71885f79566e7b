# SPDX-License-Identifier: Apache-2.0
"""The experiments of SLURM++ (Zhou et al.) in the model, beyond the paper's 500 nodes too.

From the paper: the three workloads, partitions of 50 nodes and of one, up to 500 nodes, stealing at random with retries
and sleep (Algorithm 2). Assumed, because it does not give them: 3 retries, 50 ms of sleep, free counts cached for 1 s.
Controllers, nodes and the store have machines of their own, and cost what `COSTS` says, which `--live` measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.estimates import Estimate, estimate
from drom.scheduler.reproduction.controllers.model import (
    LARGE,
    MEDIUM,
    SMALL,
    WORKLOADS,
    Result,
    Setup,
    simulate,
    sizes_of,
)
from drom.scheduler.reproduction.controllers.world import CACHED, MONITOR, RICHEST, WHOLE, Costs, Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.scheduler.reproduction.controllers.model import Workload

COSTS = Costs(
    message=2.795e-3,
    job=0.527e-3,
    node=0.244e-3,
    beat=0.200e-3,
    store=0.718e-3,
    store_job=0.068e-3,
    store_node=0e-3,
    latency=2.978e-3,
    start=0.0080,
    launch=0.0141,
    agent=0.0046,
    submit=0.601e-3,
)
"""Measured on a machine with two cores: see docs/controllers-model.md."""
PARTITION = 50
NODES = (50, 100, 250, 500)
SEEDS = 10
THEIRS = Options(watch=True, spread=True)
"""The paper's Algorithm 2, with watches and submission at each controller."""
OURS = THEIRS._replace(pick=WHOLE)
"""What drom does."""
DROM, PLAIN = "drom: one transaction", "random stealing"
OPTIONS = {
    DROM: OURS,
    PLAIN: THEIRS,
    "polling instead of watches": THEIRS._replace(watch=False),
    "submission at one place": THEIRS._replace(spread=False),
    "notified instead of sleeping": THEIRS._replace(notify=True),
    "cached free counts": THEIRS._replace(pick=CACHED),
    "the richest of cached ones": THEIRS._replace(pick=RICHEST),
    "batch sampling, 2N": THEIRS._replace(pick=RICHEST, probes=2),
    "batch sampling, 4N": THEIRS._replace(pick=RICHEST, probes=4),
    "late binding, 4N": THEIRS._replace(pick=RICHEST, probes=4, late=True),
    "a sorted map of free nodes": THEIRS._replace(pick=MONITOR),
}
SCALES = (*((count, 1000) for count in (1, 10, 100, 1000)), *((10**power, 1) for power in (3, 4, 5, 6)))
"""Controllers, and the nodes of each."""
STORES = 64
"""The stores over which keys are spread, where one is not enough."""


Task = tuple["Workload", str, Setup]
"""A workload, the name of options, and a setup."""


class Point(NamedTuple):
    """The result of a setup over the seeds."""

    workload: str
    options: str
    setup: Setup
    values: dict[str, Estimate]
    """By the names of `Result`."""


def point(workload: Workload, options: str, setup: Setup, costs: Costs, seeds: Sequence[int]) -> Point:
    """Run a setup with each seed. Raises SchedulerError."""
    found = [simulate(setup, sizes_of(workload, setup, seed), costs, OPTIONS[options], seed) for seed in seeds]
    columns = zip(Result._fields, zip(*found, strict=True), strict=True)
    return Point(workload.name, options, setup, {name: estimate(np.array(values)) for name, values in columns})


class Results(NamedTuple):
    """The points of the figures, of the options, and of very many controllers."""

    figures: list[Point]
    options: list[Point]
    scales: list[Point]


def run_all(seed: int, costs: Costs, nodes: int, controllers: int, show: Callable[[float], None]) -> Results:
    """Run figures and options up to `nodes` nodes with SEEDS seeds, and up to so many `controllers` with two.

    `show` gets the fraction that is done. Raises SchedulerError.
    """
    tasks = [*_figures(nodes)], [*_options(nodes)], [*_scales(controllers)]
    count, found = sum(map(len, tasks)), Results([], [], [])
    for part, points in zip(tasks, found, strict=True):
        seeds = range(seed, seed + (2 if points is found.scales else SEEDS))
        for workload, options, setup in part:
            points.append(point(workload, options, setup, costs, seeds))
            show(sum(map(len, found)) / count)
    return found


def _figures(most: int) -> Iterator[Task]:
    """Yield one controller with all nodes, and several with 50 each by drom's way and the paper's, for equal jobs."""
    for workload in WORKLOADS:
        for nodes in (one for one in NODES if one <= most):
            several = nodes // PARTITION
            yield workload, DROM, Setup(1, nodes, several * workload.jobs)
            for options in (DROM, PLAIN):
                yield workload, options, Setup(several, PARTITION, workload.jobs)


def _options(most: int) -> Iterator[Task]:
    """Yield each option, for jobs that steal."""
    for workload in (MEDIUM, LARGE):
        for name in OPTIONS:
            yield workload, name, Setup(most // PARTITION, PARTITION, workload.jobs)


def _scales(most: int) -> Iterator[Task]:
    """Yield up to `most` controllers, on one store and on many."""
    for controllers, nodes in (one for one in SCALES if one[0] <= most):
        for stores in (1, STORES):
            yield SMALL, DROM, Setup(controllers, nodes, SMALL.jobs if nodes > 1 else 1, store_cores=stores)
