# SPDX-License-Identifier: Apache-2.0
"""Speedup of moldable and malleable programs: Downey, "A parallel workload model and its implications for processor
allocation" (HPDC 1997), with the two cases of his technical report UCB/CSD-97-937.

A program has an average parallelism A and a coefficient of variance sigma of its parallelism: sigma = 0 is perfect
speedup up to A; large values stand for programs that seldom use many processors.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.errors import WorkloadError

if TYPE_CHECKING:
    from drom.workloads.workload import Floats
    from numpy.typing import ArrayLike


def downey(processors: ArrayLike, parallelism: ArrayLike, sigma: ArrayLike) -> Floats:
    """Return the speedup S on n `processors`; the arguments are broadcast against each other.

    With A the parallelism, for sigma <= 1:
        n <= A:           S = A n / (A + sigma (n - 1) / 2)
        A <= n <= 2A - 1: S = A n / (sigma (A - 1/2) + n (1 - sigma / 2))
        beyond:           S = A
    and for sigma >= 1:
        n <= A + A sigma - sigma: S = n A (sigma + 1) / (sigma (n + A - 1) + A)
        beyond:                   S = A
    Raises WorkloadError unless n >= 1, A >= 1 and sigma >= 0.
    """
    n, a, s = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (processors, parallelism, sigma)))
    if not ((n >= 1).all() and (a >= 1).all() and (s >= 0).all()):
        msg = "Downey's speedup needs at least 1 processor, a parallelism of at least 1 and a sigma of at least 0."
        raise WorkloadError(msg)
    low_first = a * n / (a + s * (n - 1) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        low_second = a * n / (s * (a - 0.5) + n * (1 - s / 2))
    high = n * a * (s + 1) / (s * (n + a - 1) + a)
    low = np.where(n <= a, low_first, low_second)
    return np.asarray(np.where(n >= most_useful(a, s), a, np.where(s <= 1, low, high)), dtype=np.float64)


def most_useful(parallelism: ArrayLike, sigma: ArrayLike) -> Floats:
    """Return the number of processors at which the speedup reaches the parallelism; more have no effect."""
    a, s = np.asarray(parallelism, dtype=np.float64), np.asarray(sigma, dtype=np.float64)
    return np.asarray(np.where(s <= 1, 2 * a - 1, a + a * s - s), dtype=np.float64)


def run_time_on(
    processors: ArrayLike, run_time: ArrayLike, size: ArrayLike, parallelism: ArrayLike, sigma: ArrayLike
) -> Floats:
    """Return the seconds that a job takes on other `processors` than the `size` on which it takes `run_time`."""
    ratio = downey(size, parallelism, sigma) / downey(processors, parallelism, sigma)
    return np.asarray(np.asarray(run_time, dtype=np.float64) * ratio, dtype=np.float64)
