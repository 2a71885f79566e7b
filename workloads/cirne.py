# SPDX-License-Identifier: Apache-2.0
"""Jobs in the structure of Cirne and Berman, "A comprehensive model of the supercomputer workload" (WWC-4, 2001), with
newly fitted parameters: Cirne-like, not the authors' model, of which the parameters and ANL arrivals are not used here.

Kept of the structure: arrivals follow a polynomial of the hour; sizes are mostly powers of two; the requested time is
log-uniform; run time is request times accuracy, drawn independently of the request. Not modelled: cancellations, and
the alternative sizes of the authors' moldable jobs (`drom.workloads.speedup` has those of Downey).

The fits are least-squares lines and moments of logs of the Parallel Workloads Archive: CTC-SP2-1996-3.1-cln, SDSC-SP2
and a KTH-SP2 log of 27,992 jobs. A spike of jobs that use their request to the end is part of the accuracy.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from drom.workloads.distributions import DAY, at_rate, gamma_cdf, redrawn
from drom.workloads.errors import WorkloadError
from drom.workloads.workload import Bools, Floats, Ints, Workload, make_workload

MINUTE = 60
_SLOTS = 144
_DEGREE = 8
_WEEKEND = (5, 6)
_LEAST_ACCURACY = 1e-4
_MONDAY = 345_600
"""1970-01-05 00:00 UTC, a Monday."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The parameters fitted to one log.

    `serial`: share of jobs of one node; `pow2`: share of powers of two among the others. ``slope * log2(t) +
    intercept`` is the distribution function of the requested time t in seconds. `full` is the share of jobs that run as
    long as requested, the accuracy of the others is gamma distributed with `shape` between 1e-4 and 1, with the scale
    that makes the mean of all accuracies `accuracy`. `hours` are the arrivals in each hour of a weekday, through which
    a polynomial of degree 8 is laid. `weekend` is the volume of a day of the weekend relative to another day.
    """

    serial: float
    pow2: float
    slope: float
    intercept: float
    accuracy: float
    full: float
    shape: float
    hours: tuple[float, ...]
    weekend: float

    def request_limits(self) -> tuple[float, float]:
        """Return the shortest and the longest requested time in seconds."""
        return 2 ** (-self.intercept / self.slope), 2 ** ((1 - self.intercept) / self.slope)

    def scale(self) -> float:
        """Return the scale of the gamma distribution; its mean below 1 grows with the scale, so bisection finds it."""
        wanted = (self.accuracy - self.full) / (1 - self.full)
        low, high = 0.01, 100.0
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            below = gamma_cdf(self.shape + 1, middle, 1.0) / gamma_cdf(self.shape, middle, 1.0)
            low, high = (low, middle) if self.shape * middle * below > wanted else (middle, high)
        return low


FITS = {
    "ctc": Fit(
        *(0.420, 0.702, 0.1028, -0.824, 0.392, 0.096, 0.739),
        hours=(
            *(0.78, 0.48, 0.30, 0.27, 0.23, 0.17, 0.22, 0.34, 0.60, 1.22, 1.89, 1.99),
            *(1.69, 1.69, 1.76, 1.61, 1.52, 1.46, 1.20, 0.90, 0.88, 0.88, 1.02, 0.89),
        ),
        weekend=0.60,
    ),
    "sdsc-sp2": Fit(
        *(0.219, 0.794, 0.1109, -0.864, 0.323, 0.079, 0.634),
        hours=(
            *(0.43, 0.40, 0.40, 0.28, 0.41, 0.61, 0.88, 1.17, 1.33, 1.42, 1.54, 1.79),
            *(1.63, 1.69, 1.80, 1.66, 1.40, 0.99, 0.77, 0.84, 0.68, 0.58, 0.66, 0.65),
        ),
        weekend=0.64,
    ),
    "kth": Fit(
        *(0.326, 0.615, 0.0973, -0.631, 0.464, 0.117, 0.721),
        hours=(
            *(0.35, 0.28, 0.22, 0.11, 0.08, 0.04, 0.09, 0.23, 0.83, 1.70, 2.03, 1.99),
            *(1.62, 2.02, 2.37, 2.15, 2.20, 1.75, 1.28, 0.64, 0.54, 0.48, 0.57, 0.44),
        ),
        weekend=0.41,
    ),
}


def cirne_like(
    jobs: int, nodes: int, seed: int, *, fit: str = "ctc", largest: int | None = None, load: float = 0.8
) -> Workload:
    """Return `jobs` jobs for a machine of `nodes`; sizes count nodes, requested times are whole minutes.

    `largest` bounds a job's nodes (default: the machine). The time span is chosen so that the jobs' node-seconds are
    the fraction `load` of those of the machine from the first to the last arrival. Time 0 is a Monday's midnight.
    Raises WorkloadError for an unknown fit and for impossible numbers.
    """
    largest = largest or nodes
    if jobs < 1 or not 1 <= largest <= nodes or not load > 0 or fit not in FITS:
        fits = ", ".join(FITS)
        msg = f"The Cirne-like model needs jobs, 1 to {nodes} nodes for the largest, a load, one of the fits {fits}."
        raise WorkloadError(msg)
    generator = np.random.default_rng(seed)
    chosen = FITS[fit]
    size = sizes(chosen, jobs, largest, generator)
    request, run_time = times(chosen, jobs, generator)
    span = float((size * run_time).sum()) / (load * nodes)
    note = f"Cirne-like model, fit {fit}, {jobs} jobs of at most {largest} nodes, load {load:g}, seed {seed}"
    return make_workload(
        {
            "submit": arrivals(chosen, jobs, span, generator),
            "run_time": run_time,
            "allocated": size,
            "requested_processors": size,
            "requested_time": request,
            "status": np.ones(jobs, dtype=np.int64),
        },
        comments=(
            f"; Computer: synthetic, {nodes} nodes",
            f"; Note: {note}",
            f"; UnixStartTime: {_MONDAY}",
            f"; MaxNodes: {nodes}",
            f"; MaxProcs: {nodes}",
        ),
    )


def sizes(fit: Fit, jobs: int, largest: int, generator: np.random.Generator) -> Ints:
    """Return the nodes of each job: log2 is uniform; a power of two with the fit's probability and not by chance."""
    if largest < 2:
        return np.ones(jobs, dtype=np.int64)
    powers = 2.0 ** generator.integers(1, int(math.log2(largest)) + 1, jobs)
    others = powers
    if largest > 2:
        others = redrawn(lambda number: np.rint(2 ** generator.uniform(1, math.log2(largest), number)), _is_power, jobs)
    parallel = np.where(generator.random(jobs) < fit.pow2, powers, others)
    return np.where(generator.random(jobs) < fit.serial, 1, parallel).astype(np.int64)


def _is_power(values: Floats) -> Bools:
    whole = values.astype(np.int64)
    return np.asarray((whole & (whole - 1)) == 0, dtype=np.bool_)


def times(fit: Fit, jobs: int, generator: np.random.Generator) -> tuple[Ints, Ints]:
    """Return requested times, rounded up to minutes, and run times, which are at least 1 s and at most the request."""
    low, high = fit.request_limits()
    request = np.ceil(np.exp(generator.uniform(math.log(low), math.log(high), jobs)) / MINUTE) * MINUTE
    scale = fit.scale()
    accuracy = redrawn(
        lambda number: generator.gamma(fit.shape, scale, number),
        lambda values: (values < _LEAST_ACCURACY) | (values >= 1),
        jobs,
    )
    accuracy[generator.random(jobs) < fit.full] = 1.0
    return request.astype(np.int64), np.maximum(np.rint(request * accuracy), 1).astype(np.int64)


def arrivals(fit: Fit, jobs: int, span_s: float, generator: np.random.Generator) -> Ints:
    """Return submit times in order within about `span_s`: a Poisson process of the fit's rate, given its number."""
    weights = weekly_weights(fit)
    slot = DAY / _SLOTS
    work = np.sort(generator.random(jobs)) * span_s / slot
    return np.floor(at_rate(work, weights, slot)).astype(np.int64)


def weekly_weights(fit: Fit) -> Floats:
    """Return the relative rate of arrivals in each ten minutes of a week from Monday, mean 1."""
    x = (np.arange(_SLOTS) + 0.5) / _SLOTS
    hours = (np.arange(24) + 0.5) / 24
    day = np.maximum(np.polynomial.Polynomial.fit(hours, fit.hours, _DEGREE)(x), 0.0)
    week = np.concatenate([day * (fit.weekend if number in _WEEKEND else 1.0) for number in range(7)])
    return np.asarray(week / week.mean(), dtype=np.float64)
