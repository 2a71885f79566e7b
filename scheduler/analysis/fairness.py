# SPDX-License-Identifier: Apache-2.0
"""The fairness of a schedule: Jain's index over the mean bounded slowdowns of classes of jobs.

For n classes with means x the index is ``sum(x)**2 / (n * sum(x**2))`` (Jain, Chiu and Hawe, DEC TR-301, 1984): 1 where
all classes are slowed down alike, 1/n where one class bears everything. Every class counts once, however many jobs it
has. The index says nothing about how large the slowdowns are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from drom.workloads.workload import Floats, Ints


def jain(values: Floats) -> float | None:
    """Return the index of positive values; None for fewer than two, which cannot be uneven."""
    if len(values) < 2:
        return None
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def size_classes(cores: Ints) -> Ints:
    """Return the class of each size: 0 for one core, then a class up to each power of two."""
    return np.ceil(np.log2(cores)).astype(np.int64)


def fairness(slowdowns: Floats, classes: Ints) -> float | None:
    """Return Jain's index over the means of classes; jobs of the class -1, which stands for unknown, are left out."""
    known = classes != -1
    if not known.any():
        return None
    _, which, jobs = np.unique(classes[known], return_inverse=True, return_counts=True)
    return jain(np.bincount(which, slowdowns[known]) / jobs)
