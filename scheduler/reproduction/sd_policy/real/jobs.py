# SPDX-License-Identifier: Apache-2.0
"""The jobs of workload 5: the same numbers for the same seed, in seconds of the workload. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from drom.scheduler.reproduction.sd_policy.real.settings import (
    FIT,
    LONGEST_REQUEST,
    MARGIN,
    NODES,
    ROLES,
    SMALL_NODES,
    TIMES,
    Scale,
)
from drom.workloads.cirne import FITS, arrivals, sizes, times
from drom.workloads.mix import TABLE_2, applications
from drom.workloads.speedup import downey


class PlannedJob(NamedTuple):
    """A job; times are in seconds of the workload, and `run_time` is on all cores of its nodes."""

    number: int
    application: str
    submit: int
    nodes: int
    run_time: float
    requested: int


def make(scale: Scale, seed: int) -> list[PlannedJob]:
    """Return the jobs of a scale in order of submission."""
    generator, fit, count = np.random.default_rng(seed), FITS[FIT], scale.jobs
    row = applications(np.arange(1, count + 1), seed)
    model_sizes = sizes(fit, count, min(scale.largest, scale.nodes), generator)
    largest = np.array([SMALL_NODES if one.nodes == "small" else scale.largest for one in TABLE_2])[row]
    nodes = np.minimum(model_sizes, largest)
    low, high = np.log(np.array([TIMES[one.time] for one in TABLE_2], np.float64))[row].T
    run = np.exp(generator.uniform(low, high))
    request, used = times(fit, count, generator)
    requested = np.minimum(np.ceil(run * request / used), LONGEST_REQUEST).astype(np.int64)
    span = float((nodes * run).sum()) / (scale.load * scale.nodes)
    submit = arrivals(fit, count, span, generator)
    submit -= submit[0]
    return [
        PlannedJob(i + 1, TABLE_2[row[i]].name, int(submit[i]), int(nodes[i]), float(run[i]), int(requested[i]))
        for i in range(count)
    ]


def speeds(application: str, curves: str, cores: int = NODES.cores) -> list[float]:
    """Return the speeds of an application on 1, 2, ... cores of a node; 1 on all of them.

    `curves` is "ideal", or "mixed" for those of the `settings`.
    """
    role, counts = ROLES[application], np.arange(1, cores + 1)
    if curves == "ideal":
        return [float(speed) for speed in counts / cores]
    found = downey(counts, role.parallelism, role.sigma)
    return [float(speed) for speed in found / found[-1]]


def limit_of(job: PlannedJob, scale: Scale, compression: float) -> int:
    """Return the time limit of a job in seconds of the run."""
    return math.ceil(scale.patience * job.requested / compression) + MARGIN


def measured_speeds(half: float, cores: int = NODES.cores) -> list[float]:
    """Return speeds on straight lines through that of half of the cores, which is between a half and 1."""
    found = np.interp(np.arange(1, cores + 1), (0, cores / 2, cores), (0, min(1.0, max(0.5, half)), 1))
    return [float(speed) for speed in found]
