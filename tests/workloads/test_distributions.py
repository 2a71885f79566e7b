# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from drom.workloads.distributions import at_rate, gamma_cdf, redrawn


@pytest.mark.parametrize("x", [0.01, 0.5, 1.0, 3.0, 20.0, 200.0])
def test_the_gamma_distribution_of_shape_one_and_three(x: float) -> None:
    """They have closed forms: 1 - e^-x, and 1 - e^-x (1 + x + x^2 / 2)."""
    assert gamma_cdf(1, 2, 2 * x) == pytest.approx(1 - math.exp(-x), abs=1e-14)
    assert gamma_cdf(3, 0.5, x / 2) == pytest.approx(1 - math.exp(-x) * (1 + x + x * x / 2), abs=1e-13)


def test_the_gamma_distribution_of_one_half() -> None:
    """The CDF for shape 1/2 is the error function of a square root; it is 0 below zero."""
    assert gamma_cdf(0.5, 1, 0.7) == pytest.approx(math.erf(math.sqrt(0.7)), abs=1e-14)
    assert gamma_cdf(0.5, 1, -1) == 0


def test_refused_values_are_drawn_again() -> None:
    """All that comes out is accepted, and the rest of the distribution keeps its shape."""
    generator = np.random.default_rng(1)
    values = redrawn(generator.random, lambda drawn: drawn > 0.25, 10_000)

    assert values.max() <= 0.25
    assert values.mean() == pytest.approx(0.125, abs=0.003)


def test_times_at_a_cyclic_rate() -> None:
    """A slot of weight 3 lets three times as much pass as one of weight 1; an empty one is skipped."""
    times = at_rate(np.array([0.0, 0.5, 1.0, 2.5, 4.0, 4.5]), np.array([1.0, 0.0, 3.0]), 10.0)

    assert times.tolist()[:2] == [0.0, 5.0]
    assert times[3] == pytest.approx(25)
    assert times[4:].tolist() == pytest.approx([30.0, 35.0])
    assert times[2] in {10.0, 20.0}
