# SPDX-License-Identifier: Apache-2.0
"""What measured rates say of other sizes: the law where it holds, and within bounds wherever it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.state import view
from drom.scheduler.policies.scaling import SCALE, UNKNOWN, estimated_rate, lost, speed
from drom.scheduler.policies.sd_feedback import STEPS, gain, share_of, waste
from drom.scheduler.simulator.measurement import row_of
from drom.scheduler.simulator.simulation import Machine
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedules import simulation

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

CORES = 48


def rates(known: dict[int, float]) -> Ints:
    """Return the rates of one job."""
    return row_of(known, CORES)[np.newaxis]


def amdahl(cores: int, serial: float) -> float:
    """Return the speed of a program of which so large a part is serial, one with all cores being 1."""
    return (serial + (1 - serial) / CORES) / (serial + (1 - serial) / cores)


@pytest.mark.parametrize("known", [{}, {24: 3.0}, {48: 1.0}])
def test_nothing_is_known_of_one_size(known: dict[int, float]) -> None:
    """Then a job loses in proportion to its cores."""
    assert estimated_rate(rates(known), 0, 12) == UNKNOWN
    assert speed(rates(known), 0, 48, 48) == UNKNOWN
    assert lost(rates(known), 0, 48, 36, 48) == pytest.approx(0.25)
    assert speed(np.zeros((0, 0), np.int64), 0, 48, 48) == UNKNOWN


@given(st.floats(0, 1), st.sets(st.integers(1, CORES), min_size=2, max_size=5), st.integers(1, CORES))
def test_amdahls_law_is_found(serial: float, sizes: set[int], cores: int) -> None:
    """Two sizes are enough for a program that follows it."""
    row = rates({size: 7.0 * amdahl(size, serial) for size in sizes})

    assert speed(row, 0, cores, CORES) == pytest.approx(amdahl(cores, serial), rel=1e-4)


@pytest.mark.parametrize("known", [{24: 0.5, 48: 1.0}, {24: 1.0, 48: 1.0}])
def test_without_cores_nothing_is_done(known: dict[int, float]) -> None:
    """However a job scales: who gives away all that it has loses all of it."""
    assert estimated_rate(rates(known), 0, 0) == 0
    assert lost(rates(known), 0, 48, 0, 48) == 1


def test_what_was_measured_is_what_counts() -> None:
    """At a measured size, whatever the law says; between two, no more and no less than these allow."""
    row = rates({12: 1.0, 24: 3.9, 36: 4.0})

    assert [estimated_rate(row, 0, size) / SCALE for size in (12, 24, 36)] == pytest.approx([0.25, 0.975, 1.0])
    assert 0.975 <= estimated_rate(row, 0, 30) / SCALE <= 1.0


@given(
    st.dictionaries(st.integers(1, CORES), st.floats(1e-6, 1e6), min_size=2, max_size=6),
    st.integers(1, CORES),
)
def test_an_estimate_is_held_between_its_neighbours(known: dict[int, float], cores: int) -> None:
    """Where rates rise by no more than in proportion: no slower than with fewer cores, no faster than with more."""
    row = rates(known)
    found = estimated_rate(row, 0, cores)
    assert np.isfinite(found)
    assert found > 0
    below = max((size for size in known if size <= cores), default=0)
    above = min((size for size in known if size >= cores), default=0)
    one, other = row[0, below], row[0, above]
    concave = not below or not above or one <= other <= one * above / below
    if concave and below:
        assert one * 0.999 <= found <= one * cores / below * 1.001
    if concave and above:
        assert other * cores / above * 0.999 <= found <= other * 1.001 + 1


@given(st.floats(0, 1), st.integers(1, CORES - 1), st.floats(-0.02, 0.02))
def test_the_gain_of_a_node(serial: float, share: int, noise: float) -> None:
    """What the guest has of it, less what the mate loses, in steps; there is none in proportion, whatever the noise."""
    state = view(simulation([(0, 1, 1, 1)], "sd", Machine(1, CORES)).world)
    least = CORES - share
    known = state._replace(rates=rates({least: amdahl(least, serial), CORES: 1.0}))
    even = state._replace(rates=rates({24: 0.5 + noise, CORES: 1.0}))

    wanted = STEPS * (share / CORES + amdahl(least, serial) - 1)
    assert abs(gain(known, 0, CORES, share) - wanted) <= 0.51
    assert waste(known, 0, CORES, share) == STEPS - gain(known, 0, CORES, share)
    assert gain(even, 0, CORES, 24) == 0


@pytest.mark.parametrize(
    ("half", "share"), [(0.5, 24), (0.55, 24), (0.75, 24), (0.97, 36), (0.9, 36), (0.42, 18), (None, 24)]
)
def test_the_share_that_a_mate_gives(half: float | None, share: int) -> None:
    """The usual one, unless another one gains a step more; a program that scales badly gives most of its cores."""
    state = view(simulation([(0, 1, 1, 1)], "sd", Machine(1, CORES)).world)
    known = {CORES: 1.0} | ({} if half is None else {24: half})

    found = share_of(state._replace(rates=rates(known)), 0, 24, 12, 36)

    assert found == share
    assert share_of(state._replace(rates=rates(known)), 0, 24, 24, 24) == 24
