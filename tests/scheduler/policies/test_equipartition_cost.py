# SPDX-License-Identifier: Apache-2.0
"""Equipartition that weighs what a change costs, on examples worked out by hand; and what always holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.simulator.adaptive import PoolModel
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.swf import write_swf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.schedules import NODES, Row, logs, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FREE = PoolModel(minimum=0.5, maximum=2, shrink=0, expand=0, memory=0)
"""Linear speedup; changes cost no more than `stall`."""

LONG_AND_SHORT = ((0, 400, 400, 4), (10, 20, 20, 2))
"""The first has all of eight processors and would end at 200; the second would then wait for 190 s."""


def simulated(rows: Sequence[Row], cost: float, stall: float = 0, evolving: str = "") -> Simulation:
    """Return a simulation that has ended, in which changes cost `stall` and are taken to cost `cost`."""
    policy = load_policy("equipartition", [f"cost={cost}"])
    jobs_are = FREE._replace(stall=stall)
    run = Simulation.of(workload(rows), Machine(NODES), policy, adaptive=jobs_are, evolving=evolving)
    run.run()
    return run


def times(run: Simulation) -> list[tuple[int, int]]:
    """Return when each job starts and ends."""
    return list(zip(run.world.jobs.start.tolist(), run.world.end.tolist(), strict=True))


def test_a_change_that_is_worth_it() -> None:
    """A long job shrinks to its share, 5 of 8, while a short one has 3, and grows again after it."""
    assert times(simulated(LONG_AND_SHORT, cost=1, stall=1)) == [(0, 207), (10, 24)]


def test_a_change_that_is_not() -> None:
    """Where a change costs more than the short job would wait, it waits."""
    assert times(simulated(LONG_AND_SHORT, cost=200, stall=200)) == [(0, 200), (200, 210)]


def test_growing() -> None:
    """What an end leaves is taken by who ends earlier by it: with 40 s left, for a cost of 19 s and not of 20."""
    rows = [(0, 40, 40, 4), (0, 80, 80, 4)]

    assert times(simulated(rows, cost=19, stall=19)) == [(0, 40), (0, 79)]
    assert times(simulated(rows, cost=20, stall=20)) == [(0, 40), (0, 80)]


@given(logs(), st.sampled_from((0.001, 3, 1000)), st.sampled_from(("", "1")))
@settings(deadline=None, max_examples=60)
def test_every_job_ends(rows: list[Row], cost: float, evolving: str) -> None:
    """No action is refused and nobody waits for good, whatever a change is taken to cost, also for evolving jobs."""
    run = simulated(rows, cost, evolving=evolving)

    assert run.is_over
    assert (run.world.jobs.start >= run.world.jobs.submit).all()


def test_options(tmp_path: Path) -> None:
    """Fewer changes with a cost; a negative one is refused."""
    write_swf(synthetic(), tmp_path / "log.swf.gz")
    command = ("simulate", tmp_path / "log.swf.gz", "--nodes", "64", "--policy", "equipartition", "--json")
    _, said = drom(*command, "--set", "cost=-1", code=1)
    plain, weighing = (drom(*command, "--set", f"cost={cost}")[0] for cost in (0, 60))

    assert said.splitlines()[-1] == "drom: policy equipartition: cost is a number of seconds of at least 0."
    assert resizes(weighing) < resizes(plain)


def resizes(text: str) -> int:
    """Return how often jobs changed."""
    return int(json.loads(text)["metrics"]["reconfigurations"])
