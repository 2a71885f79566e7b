# SPDX-License-Identifier: Apache-2.0
"""The counters of the agent for its metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate


class Histogram:
    """Counts of observations by upper bound in seconds."""

    def __init__(self, *bounds: float) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return cumulative counts by bound, in the form that Prometheus requires."""
        names = [str(bound) for bound in self.bounds] + ["+Inf"]
        return list(zip(names, (float(n) for n in accumulate(self.counts)), strict=True))


FAILURES = ("keep", "failed"), ("fence", "failed")
"""Changes whose counters exist from the start: an increase from a missing series would go unnoticed."""


@dataclass(slots=True)
class Counters:
    """Counts of events since the agent started."""

    changes: Counter[tuple[str, str]] = field(default_factory=lambda: Counter(dict.fromkeys(FAILURES, 0)))
    reaped: Counter[str] = field(default_factory=Counter)
    enforcements: int = 0
    repairs: int = 0
    refusals: int = 0
    changing: Histogram = field(default_factory=lambda: Histogram(1e-4, 1e-3, 5e-3, 0.02, 0.1, 0.5, 1.0, 5.0))
    placing: Histogram = field(default_factory=lambda: Histogram(1e-5, 5e-5, 2e-4, 1e-3, 5e-3, 0.02, 0.1))
