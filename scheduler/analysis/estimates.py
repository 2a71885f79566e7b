# SPDX-License-Identifier: Apache-2.0
"""Means over seeds and their confidence intervals; scipy has the same, but would be needed for little else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from drom.workloads.workload import Floats

STUDENT = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.262157, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452),
)
"""The 97.5 % points of Student's t with 1, 2, ... degrees of freedom."""


class Estimate(NamedTuple):
    """A mean over the seeds, and half of its 95 % interval."""

    mean: float
    half: float


def estimate(samples: Floats) -> Estimate:
    """Return the mean of two or more values and half of its 95 % interval, by Student's t.

    Beyond 30 values the point is that of 30, which is at most 4 % too wide.
    """
    count = len(samples)
    point = STUDENT[min(count, 30) - 2]
    return Estimate(float(samples.mean()), float(point * samples.std(ddof=1) / math.sqrt(count)))


def verdict(gain: Estimate) -> str:
    """Return ``better`` or ``worse`` by the sign of a gain, or ``same`` if its interval contains 0."""
    return "same" if abs(gain.mean) <= gain.half else "better" if gain.mean > 0 else "worse"
