# SPDX-License-Identifier: Apache-2.0
"""Nodes that are turned off without jobs: when, what waits for them, and the energy."""

from __future__ import annotations

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.analysis.schedule import schedule_of
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import Outages, Sleep
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.scheduler.simulator.sleep import figures, off_seconds, parse_sleep
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schedules import NODES, Row, logs, workload

POWER = Power(100, 300, 10)
POLICIES = ("fcfs", "easy", "conservative", "slurm", "sd")


def sleeping(rows: list[Row], after: int, wake: int, policy: str = "easy", cores: int = 1) -> Simulation:
    """Return the simulation of jobs on nodes that are turned off, up to its end."""
    machine = Machine(NODES, cores)
    run = Simulation.of(workload(rows, cores), machine, load_policy(policy), sleep=Sleep(after, wake))
    run.run()
    return run


def test_a_job_waits_until_nodes_are_on_again() -> None:
    """It starts when they are, and has all of its run time then."""
    run = sleeping([(0, 10, 10, 4), (100, 20, 20, 4), (125, 5, 5, 8)], 30, 7)

    assert run.world.jobs.start.tolist() == [0, 107, 134]
    assert run.world.end.tolist() == [10, 127, 139]
    # Nodes 0 to 3 are off from 40 to 100, nodes 4 to 7 from 30 to 127; then all are woken.
    assert figures(run.world) == {"node_seconds_off": 4 * 60 + 4 * 97, "wakes": 8}


def test_nodes_that_stay_on_long_enough() -> None:
    """Nothing waits if no node has been without a job for longer."""
    rows = [(0, 10, 10, 4), (40, 20, 20, 4)]

    assert sleeping(rows, 30, 7).world.jobs.start.tolist() == [0, 40]
    assert sleeping(rows, 29, 7).world.jobs.start.tolist() == [0, 47]


def test_a_guest_waits_for_a_node_that_wakes_up() -> None:
    """It starts with the job for which the node is turned on."""
    run = sleeping([(0, 10, 10, 8), (100, 100, 1000, 8), (100, 10, 10, 8)], 30, 20, "sd", cores=2)

    assert run.world.jobs.lent[1] == 1
    assert run.world.jobs.start.tolist() == [0, 140, 140]


def test_energy() -> None:
    """Nodes that wake up take the watts of those with jobs."""
    run = sleeping([(0, 10, 10, 8), (100, 20, 20, 8)], 30, 5)
    expected = 8 * (10 * 300 + 30 * 100 + 60 * 10 + 25 * 300)

    assert metrics(run, POWER)["energy_joule"] == expected


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None)
@given(rows=logs(), after=st.integers(0, 30), wake=st.integers(0, 9))
def test_every_job_has_its_run_time(policy: str, rows: list[Row], after: int, wake: int) -> None:
    """Waiting for nodes is no work, and nodes are off only when they have no job."""
    run = sleeping(rows, after, wake, policy)
    table, found = schedule_of(run).table, metrics(run, POWER)
    span = NODES * found["makespan_s"]

    assert (table["end"] - table["start"]).tolist() == [row[1] for row in rows]
    assert 0 <= off_seconds(run.world) <= span * (1 - found["node_utilisation"]) + 1e-6


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None)
@given(rows=logs(), after=st.integers(0, 30))
def test_nodes_that_wake_at_once_change_no_schedule(policy: str, rows: list[Row], after: int) -> None:
    """Every job starts as if nodes stayed on."""
    plain = Simulation.of(workload(rows), Machine(NODES), load_policy(policy))
    plain.run()

    assert sleeping(rows, after, 0, policy).world.jobs.start.tolist() == plain.world.jobs.start.tolist()


def test_a_job_whose_node_fails_before_it_is_on() -> None:
    """The job has done nothing, and its next start waits for nodes that are off as well."""
    outages = Outages(np.array([[112, 0, 0], [200, 0, 1]], np.int64))
    run = Simulation.of(
        workload([(100, 1, 1, 8), (110, 10, 10, 4)]),
        Machine(NODES),
        load_policy("easy"),
        outages=outages,
        sleep=Sleep(0, 5),
    )
    run.run()

    assert run.world.failures[0].tolist() == [1, 112, 112, 0, 0]
    assert (run.world.jobs.start[1], run.world.end[1]) == (117, 127)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (["wake=5"], "--sleep: after is missing: write for example --sleep after=600."),
        (["after=x"], "--sleep 'after=x': after is a whole number of seconds up to 31,536,000."),
        (["after=1", "watts=3"], "--sleep 'watts=3': there is no 'watts': choose after, wake."),
    ],
)
def test_bad_parameters(said: list[str], sentence: str) -> None:
    """One sentence that says what to do."""
    with pytest.raises(SchedulerError) as raised:
        parse_sleep(said)
    assert str(raised.value) == sentence
