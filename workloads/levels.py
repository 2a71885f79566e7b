# SPDX-License-Identifier: Apache-2.0
"""Levels over time: sums of weighted intervals, as means between points in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from drom.workloads.workload import Floats, Ints


def mean_level(begin: Ints, end: Ints, weight: Ints | Floats, edges: Floats) -> Floats:
    """Return the mean, between each two of `edges`, of the sum of the weights of intervals from `begin` to `end`."""
    if not len(begin):
        return np.zeros(len(edges) - 1)
    times = np.concatenate((begin, end))
    change = np.concatenate((weight, -weight))
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(change[order])
    used = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times).astype(np.float64))))
    return np.asarray(np.diff(np.interp(edges, times, used)) / np.diff(edges), dtype=np.float64)
