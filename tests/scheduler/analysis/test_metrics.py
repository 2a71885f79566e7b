# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import fairness, jain, size_classes


def test_jains_index() -> None:
    """1 where all are alike, 1/n where one bears everything, and what is worked out by hand between."""
    assert jain(np.array([3.0, 3.0, 3.0])) == 1
    assert jain(np.array([5.0, 0.0, 0.0, 0.0])) == 1 / 4
    assert jain(np.array([1.0, 3.0])) == 16 / 20
    assert jain(np.array([2.0])) is None


def test_every_class_counts_once() -> None:
    """However many jobs it has: means 2 and 4 give 36/40; jobs of an unknown class are left out."""
    slowdowns = np.array([1.0, 2.0, 3.0, 4.0, 900.0])

    assert fairness(slowdowns, np.array([7, 7, 7, 9, -1])) == pytest.approx(36 / 40)
    assert fairness(slowdowns, np.full(5, -1)) is None
    assert fairness(slowdowns, np.zeros(5, np.int64)) is None


def test_sizes_are_classed_by_powers_of_two() -> None:
    """A class goes up to a power of two, which is in it."""
    assert size_classes(np.array([1, 2, 3, 4, 5, 8, 9])).tolist() == [0, 1, 2, 2, 3, 3, 4]
