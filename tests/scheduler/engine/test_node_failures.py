# SPDX-License-Identifier: Apache-2.0
"""Nodes that go down and come back: what becomes of the jobs on them, and that nothing changes without failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.analysis.schedule import schedule_of
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import CHECKPOINT, FREE, Outages
from drom.scheduler.interface import NEVER
from drom.scheduler.simulator.failures import failures_table, figures
from drom.scheduler.simulator.simulation import Machine, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.schedules import NODES, Row, logs, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Span = tuple[int, int, int]
"""A node, the second at which it goes down and that at which it comes back."""
POLICIES = ("fcfs", "easy", "conservative", "slurm", "sd", "saf")


def failing(
    rows: Sequence[Row], spans: Sequence[Span], policy: str = "easy", machine: Machine | None = None, **options: Any
) -> Simulation:
    """Return the simulation of jobs on nodes of which some go down, up to its end."""
    machine = machine or Machine(NODES)
    changes = sorted((when, node, up) for node, *times in spans for up, when in enumerate(times))
    table = np.array(changes, np.int64).reshape(-1, 3)
    run = Simulation.of(workload(rows, machine.cores), machine, load_policy(policy), outages=Outages(table, **options))
    run.run()
    return run


def times(run: Simulation) -> list[tuple[int, int]]:
    """Return start and end of each job, the last time that it ran."""
    table = schedule_of(run).table
    return list(zip(table["start"].tolist(), table["end"].tolist(), strict=True))


def test_a_job_whose_node_goes_down_starts_again() -> None:
    """At once on others, if there are enough; from its beginning, and with the limit that it asked for."""
    run = failing([(0, 100, 120, 4)], [(1, 50, 70)])

    assert times(run) == [(50, 150)]
    assert run.world.jobs.ends[0] == 50 + 120
    assert {name: column.tolist() for name, column in failures_table(run).items()} == {
        "job_id": [1],
        "start": [0],
        "end": [50],
        "nodes": [4],
        "node": [1],
        "wasted_core_seconds": [200],
    }


def test_a_job_waits_for_the_repair_of_nodes_that_it_needs() -> None:
    """It does not start before, and its place in the queue is that of its submission."""
    run = failing([(0, 100, 100, 8), (10, 5, 5, 8)], [(0, 50, 60)])

    assert times(run) == [(60, 160), (160, 165)]


def test_a_job_that_ends_as_its_node_goes_down_has_ended() -> None:
    """Ends come first, then nodes, then submissions."""
    run = failing([(0, 50, 50, 8), (50, 10, 10, 8)], [(0, 50, 51)])

    assert times(run) == [(0, 50), (51, 61)]
    assert not len(failures_table(run)["job_id"])


def test_a_job_goes_on_from_its_last_checkpoint() -> None:
    """That takes it the time of a restart; what it did since the checkpoint is wasted, also the restart."""
    run = failing([(0, 100, 100, 8)], [(0, 50, 60), (1, 63, 70), (2, 99, 100)], checkpoint=20, restart=5)

    # 40 s are kept at 50; of the 5 s of the restart 3 have passed at 63; 64 s are done at 99: 60 s are kept.
    assert times(run) == [(100, 145)]
    assert failures_table(run)["wasted_core_seconds"].tolist() == [8 * 10, 8 * 3, 8 * (5 + 4)]


def test_a_job_without_a_checkpoint_begins_anew() -> None:
    """A failure before the first one needs no restart."""
    run = failing([(0, 100, 100, 8)], [(0, 15, 20)], checkpoint=20, restart=5)

    assert times(run) == [(20, 120)]


def test_jobs_that_are_lost() -> None:
    """They have no slowdown, and the machine goes on without them."""
    run = failing([(0, 100, 100, 4), (0, 30, 30, 4)], [(0, 10, 20)], loses=True)
    table, told = schedule_of(run).table, figures(run)

    assert table["state"].tolist() == ["lost", "ended"]
    assert times(run) == [(0, 10), (0, 30)]
    assert run.is_over
    assert metrics(run, Power())["mean_response_s"] == 30
    assert told
    assert (told["lost_jobs"], told["failed_jobs"], told["wasted_core_seconds"]) == (1, 1, 40)


def test_guest_and_mate_fail_together() -> None:
    """Both leave all their nodes; when these are back they share them again."""
    rows = [(0, 90, 200, 2), (30, 50, 50, 2)]
    run = failing(rows, [(0, 60, 120)], "sd", Machine(2, 2))
    failed = failures_table(run)

    assert (failed["job_id"].tolist(), failed["start"].tolist()) == ([1, 2], [0, 30])
    assert failed["wasted_core_seconds"].tolist() == [4 * 30 + 2 * 30, 2 * 30]
    assert times(run) == [(120, 260), (120, 220)]
    assert run.world.jobs.limit.tolist() == [250, 100]
    assert (run.world.nodes.share == 0).all()


def test_nodes_that_are_down_do_not_work() -> None:
    """They are neither free nor busy; the figures say how long they were down."""
    run = failing([(0, 100, 100, 4)], [(7, 20, 70)])
    told = figures(run)

    assert metrics(run, Power())["node_utilisation"] == 0.5
    assert told
    assert told["node_failures"] == 1
    assert told["availability"] == pytest.approx(1 - 50 / 800)
    assert told["failures_of_jobs"] == 0


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None)
@given(rows=logs(), data=st.data())
def test_no_job_runs_on_a_node_that_is_down(policy: str, rows: list[Row], data: st.DataObject) -> None:
    """Each job ends after its run time, and each failure is that of a node that the job had."""
    spans = data.draw(outages())
    run = failing(rows, spans, policy)
    table, failed = schedule_of(run).table, failures_table(run)
    house = run.world.nodes

    assert run.is_over
    assert (table["end"] - table["start"]).tolist() == [row[1] for row in rows]
    for job, (start, end) in enumerate(times(run)):
        mine = house.place[house.first[job] : house.first[job + 1]].tolist()
        assert all(end <= down or start >= up for node, down, up in spans if node in mine)
    for job, start, end, node in zip(*(failed[name] for name in ("job_id", "start", "end", "node")), strict=True):
        assert start < end <= table["start"][job - 1]
        assert (node, end) in {(node, down) for node, down, _ in spans}
    for span in spans:
        assert (
            sum(end == span[1] and node == span[0] for end, node in zip(failed["end"], failed["node"], strict=True))
            <= 1
        )


@st.composite
def outages(draw: st.DrawFn) -> list[Span]:
    """Draw times at which nodes are down."""
    spans = []
    for node in draw(st.sets(st.integers(0, NODES - 1), max_size=4)):
        then = 0
        for _ in range(draw(st.integers(1, 3))):
            down = then + draw(st.integers(1, 30))
            then = down + draw(st.integers(1, 20))
            spans.append((node, down, then))
    return spans


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None)
@given(rows=logs())
def test_an_idle_node_that_fails_after_the_last_job_changes_nothing(policy: str, rows: list[Row]) -> None:
    """Every schedule is that without failures, job by job, also with checkpoints."""
    machine = Machine(NODES, 2)
    plain = Simulation.of(workload(rows, 2), machine, load_policy(policy))
    plain.run()
    late = failing(rows, [(0, NEVER - 2, NEVER - 1)], policy, machine, checkpoint=3, restart=1)

    assert times(late) == times(plain)
    assert late.world.scalars[FREE] == NODES
    assert late.now == plain.now


def test_a_saved_simulation_goes_on_with_its_failures(tmp_path: Path) -> None:
    """Also between a failure and the repair; with other failures it is refused."""
    rows, spans = [(0, 100, 100, 8), (5, 20, 20, 2)], [(0, 50, 60), (1, 63, 70)]
    whole = failing(rows, spans, checkpoint=20)

    def fresh(checkpoint: int) -> Simulation:
        return Simulation.of(
            workload(rows), Machine(NODES), load_policy("easy"), outages=Outages(whole.world.outages, checkpoint)
        )

    part = fresh(20)
    part.run(65)
    part.save(tmp_path / "state")
    resumed = fresh(20)
    resumed.resume(tmp_path / "state")
    resumed.run()

    assert times(resumed) == times(whole)
    assert resumed.world.scalars[CHECKPOINT] == 20
    with pytest.raises(Exception, match="was saved with failures"):
        fresh(30).resume(tmp_path / "state")
