# SPDX-License-Identifier: Apache-2.0
"""What a job does in a second, by the number of cores that it had meanwhile. Pure.

Work is in the job's own unit, so that rates are compared within a job only. What is long ago counts less.
"""

from __future__ import annotations

MEMORY = 60.0
"""Seconds with one number of cores of which the older half of the weight is forgotten."""
ENOUGH = 3
"""Measurements with a number of cores from which on its rate is known."""
MOST_SIZES = 32
"""Numbers of cores that are kept of a job; those measured last."""


class Rates:
    """The rates of one job."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float, int]] = {}
        """Seconds, work in them, and measurements, by cores; in the order in which they were measured last."""

    def add(self, cores: int, seconds: float, work: float) -> None:
        """Take in that so much work was done in so many seconds, above 0, with just so many cores."""
        before, done, count = self._sums.pop(cores, (0.0, 0.0, 0))
        if before > MEMORY:
            before, done = before / 2, done / 2
        self._sums[cores] = (before + seconds, done + work, count + 1)
        if len(self._sums) > MOST_SIZES:
            del self._sums[next(iter(self._sums))]

    def known(self) -> dict[int, float]:
        """Return the work done in a second by cores, where it was measured often enough, in rising order."""
        sums = sorted(self._sums.items())
        return {cores: done / seconds for cores, (seconds, done, count) in sums if count >= ENOUGH and done > 0}
