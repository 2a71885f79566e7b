# SPDX-License-Identifier: Apache-2.0
"""Nodes of several speeds: how fast jobs run on them, and what stays the same with speed 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.analysis.schedule import columns, schedule_of
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import NO_OUTAGES, Outages, Sleep
from drom.scheduler.simulator.failures import failures_table
from drom.scheduler.simulator.simulation import Machine, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schedules import NODES, Row, logs, workload

if TYPE_CHECKING:
    from drom.scheduler.simulator.speeds import Speeds

POWER = Power(100, 300)
HALF: Speeds = ((0.5, "4-7"),)
OUTAGES = Outages(np.array([[7, 0, 0], [12, 0, 1], [20, 5, 0], [21, 5, 1]], np.int64), checkpoint=3, restart=1)


def simulated(
    rows: list[Row],
    speeds: Speeds,
    policy: str = "easy",
    *,
    cores: int = 1,
    model: str = "worst",
    outages: Outages = NO_OUTAGES,
    sleep: Sleep | None = None,
) -> Simulation:
    """Return the simulation of jobs on nodes of these speeds, up to its end."""
    machine = Machine(NODES, cores, runtime_model=model, speeds=speeds)
    run = Simulation.of(workload(rows, cores), machine, load_policy(policy), outages=outages, sleep=sleep)
    run.run()
    return run


def test_jobs_run_at_the_speed_of_their_nodes() -> None:
    """A job takes its run time over the speed, and the lowest-numbered nodes are taken first."""
    run = simulated([(0, 10, 50, 4), (0, 10, 50, 4)], HALF)

    assert run.world.end.tolist() == [10, 20]
    assert columns(run)["full_speed_run_time"].tolist() == [10, 10]


def test_fast_nodes_end_jobs_early() -> None:
    """A part of a second that is left takes a whole second."""
    run = simulated([(0, 10, 10, 8)], ((1.5, "0-7"),))

    assert run.world.end.tolist() == [7]


@pytest.mark.parametrize(("model", "end"), [("worst", 20), ("ideal", 14)])
def test_a_job_over_nodes_of_several_speeds(model: str, end: int) -> None:
    """The slowest node limits it at worst; the mean speed, 0.75, counts where its work is balanced ideally."""
    run = simulated([(0, 10, 50, 8)], HALF, model=model)

    assert run.world.end.tolist() == [end]


def test_a_job_ends_at_its_limit_on_slow_nodes() -> None:
    """Its work is what it did until then."""
    run = simulated([(0, 10, 12, 8)], HALF)
    table = columns(run)

    assert run.world.end.tolist() == [12]
    assert table["full_speed_run_time"].tolist() == [6]


def test_utilisation_is_of_what_the_machine_can_do() -> None:
    """Nodes that are busy all the time are fully utilised, whatever their speeds."""
    found = metrics(simulated([(0, 20, 50, 4), (0, 10, 50, 4)], HALF), POWER)

    assert found["utilisation"] == pytest.approx(1)
    assert found["node_utilisation"] == 1
    assert found["energy_joule"] == NODES * 20 * 300


def test_a_guest_and_its_mate_have_the_speed_of_their_node() -> None:
    """Both have half of the cores of a node of half the speed while they share it."""
    run = simulated([(0, 100, 1000, 8), (0, 10, 10, 8)], ((0.5, "0-7"),), "sd", cores=2)
    table = columns(run)

    assert table["share_at_start"].tolist() == [2, 1]
    # The guest's limit of 20 s is that of nodes of speed 1, so that it ends with half of its work done. Until then its
    # mate does a quarter of its work.
    begun, ended = table["start"][1], table["end"][1]
    assert (ended - begun, table["full_speed_run_time"][1]) == (20, 5)
    assert table["end"][0] == 200 + 10


def test_what_a_failure_wastes_is_counted_in_core_seconds() -> None:
    """They are those of nodes of speed 1."""
    outages = Outages(np.array([[10, 0, 0], [11, 0, 1]], np.int64))
    run = simulated([(0, 30, 100, 8)], ((0.5, "0-7"),), outages=outages)

    assert failures_table(run)["wasted_core_seconds"].tolist() == [5 * NODES]
    assert run.world.end.tolist() == [11 + 60]


def test_work_up_to_a_checkpoint_is_kept_on_slow_nodes() -> None:
    """Of 5 s of work 3 are saved; those that are left, and the restart, take twice as long."""
    outages = Outages(np.array([[10, 0, 0], [11, 0, 1]], np.int64), checkpoint=3, restart=1)
    run = simulated([(0, 30, 100, 8)], ((0.5, "0-7"),), outages=outages)

    assert failures_table(run)["wasted_core_seconds"].tolist() == [2 * NODES]
    assert run.world.end.tolist() == [11 + 2 * (27 + 1)]


@pytest.mark.parametrize("model", ["worst", "ideal"])
@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "slurm", "sd", "wfp3"])
@settings(deadline=None, max_examples=50)
@given(rows=logs(), fails=st.booleans(), sleeps=st.booleans())
def test_with_speed_1_every_schedule_is_that_of_equal_nodes(
    policy: str, model: str, rows: list[Row], fails: bool, sleeps: bool
) -> None:
    """Job by job, and metric by metric."""
    outages, sleep = OUTAGES if fails else NO_OUTAGES, Sleep(2, 3) if sleeps else None
    one, other = (
        simulated(rows, speeds, policy, cores=4, model=model, outages=outages, sleep=sleep)
        for speeds in ((), ((1.0, f"0-{NODES - 1}"),))
    )
    tables = [schedule_of(run).table | failures_table(run) for run in (one, other)]

    assert [column.tolist() for column in tables[0].values()] == [column.tolist() for column in tables[1].values()]
    assert one.world.nodes.place.tolist() == other.world.nodes.place.tolist()
    assert metrics(one, POWER) == metrics(other, POWER)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "slurm", "sd"])
@settings(deadline=None, max_examples=50)
@given(rows=logs(), speed=st.sampled_from([0.5, 0.8, 1.25, 3.0]))
def test_every_job_takes_what_its_slowest_node_needs(policy: str, rows: list[Row], speed: float) -> None:
    """A job that has no node of the other speed takes its run time."""
    run = simulated(rows, ((speed, "4-7"),), policy)
    table, house = columns(run), run.world.nodes
    for job, (_, needed, allowed, _) in enumerate(rows):
        slow = [1.0 if node < 4 else speed for node in house.place[house.first[job] : house.first[job + 1]]]
        expected = -(-needed * 1000 // int(1000 * min(slow)))
        assert table["end"][job] - table["start"][job] == min(expected, allowed)
