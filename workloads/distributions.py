# SPDX-License-Identifier: Apache-2.0
"""Functions shared by the models: truncated draws, the gamma distribution function, arrivals with a daily cycle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.workloads.workload import Bools, Floats

DAY = 86_400
HOUR = 3_600


def redrawn(draw: Callable[[int], Floats], refused: Callable[[Floats], Bools], number: int) -> Floats:
    """Return `number` values of `draw`; those that are `refused` are drawn again until none is."""
    values = draw(number)
    while (bad := refused(values)).any():
        values[bad] = draw(int(bad.sum()))
    return values


def gamma_cdf(shape: float, scale: float, value: float) -> float:
    """Return the probability that a gamma variable is at most `value`.

    The series of the regularised lower incomplete gamma function, P(a, x) = x^a e^-x sum_k x^k / Gamma(a + k + 1).
    scipy has it, but would be needed for little else.
    """
    x = value / scale
    if x <= 0:
        return 0.0
    term = total = math.exp(shape * math.log(x) - x - math.lgamma(shape + 1))
    k = 1
    while term > 1e-17 * total or k < x:
        term *= x / (shape + k)
        total += term
        k += 1
    return min(1.0, total)


def at_rate(work: Floats, weights: Floats, slot_s: float) -> Floats:
    """Return the times at which the integral of a cyclic rate reaches each value of `work`.

    The rate is ``weights[i] / slot_s`` in slot i, so that a slot adds its weight; the sum of the weights is positive.
    Times are in seconds from the start of slot 0.
    """
    added = np.concatenate(([0.0], np.cumsum(weights)))
    cycles, rest = np.divmod(work, added[-1])
    slots = np.arange(len(added), dtype=np.float64)
    return np.asarray((cycles * len(weights) + np.interp(rest, added, slots)) * slot_s, dtype=np.float64)
