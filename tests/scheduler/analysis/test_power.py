# SPDX-License-Identifier: Apache-2.0
"""The power of a machine over time, against the energy that the engine counts."""

from __future__ import annotations

import numpy as np
import pytest
from drom.scheduler.analysis import power
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.analysis.power import watts
from drom.scheduler.analysis.schedule import schedule_of
from drom.scheduler.analysis.series import span_of
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import NO_OUTAGES, Outages, Sleep
from drom.scheduler.simulator.simulation import Machine, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schedules import NODES, Row, logs, workload

WATTS = Power(100, 300, 10)


def simulated(
    rows: list[Row], policy: str, cores: int = 1, sleep: Sleep | None = None, outages: Outages = NO_OUTAGES
) -> Simulation:
    """Return a simulation up to its end."""
    machine = Machine(NODES, cores)
    run = Simulation.of(workload(rows, cores), machine, load_policy(policy), sleep=sleep, outages=outages)
    run.run()
    return run


def power_of(run: Simulation, edges: list[float]) -> list[float]:
    """Return the watts between edges."""
    return [float(value) for value in watts(run, schedule_of(run), WATTS, np.array(edges))]


def test_empty_and_busy_nodes() -> None:
    """Half of the nodes have a job for 10 s, then none does, then all do."""
    run = simulated([(0, 10, 10, 4), (20, 10, 10, 8)], "easy")

    assert power_of(run, [0, 10, 20, 30]) == [4 * 300 + 4 * 100, 8 * 100, 8 * 300]


def test_nodes_that_are_off_and_wake_up() -> None:
    """Nodes go off after 5 s, and take the peak for the 3 s before the second job starts on them."""
    run = simulated([(0, 10, 10, 4), (20, 10, 10, 8)], "easy", sleep=Sleep(5, 3))
    on, off, busy = 100, 10, 300

    assert power_of(run, [0, 5, 10, 15, 20, 23, 33]) == [
        4 * busy + 4 * on,
        4 * busy + 4 * off,
        4 * on + 4 * off,
        8 * off,
        8 * busy,
        8 * busy,
    ]


def test_a_shared_node_counts_once() -> None:
    """A guest and its mate take the watts of one node."""
    run = simulated([(0, 100, 1000, 8), (0, 10, 10, 8)], "sd", cores=2)

    assert schedule_of(run).table["share_at_start"].tolist() == [2, 1]
    assert power_of(run, [0, 100]) == [8 * 300]


def test_what_is_not_known() -> None:
    """Processors of a pool, and nodes of jobs that have failed."""
    outages = Outages(np.array([[5, 0, 0], [6, 0, 1]], np.int64))
    runs = simulated([(0, 10, 10, 4)], "equipartition"), simulated([(0, 10, 10, 4)], "easy", outages=outages)

    assert all(np.isnan(power_of(run, [0, 10])).all() for run in runs)


@pytest.mark.parametrize("policy", ["fcfs", "easy", "slurm", "sd"])
@pytest.mark.parametrize("rows_at_once", [power._ROWS, 3])
@settings(deadline=None, max_examples=50)
@given(rows=logs(), after=st.none() | st.integers(0, 30), wake=st.integers(0, 9))
def test_the_integral_is_the_energy(
    policy: str, rows_at_once: int, rows: list[Row], after: int | None, wake: int
) -> None:
    """Also where jobs share nodes, where nodes are off or wake up, and for nodes in several blocks."""
    sleep = None if after is None else Sleep(after, wake)
    run = simulated(rows, policy, 4, sleep)
    schedule, edges = schedule_of(run), span_of(schedule_of(run)).edges(7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(power, "_ROWS", rows_at_once)
        found = watts(run, schedule, WATTS, edges)

    assert (found * np.diff(edges)).sum() == pytest.approx(metrics(run, WATTS)["energy_joule"])
