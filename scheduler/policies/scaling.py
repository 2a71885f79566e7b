# SPDX-License-Identifier: Apache-2.0
"""Estimates of a job's speed with other numbers of cores, from the rates measured with those it has had. Pure.

`State.rates` has, for each job, its measured work per second by cores of each of its nodes, in a unit of its own; 0 if
not measured. Rates are compared within a job only. Fewer than two measured sizes give no estimate.

Between and beyond measured sizes the time for a piece of work is that of Amdahl (AFIPS 1967), ``t(n) = a + b / n`` with
a and b of at least 0, by least squares of the relative errors. Measurements are noisy and few, so the estimate is kept
between those of the next sizes measured: no slower than with fewer cores, and no faster than in proportion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import lean, rare

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

UNKNOWN = -1.0
SCALE = 1_000_000_000
"""The greatest rate of a job, where drivers write down what was measured: only ratios count."""

TINY = 1e-9
"""Of the squares of rates: a difference that only rounding makes."""


@rare
def estimated_rate(rates: Ints, job: int, cores: int) -> float:
    """Return the rate of a job with `cores` cores of each node, in its own unit; UNKNOWN below two measured sizes.

    The rate with 0 cores is 0.
    """
    row = rates[job]
    if cores < len(row) and row[cores] > 0:
        return float(row[cores]) if counted(rates, job) > 1 else UNKNOWN
    known, lower, upper = 0, 0, 0
    squares, mixed, inverse, one, other = 0.0, 0.0, 0.0, 0.0, 0.0
    for n in range(1, len(row)):
        if row[n] == 0:
            continue
        known += 1
        if n < cores:
            lower = n
        elif upper == 0:
            upper = n
        whole, part = float(row[n]), float(row[n]) / n
        squares, mixed, inverse = squares + whole * whole, mixed + whole * part, inverse + part * part
        one, other = one + whole, other + part
    if known < 2:
        return UNKNOWN
    if cores <= 0:
        return 0.0
    determinant = squares * inverse - mixed * mixed
    fixed, divided = one * inverse - other * mixed, squares * other - mixed * one
    if determinant > TINY * squares * inverse and min(fixed, divided) >= 0:
        fixed, divided = fixed / determinant, divided / determinant
    elif fixed > divided:
        fixed, divided = one / squares, 0.0
    else:
        fixed, divided = 0.0, other / inverse
    return clamped(rates, job, cores, 1 / (fixed + divided / cores), lower, upper)


@lean
def counted(rates: Ints, job: int) -> int:
    """Return the number of sizes with which a job has been measured."""
    count = 0
    for rate in rates[job]:
        count += rate > 0
    return count


@lean
def clamped(  # noqa: PLR0917 - numba wants them by position
    rates: Ints, job: int, cores: int, rate: float, lower: int, upper: int
) -> float:
    """Return a rate limited by the rates of the next measured sizes, `lower` and `upper` (0: none)."""
    if lower > 0:
        rate = min(max(rate, float(rates[job, lower])), rates[job, lower] * cores / lower)
    if upper > 0:
        rate = max(min(rate, float(rates[job, upper])), rates[job, upper] * cores / upper)
    return rate


@rare
def speed(rates: Ints, job: int, cores: int, whole: int) -> float:
    """Return the speed with `cores` cores of each node, relative to `whole`, all of them; UNKNOWN if it is."""
    if len(rates) == 0:
        return UNKNOWN
    full = estimated_rate(rates, job, whole)
    return UNKNOWN if full < 0 else estimated_rate(rates, job, cores) / full


@rare
def lost(rates: Ints, job: int, before: int, after: int, whole: int) -> float:
    """Return the part of a job's full speed that it loses when it shrinks; in proportion to its cores if unknown.

    That is the policy's worst case (Equation 6 of the SD-Policy paper, ICPP 2019).
    """
    if speed(rates, job, whole, whole) < 0:
        return (before - after) / whole
    return speed(rates, job, before, whole) - speed(rates, job, after, whole)
