# SPDX-License-Identifier: Apache-2.0
"""SD-Policy with feedback: who shrinks, and by how much, once it was measured what jobs lose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NOBODY, RIGID
from drom.scheduler.simulator.measurement import row_of
from drom.scheduler.simulator.simulation import Machine
from hypothesis import given, settings

from tests.support.schedules import NODES, Row, logs, simulation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.engine.state import World
    from drom.scheduler.simulator.simulation import Simulation

pytestmark = pytest.mark.timeout(600)
"""The policy takes half a minute to compile, once."""

FREELY = ("interval=1", "max_slowdown=infinite", "feedback=1")
HALF, LITTLE = {24: 0.5, 48: 1.0}, {24: 0.8, 48: 1.0}
"""Jobs that lose half of their speed with half of the cores, and a fifth."""
NOTHING = {24: 0.98, 48: 1.0}


def run_of(rows: list[Row], known: Mapping[int, Mapping[int, float]], *choices: str, cores: int = 48) -> Simulation:
    """Return a finished simulation on 4 nodes in which that is known of jobs, by index, from the beginning."""
    run = simulation(rows, "sd", Machine(4, cores), *FREELY, *choices)
    for job, rates in known.items():
        run.world.rates[job] = row_of(rates, cores)
    run.measure = lambda _: None
    run.run()
    return run


def lenders(run: Simulation) -> list[int]:
    """Return the jobs that have lent cores."""
    return [int(job) for job in np.flatnonzero(run.world.jobs.lent)]


TWO = [(0, 900, 900, 2), (0, 1000, 1000, 2), (1, 100, 100, 2)]
"""Two jobs that may be mates of a third: the second has the lower penalty."""


@pytest.mark.parametrize(
    ("known", "lends"),
    [
        ({}, [1]),
        ({0: LITTLE}, [0]),
        ({0: HALF}, [1]),
        ({0: LITTLE, 1: LITTLE}, [1]),
        ({0: LITTLE, 1: {24: 0.9, 48: 1.0}}, [1]),
        ({0: {24: 0.4, 48: 1.0}, 1: {24: 0.4, 48: 1.0}}, [1]),
        ({1: {24: 0.4, 48: 1.0}}, [0]),
        ({0: {24: 0.8}}, [1]),
        ({0: {24: 0.51, 48: 1.0}}, [1]),
    ],
)
def test_the_mate_that_loses_least_shrinks(known: dict[int, dict[int, float]], lends: list[int]) -> None:
    """One of which nothing is known counts as losing in proportion; of equals the one with the lower penalty."""
    assert lenders(run_of(TWO, known, "least_factor=0.5", "most_factor=0.5")) == lends


def test_a_job_that_loses_little_may_be_mate_once_more() -> None:
    """MAX_SLOWDOWN is held against what it was measured to lose."""
    rows = [(0, 100, 100, 4), (1, 60, 60, 4)]

    assert lenders(run_of(rows, {}, "max_slowdown=1.5")) == []
    assert lenders(run_of(rows, {0: LITTLE}, "max_slowdown=1.5")) == [0]


def test_a_limit_grows_by_what_may_be_lost() -> None:
    """No measurement shortens it."""
    run = run_of(TWO, {0: NOTHING}, "most_factor=0.5")

    assert lenders(run) == [0]
    assert run.world.jobs.limit.tolist() == [1000, 1000, 200]


@pytest.mark.parametrize(
    ("known", "choices", "share"),
    [({}, (), 24), ({0: LITTLE}, (), 30), ({0: NOTHING}, (), 36), ({0: NOTHING}, ("most_factor=0.6",), 24)],
)
def test_the_share_is_of_the_mate(known: dict[int, dict[int, float]], choices: tuple[str, ...], share: int) -> None:
    """Most of the cores of a job that hardly needs them, as far as the bounds let; the guest's limit goes with it."""
    run = run_of(TWO, known, *choices)

    assert run.world.given.tolist() == [48, 48, share]
    assert run.world.jobs.limit[2] == -(-100 * 48 // share)


def test_a_guest_of_two_mates_has_the_smaller_share() -> None:
    """A mate gives no more than is best, but may give less."""
    rows = [(0, 900, 900, 1), (0, 900, 900, 1), (0, 900, 900, 2), (1, 100, 100, 2)]
    run = simulation(rows, "sd", Machine(4, 48), *FREELY)
    run.world.jobs.cls[2] = RIGID
    run.measure = lambda _: None
    for job, known in ((0, NOTHING), (1, {24: 0.85, 48: 1.0})):
        run.world.rates[job] = row_of(known, 48)
    run.run()

    assert lenders(run) == [0, 1]
    assert run.world.given[3] == 30


@given(logs())
@settings(deadline=None, max_examples=20)
def test_jobs_that_scale_as_the_model_says_change_nothing(rows: list[Row]) -> None:
    """The simulator's models are in proportion: what is measured of them leads to the same schedule."""
    machine = Machine(NODES, 4)
    plain = simulation(rows, "sd", machine, *FREELY[:2])
    fed = simulation(rows, "sd", machine, *FREELY)
    for run in (plain, fed):
        run.run()

    assert (fed.world.jobs.start == plain.world.jobs.start).all()
    assert (fed.world.end == plain.world.end).all()
    assert (fed.world.nodes.place == plain.world.nodes.place).all()


@given(logs())
@settings(deadline=None, max_examples=20)
def test_no_core_is_given_twice_whatever_was_measured(rows: list[Row]) -> None:
    """Nor is one lost, or a job: also with shares of their own."""
    random = np.random.default_rng(len(rows))
    curves = np.sort(random.integers(1, 1000, (len(rows), 9)), axis=1)
    run = simulation(rows, "sd", Machine(NODES, 8), *FREELY)

    def measure(world: World) -> None:
        """Know all that there is to know, and look."""
        world.rates[:, 1:] = curves[:, 1:]
        share = world.nodes.share.sum(axis=1)
        busy = world.nodes.resident[:, 0] != NOBODY
        assert (share[busy] <= 8).all()
        assert (share[~busy] == 0).all()

    run.measure = measure
    run.run()

    assert run.is_over
    assert (run.world.given >= 2).all()


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("feedback=2", "feedback is 0 or 1, not 2."),
        ("least_factor=0.8", "least_factor and most_factor are between 0 and 1, the least not above the most."),
        ("most_factor=1", "least_factor and most_factor are between 0 and 1, the least not above the most."),
        ("mix=1", "feedback=1 is for guests without free nodes: set mix=0."),
    ],
)
def test_wrong_parameters(choice: str, sentence: str) -> None:
    """One sentence each."""
    with pytest.raises(SchedulerError, match=sentence):
        load_policy("sd", ["feedback=1", choice])
