# SPDX-License-Identifier: Apache-2.0
"""SD-Policy with jobs that may leave whole nodes: when they do, what it costs them, and what always holds."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.engine.node_shares import resize_job
from drom.scheduler.engine.state import BAD_SHARE, NODE_GUESTS
from drom.scheduler.interface import MALLEABLE, NOBODY, RIGID, RUNNING
from drom.scheduler.simulator.leaving import NodeModel
from drom.scheduler.simulator.simulation import Machine
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.reference_sharing import Sharing, simulate
from tests.support.schedules import NODES, Row, jobs_of, logs, simulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.simulator.simulation import Simulation

pytestmark = pytest.mark.timeout(600)
"""The policy takes half a minute to compile, once."""

AT_ONCE = "interval=1"
FREELY = (AT_ONCE, "max_slowdown=infinite", "stall=0", "memory=0")
LOGS = 40
FREE = NodeModel(stall=0, memory=0)
"""Jobs whose changes cost nothing."""
DEAR = NodeModel(stall=0.5, memory=1.68, bandwidth=1)
"""Whole millionths of a second for every change on 8 nodes: 840 is a multiple of all numbers up to 8."""
COSTS = ("stall=0.5", "memory=1.68", "bandwidth=1")


def run_of(
    rows: Sequence[Row],
    least: Sequence[int],
    *choices: str,
    model: NodeModel = FREE,
    classes: Sequence[int] = (),
    machine: Machine | None = None,
) -> Simulation:
    """Return a finished simulation on 8 nodes of 4 cores; jobs have these fewest nodes, and classes if given."""
    run = simulation(rows, "sd", machine or Machine(NODES, 4), *(choices or FREELY), adaptive=model, least=least)
    if classes:
        run.world.jobs.cls[:] = classes
    run.run()
    return run


ONE = [(0, 100, 100, 8), (10, 20, 20, 4)]
"""A job on all nodes, and one that would have to wait for it."""


def test_a_job_leaves_nodes_for_a_rigid_guest() -> None:
    """A rigid job, which can share no node, starts at once with all cores of nodes that a mate leaves."""
    run = run_of(ONE, [4, 4], classes=[MALLEABLE, RIGID])

    assert run.world.jobs.start.tolist() == [0, 10]
    assert run.world.end.tolist() == [110, 30]
    assert run.world.jobs.limit.tolist() == [110, 20]


def test_cores_are_shared_before_nodes_are_left() -> None:
    """A job that finds mates to share nodes with starts there, although another could leave whole nodes."""
    run = run_of([(0, 100, 100, 4), (0, 100, 100, 4), (10, 10, 10, 4)], [4, 2, 4])

    assert run.world.given[2] == 2
    assert run.world.away.tolist() == [0, 0, 0]
    assert run.world.jobs.lent.tolist() == [1, 0, 0]


@pytest.mark.parametrize(("cores", "start"), [(2, 10), (3, 100)])
def test_a_job_keeps_the_cores_that_it_needs(cores: int, start: int) -> None:
    """A job shares its nodes only if it keeps as many cores of each as it needs, whatever the policy decides."""
    run = simulation([(0, 100, 100, 8), (10, 20, 20, 8)], "sd", Machine(NODES, 4), *FREELY, adaptive=FREE, least=[8, 8])
    run.world.jobs.least_cores[0] = cores
    run.run(until=11)
    assert resize_job(run.world, 0, np.arange(NODES), 1) == BAD_SHARE
    run.run()

    assert run.world.jobs.start.tolist() == [0, start]


def test_nodes_that_are_free_count_for_a_guest() -> None:
    """A mate leaves only as many nodes as are missing."""
    run = run_of([(0, 100, 100, 7), (10, 20, 20, 4)], [4, 4], classes=[MALLEABLE, RIGID])

    assert run.world.jobs.start[1] == 10
    assert run.world.end[0] == 109  # 20 s on four of seven nodes cost 60 / 7 s
    assert run.world.jobs.limit[0] == 109


def test_nodes_of_one_core() -> None:
    """Nodes of one core, which cannot be shared, can be left."""
    run = run_of(ONE, [4, 4], machine=Machine(NODES, 1))

    assert run.world.jobs.start.tolist() == [0, 10]


@pytest.mark.parametrize(
    ("least", "classes", "choices"),
    [
        ([8, 4], [MALLEABLE, RIGID], FREELY),
        ([5, 4], [MALLEABLE, RIGID], FREELY),
        ([4, 4], [RIGID, RIGID], FREELY),
        ([4, 4], [MALLEABLE, RIGID], (AT_ONCE, "max_slowdown=1.09", "stall=0", "memory=0")),
        ([4, 4], [MALLEABLE, RIGID], (*FREELY, "stall=91")),
        ([4, 4], [MALLEABLE, RIGID], (*FREELY, "contiguous=1")),
    ],
    ids=["not declared", "minimum", "rigid", "cut-off", "cost", "contiguous"],
)
def test_a_job_keeps_its_nodes(least: list[int], classes: list[int], choices: tuple[str, ...]) -> None:
    """No node is left below a minimum, by rigid jobs, above the cut-off, or if the guest would end later so."""
    run = run_of(ONE, least, *choices, classes=classes)

    assert run.world.jobs.start.tolist() == [0, 100]
    assert run.world.end.tolist() == [100, 120]


def test_a_change_costs_both_jobs_time() -> None:
    """The guest waits until the data are off its nodes, and the mate does no work while its data move."""
    model = NodeModel(stall=1, memory=10, bandwidth=5)
    run = run_of(ONE, [4, 4], AT_ONCE, "stall=1", "memory=10", "bandwidth=5", model=model, classes=[MALLEABLE, RIGID])

    # All data take 8 * 2 s through a link, and the busiest node moves an eighth of them: 3 s for each change.
    assert run.world.jobs.start.tolist() == [0, 13]
    assert run.world.end[1] == 33
    assert run.world.jobs.limit[0] == 100 + 12 + 3 + 3
    # 23 s at half speed, the first 3 of them without progress, and then 3 s without progress at full speed.
    assert run.world.end[0] == 100 + 11.5 + 1.5 + 3


def test_speedup_over_nodes() -> None:
    """A job whose speedup is sub-linear loses less on half of its nodes, by Downey's formula."""
    run = run_of(ONE, [4, 4], model=FREE._replace(parallelism=8, sigma=1), classes=[MALLEABLE, RIGID])
    speed = {n: 8 * n / (8 + (n - 1) / 2) for n in (4, 8)}

    assert run.world.end[0] == 110 - int(20 * (speed[4] / speed[8] - 0.5))
    assert run.world.jobs.limit[0] == 110


def test_two_mates_leave_nodes_together() -> None:
    """The mate that can leave most gives all that it can, the second what is missing."""
    rows = [(0, 100, 100, 3), (0, 100, 100, 5), (10, 20, 20, 5)]
    run = run_of(rows, [1, 2, 5], classes=[MALLEABLE, MALLEABLE, RIGID])

    assert run.world.jobs.start[2] == 10
    assert run.world.jobs.limit.tolist() == [100 + 14, 100 + 12, 20]
    assert run_of(rows, [1, 2, 5], *FREELY, "mates=1", classes=[MALLEABLE, MALLEABLE, RIGID]).world.jobs.start[2] > 10


def test_a_mate_has_several_guests() -> None:
    """Two guests at once have nodes of one mate, which gets each back when its guest ends."""
    rows = [(0, 100, 100, 8), (10, 20, 20, 2), (11, 20, 20, 2)]
    run = simulation(rows, "sd", Machine(NODES, 4), *FREELY, adaptive=FREE, least=[4, 2, 2])
    run.world.jobs.cls[1:] = RIGID
    run.run(until=11)

    assert run.world.away[0] == 4
    run.run(until=30)
    assert run.world.away[0] == 2
    run.run()
    assert run.world.end.tolist() == [110, 30, 31]


def test_a_guest_keeps_its_nodes_when_its_mate_ends() -> None:
    """A guest that outlasts its mate stays on the nodes, which are free after it."""
    run = run_of([(0, 20, 20, 8), (10, 50, 50, 4), (12, 5, 5, 4)], [4, 4, 4], classes=[MALLEABLE, RIGID, RIGID])

    assert run.world.end.tolist() == [30, 60, 35]


@pytest.mark.parametrize("model", ["ideal", "worst"])
@pytest.mark.parametrize(("adaptive", "costs"), [(FREE, ("stall=0", "memory=0")), (DEAR, COSTS)])
@pytest.mark.parametrize("cores", [1, 4])
def test_schedules_are_those_of_the_written_rules(
    model: str, adaptive: NodeModel, costs: tuple[str, ...], cores: int
) -> None:
    """Another implementation, from docs/simulate.md alone, finds the start and end of every job."""
    left = 0
    for seed in range(LOGS):
        random = np.random.default_rng(seed)
        count = int(random.integers(20, 60))
        submit = np.sort(random.integers(0, 6 * count, count) // 4 * 4)
        run = random.integers(1, 60, count)
        nodes = random.integers(1, 8, count)
        rows = [tuple(row) for row in np.stack((submit, run, run + random.integers(0, 40, count), nodes), 1).tolist()]
        least = random.integers(1, nodes + 1).tolist()
        for name, cutoff in (("dynavgsd", None), ("3", 3.0), ("infinite", float("inf"))):
            rules = Sharing(
                NODES,
                cores,
                cores // 2,
                cutoff,
                ideal=model == "ideal",
                least=least,
                stall=Fraction(str(adaptive.stall)),
                transfer=Fraction(str(adaptive.memory)),
            )
            found = simulation(
                rows,
                "sd",
                Machine(NODES, cores, runtime_model=model),
                AT_ONCE,
                f"max_slowdown={name}",
                *costs,
                adaptive=adaptive,
                least=least,
            )
            found.run()
            expected = simulate(jobs_of(rows), rules)
            assert expected == (found.world.jobs.start.tolist(), found.world.end.tolist()), (seed, name)
            left += int(found.world.scalars[NODE_GUESTS])
    assert left > LOGS


CHOICES = st.sampled_from(
    (
        FREELY,
        (AT_ONCE, *COSTS),
        ("interval=3", "max_slowdown=5", *COSTS),
        (AT_ONCE, "max_slowdown=dynavgsd", *COSTS),
        (*FREELY, "mates=3", "test=0"),
        (*FREELY, "guests=2"),
        (*FREELY, "recompute=1"),
        (*FREELY, "feedback=1"),
        (*FREELY, "guard=2", "far=predicted"),
        (*FREELY, "reservations=nodes"),
        (AT_ONCE, "reservations=nodes", "guard=1", "main=1", *COSTS),
    )
)


@settings(max_examples=250, deadline=None)
@given(
    rows=logs(),
    data=st.data(),
    choices=CHOICES,
    model=st.sampled_from(("ideal", "worst")),
    cores=st.sampled_from((1, 4)),
    adaptive=st.sampled_from((FREE, DEAR)),
)
def test_no_node_is_held_twice_and_minima_hold(  # noqa: PLR0917 - drawn values
    rows: list[Row],
    data: st.DataObject,
    choices: tuple[str, ...],
    model: str,
    cores: int,
    adaptive: NodeModel,
) -> None:
    """At every second a used node's cores are shared out exactly, and each job has cores on its least to all nodes."""
    least = [data.draw(st.integers(1, row[3])) for row in rows]
    layers = 3 if "guests=2" in choices and cores > 1 else 2
    machine = Machine(NODES, cores, runtime_model=model, layers=layers)
    run = simulation(rows, "sd", machine, *choices, adaptive=adaptive, least=least)
    second = 0
    while not run.is_over:
        run.run(until=second)
        second += 1
        house, jobs = run.world.nodes, run.world.jobs
        used = house.resident[:, 0] != NOBODY
        assert (house.share.sum(axis=1) == np.where(used, cores, 0)).all()
        there = house.resident[house.share > 0]
        present = np.bincount(there, minlength=len(rows))
        running = jobs.state == RUNNING
        assert (present[~running] == 0).all()
        assert (present[running] >= jobs.least[running]).all()
        assert (present[running] == (jobs.nodes - run.world.away)[running]).all()


@settings(max_examples=250, deadline=None)
@given(
    rows=logs(),
    data=st.data(),
    choices=CHOICES,
    model=st.sampled_from(("ideal", "worst")),
    sigma=st.sampled_from((None, 1.0)),
)
def test_every_job_does_its_work(
    rows: list[Row], data: st.DataObject, choices: tuple[str, ...], model: str, sigma: float | None
) -> None:
    """Limits are upper bounds where changes cost what is assumed: every job does all of its work, and catches up."""
    least = [data.draw(st.integers(1, row[3])) for row in rows]
    adaptive = DEAR if COSTS[0] in choices else FREE
    if sigma is not None and not {"recompute=1", "feedback=1"} & set(choices):
        adaptive = adaptive._replace(parallelism=6, sigma=sigma)
    layers = 3 if "guests=2" in choices else 2
    run = simulation(
        rows, "sd", Machine(NODES, 4, runtime_model=model, layers=layers), *choices, adaptive=adaptive, least=least
    )
    run.run()
    jobs, world = run.world.jobs, run.world
    unit = 1 if adaptive.is_linear else 1000
    behind = -(-jobs.lost // (jobs.nodes * 4 * unit))

    assert (world.end - jobs.start == world.run + behind).all()
    assert (world.end <= jobs.start + jobs.limit).all()


@settings(max_examples=100, deadline=None)
@given(rows=logs(), choices=CHOICES, adaptive=st.sampled_from((FREE, DEAR)), cores=st.sampled_from((1, 4)))
def test_schedules_without_jobs_that_may_leave_nodes_stay_equal(
    rows: list[Row], choices: tuple[str, ...], adaptive: NodeModel, cores: int
) -> None:
    """Job by job, whatever changes of nodes would cost."""
    machine = Machine(NODES, cores, layers=3 if "guests=2" in choices and cores > 1 else 2)
    choices = choices if cores > 1 else tuple(one for one in choices if one != "guests=2")
    plain = simulation(rows, "sd", machine, *choices)
    without = simulation(rows, "sd", machine, *choices, adaptive=adaptive._replace(share=0))
    plain.run()
    without.run()

    assert without.world.jobs.start.tolist() == plain.world.jobs.start.tolist()
    assert without.world.end.tolist() == plain.world.end.tolist()
    assert without.world.scalars.tolist() == plain.world.scalars.tolist()
