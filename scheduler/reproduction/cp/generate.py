# SPDX-License-Identifier: Apache-2.0
"""Jobs for the two tests of Bridi et al. on Eurora: about 300, and 700 with more units.

The paper gives no more details of its jobs. Everything else is assumed, and was set once so that under the two rules
the metrics have the magnitude of its Table 1; no run under constraint programming was made before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.cp.jobs import Job, chunk_of
from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from drom.scheduler.cp.platform import Platform

SEEDS = tuple(range(1, 31))


class Kind(NamedTuple):
    """The jobs of a queue: their share, their walltimes in minutes and their most units, both log-uniform."""

    queue: str
    share: float
    shortest: int
    longest: int
    units: int


class Case(NamedTuple):
    """A test of the paper: the number of jobs, the hours over which they are submitted, and their kinds."""

    name: str
    jobs: int
    hours: float
    kinds: tuple[Kind, ...]


TESTS = (
    Case(
        "test 1",
        300,
        16,
        (Kind("debug", 0.1, 5, 30, 2), Kind("parallel", 0.8, 30, 360, 10), Kind("longpar", 0.1, 360, 1440, 5)),
    ),
    Case(
        "test 2",
        700,
        36,
        (Kind("debug", 0.1, 5, 30, 2), Kind("parallel", 0.8, 30, 360, 12), Kind("longpar", 0.1, 360, 1440, 6)),
    ),
)

CORES = (1, 4, 8, 16)
"""Cores of a unit, each as likely as the others; a GB of memory for each."""
ACCELERATORS = {"gpu": 0.4, "mic": 0.2}
"""Share of the jobs whose units ask for one or two of these; the others ask for cores and memory alone."""
LONGEST = 0.5
"""Share of the jobs that ask for the longest walltime of their queue."""
EXACT = 0.2
"""Share of the jobs that take their walltime; the others take a uniform part of it."""


def jobs_of(test: Case, platform: Platform, seed: int) -> list[Job]:
    """Return the jobs of a test in order of submission; the same seed gives the same jobs.

    Raises SchedulerError for a platform without the queues or resources that they use.
    """
    rng = np.random.default_rng([seed, test.jobs])
    queues = {queue.name: number for number, queue in enumerate(platform.queues)}
    for kind in test.kinds:
        if kind.queue not in queues:
            msg = (
                f"The jobs of {test.name} are for a queue {kind.queue!r}, which {platform.name} does not have: add it."
            )
            raise SchedulerError(msg)
    submits = np.sort(rng.uniform(0, test.hours * 3600, test.jobs)).astype(np.int64)
    shares = [kind.share for kind in test.kinds]
    jobs: list[Job] = []
    for submit in submits.tolist():
        kind = test.kinds[rng.choice(len(shares), p=shares)]
        asks_for_all = rng.random() < LONGEST
        walltime = 60 * (kind.longest if asks_for_all else _log_uniform(rng, kind.shortest, kind.longest - 1))
        run_time = walltime if rng.random() < EXACT else max(1, int(walltime * rng.random()))
        units = _log_uniform(rng, 1, kind.units)
        cores = int(rng.choice(CORES))
        request = {"cores": cores, "memory": cores} | _accelerator(rng)
        jobs.append(Job(queues[kind.queue], submit, walltime, run_time, (chunk_of(platform, units, request),)))
    return jobs


def _log_uniform(rng: np.random.Generator, least: int, most: int) -> int:
    return int(np.exp(rng.uniform(np.log(least), np.log(most + 1))))


def _accelerator(rng: np.random.Generator) -> dict[str, int]:
    point, amount = rng.random(), int(rng.integers(1, 3))
    for name, share in ACCELERATORS.items():
        if point < share:
            return {name: amount}
        point -= share
    return {}
