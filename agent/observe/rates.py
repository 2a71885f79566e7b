# SPDX-License-Identifier: Apache-2.0
"""The work of a job per second, by the number of cores that it had meanwhile. Pure.

Work is in the job's own unit, so that rates are compared within a job only. Older measurements count less.
"""

from __future__ import annotations

MEMORY = 60.0
"""Seconds measured with one number of cores after which the weight of older measurements is halved."""
ENOUGH = 3
"""Number of measurements with a number of cores from which its rate counts as known."""
MOST_SIZES = 32
"""Maximum number of core counts stored per job; those measured last."""


class Rates:
    """The rates of one job."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float, int]] = {}
        """Seconds, the work in them, and number of measurements, by cores; in the order of the last measurement."""

    def add(self, cores: int, seconds: float, work: float) -> None:
        """Record that `work` was done in `seconds` (above 0) with exactly `cores` cores."""
        before, done, count = self._sums.pop(cores, (0.0, 0.0, 0))
        if before > MEMORY:
            before, done = before / 2, done / 2
        self._sums[cores] = (before + seconds, done + work, count + 1)
        if len(self._sums) > MOST_SIZES:
            del self._sums[next(iter(self._sums))]

    def known(self) -> dict[int, float]:
        """Return the work done per second by cores, if it was measured often enough, in ascending order of cores."""
        sums = sorted(self._sums.items())
        return {cores: done / seconds for cores, (seconds, done, count) in sums if count >= ENOUGH and done > 0}
