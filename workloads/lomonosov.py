# SPDX-License-Identifier: Apache-2.0
"""Jobs with the published moments of Lomonosov-1 in 2017, and their users' requests, by the model of Polyakov and
Dubenskaya, "Improving the load of supercomputers based on job migration using container virtualization" (GRID 2018).

From the paper: slots of mean 7.5, standard deviation 16.7, at most 512; run times of mean 255 min, standard deviation
1204 min, at most 15 days; requests by an accuracy p and twenty round values. Assumed, because the paper gives only
moments: both are independent and log-normal, rounded up to whole slots and minutes, drawn again above the maximum.
Arrivals are a Poisson process; the paper says nothing of them.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.distributions import DAY, HOUR, redrawn
from drom.workloads.errors import WorkloadError
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from drom.workloads.workload import Floats, Ints, Workload

MINUTE = 60
ROUND_S = (
    *(m * MINUTE for m in (1, 2, 5, 10, 20, 30)),
    *(h * HOUR for h in (1, 2, 3, 6, 8, 12)),
    *(d * DAY // 2 for d in (2, 3, 4, 6, 10, 14, 20, 30)),
)
"""The round values of the paper, in seconds: 1 minute to 15 days."""


@dataclass(frozen=True, slots=True)
class LogNormal:
    """``ceil(e^x)`` with x normal of mean `mu` and standard deviation `sigma`, drawn again above `most`."""

    mu: float
    sigma: float
    most: int

    def draw(self, number: int, most: int, generator: np.random.Generator) -> Ints:
        """Return this number of whole numbers from 1 to `most`."""

        def ceiled(count: int) -> Floats:
            return np.ceil(generator.lognormal(self.mu, self.sigma, count))

        return redrawn(ceiled, lambda values: values > most, number).astype(np.int64)

    def moments(self) -> tuple[float, float]:
        """Return the mean and the standard deviation, as sums over all values."""
        values = np.arange(1, self.most + 1, dtype=np.float64)
        below = np.array([math.erf((x - self.mu) / self.sigma / math.sqrt(2)) for x in np.log(values)])
        shares = np.diff(below, prepend=-1.0) / (below[-1] + 1)
        mean = float((values * shares).sum())
        return mean, math.sqrt(float(((values - mean) ** 2 * shares).sum()))


SLOTS = LogNormal(0.88591795623, 1.46388728509, 512)
MINUTES = LogNormal(2.26331074617, 2.87188741569, 15 * 24 * 60)
"""Fitted so that `moments` are the paper's."""


def lomonosov(jobs: int, nodes: int, seed: int, accuracy: float = 0.5, load: float = 0.9) -> Workload:
    """Return `jobs` jobs for a machine of `nodes`; a slot is a node, times are whole minutes in seconds.

    Jobs are no larger than the machine. Their node-seconds are the fraction `load` of those of the machine from the
    first to about the last arrival. Raises WorkloadError for less than one job or node, for a load that is not
    positive, and for an accuracy that is not a probability.
    """
    if jobs < 1 or nodes < 1 or not load > 0 or not 0 <= accuracy <= 1:
        raise WorkloadError("The Lomonosov-1 model needs a job, a node, a positive load, an accuracy from 0 to 1.")
    generator = np.random.default_rng(seed)
    size = SLOTS.draw(jobs, min(nodes, SLOTS.most), generator)
    run_time = MINUTES.draw(jobs, MINUTES.most, generator) * MINUTE
    span = float((size * run_time).sum()) / (load * nodes)
    note = f"moments of Lomonosov-1 (GRID 2018), {jobs} jobs, accuracy {accuracy:g}, load {load:g}, seed {seed}"
    submit = np.sort(generator.random(jobs)) * span // MINUTE * MINUTE
    return make_workload(
        {
            "submit": submit.astype(np.int64),
            "run_time": run_time,
            "allocated": size,
            "requested_processors": size,
            "requested_time": requests(run_time, accuracy, generator),
            "status": np.ones(jobs, dtype=np.int64),
        },
        comments=(
            f"; Computer: synthetic, {nodes} nodes",
            f"; Note: {note}",
            "; UnixStartTime: 0",
            f"; MaxNodes: {nodes}",
            f"; MaxProcs: {nodes}",
        ),
    )


def requests(run_time: Ints, accuracy: float, generator: np.random.Generator) -> Ints:
    """Return users' requests in seconds, of the shape of `run_time`, which is at most 15 days.

    With p the accuracy: the run time with probability p, the next round value from it on with p(1 - p), the one after
    that with (1 - p)^2. There is no value above 15 days, which is used instead.
    """
    values = np.array(ROUND_S, dtype=np.int64)
    nearest = np.searchsorted(values, run_time)
    further = np.minimum(nearest + 1, len(values) - 1)
    exact, near = (generator.random(len(run_time)) < accuracy for _ in range(2))
    return np.where(exact, run_time, values[np.where(near, nearest, further)])
