# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.speedup import downey, most_useful, run_time_on
from hypothesis import given
from hypothesis import strategies as st

PARALLELISM = st.floats(1, 1000)
SIGMA = st.floats(0, 50)


@pytest.mark.parametrize(
    ("n", "parallelism", "sigma", "speedup"),
    [
        (1, 64, 0.5, 1),
        (64, 64, 0, 64),
        (65, 64, 0, 64),
        (32, 64, 1, 64 * 32 / (64 + 31 / 2)),
        (64, 64, 1, 64 * 64 / (64 + 63 / 2)),
        (100, 64, 1, 64 * 100 / (63.5 + 50)),
        (127, 64, 1, 64),
        (64, 64, 2, 64 * 64 * 3 / (2 * 127 + 64)),
        (190, 64, 2, 64),
        (10_000, 64, 2, 64),
    ],
)
def test_points_of_the_curves(n: float, parallelism: float, sigma: float, speedup: float) -> None:
    """Values worked out by hand from the published formulas."""
    assert float(downey(n, parallelism, sigma)) == pytest.approx(speedup)


@given(PARALLELISM, SIGMA, st.floats(1, 3000), st.floats(0, 100))
def test_the_shape_of_a_speedup(parallelism: float, sigma: float, n: float, more: float) -> None:
    """The speedup never falls, is at most n and at most A, and is A from the last useful processor on."""
    here, there = float(downey(n, parallelism, sigma)), float(downey(n + more, parallelism, sigma))

    assert 1 - 1e-9 <= here <= min(n, parallelism) + 1e-9
    assert there >= here - 1e-9
    assert float(downey(max(1.0, float(most_useful(parallelism, sigma))), parallelism, sigma)) == pytest.approx(
        parallelism
    )


@given(PARALLELISM, st.floats(1, 3000))
def test_the_two_cases_meet_at_sigma_one(parallelism: float, n: float) -> None:
    """There is no step between low and high variance."""
    below, above = downey(n, parallelism, [1.0, 1.0 + 1e-9])

    assert below == pytest.approx(above, rel=1e-6)


def test_arguments_are_broadcast() -> None:
    """A column of sizes against a row of programs."""
    assert downey([[1], [2], [4]], [2, 8], [0.5, 1]).shape == (3, 2)


def test_the_work_stays_the_same() -> None:
    """A job on its own size takes its own time; on one processor its time times the speedup."""
    assert float(run_time_on(16, 100, 16, 20, 0.5)) == 100
    assert float(run_time_on(1, 100, 16, 20, 0)) == pytest.approx(1600)
    assert float(run_time_on(8, 100, 16, 20, 0)) == pytest.approx(200)


@pytest.mark.parametrize(("n", "parallelism", "sigma"), [(0, 2, 0), (1, 0.5, 0), (1, 2, -1), (np.nan, 2, 1)])
def test_impossible_programs(n: float, parallelism: float, sigma: float) -> None:
    """They are told, not given a number."""
    with pytest.raises(WorkloadError, match="needs at least 1 processor"):
        downey(n, parallelism, sigma)
