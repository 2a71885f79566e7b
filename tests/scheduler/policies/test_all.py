# SPDX-License-Identifier: Apache-2.0
"""Every policy against a slow reference, job by job, and what holds for each."""

from __future__ import annotations

import numpy as np
import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import QUEUED
from drom.scheduler.errors import SchedulerError
from hypothesis import given, settings

from tests.support import reference_schedules as reference
from tests.support.schedules import NODES, Row, jobs_of, logs, simulation, starts

SOME = settings(max_examples=300, deadline=None)


@SOME
@given(logs())
def test_fcfs(rows: list[Row]) -> None:
    """Jobs start in order."""
    found = starts(rows, "fcfs")

    assert found == reference.simulate(jobs_of(rows), NODES, reference.fcfs)
    assert found == sorted(found)


@SOME
@given(logs())
def test_easy(rows: list[Row]) -> None:
    """A job is backfilled exactly when the head could start as early as before."""
    assert starts(rows, "easy") == reference.simulate(jobs_of(rows), NODES, reference.easy)


@SOME
@given(logs())
def test_resources(rows: list[Row]) -> None:
    """On whole nodes one reservation is EASY backfilling, and none is first-fit."""
    assert starts(rows, "resources") == starts(rows, "easy")
    assert starts(rows, "resources", None, "depth=0") == starts(rows, "firstfit")


@pytest.mark.parametrize(
    ("choice", "said"), [("depth=401", "depth is a whole number from 0 to 400"), ("order=2", "order")]
)
def test_parameters_of_resources_that_cannot_be(choice: str, said: str) -> None:
    """Are a sentence."""
    with pytest.raises(SchedulerError, match=said):
        load_policy("resources", [choice])


@SOME
@given(logs())
def test_conservative(rows: list[Row]) -> None:
    """Every job keeps its promise or betters it, in order."""
    assert starts(rows, "conservative") == reference.simulate(jobs_of(rows), NODES, reference.conservative)


@SOME
@given(logs())
def test_conservative_with_a_depth(rows: list[Row]) -> None:
    """With one reservation nobody overtakes anybody; with as many as there are jobs the depth changes nothing."""
    assert starts(rows, "conservative", None, "depth=1") == starts(rows, "fcfs")
    assert starts(rows, "conservative", None, "depth=25") == starts(rows, "conservative")


@pytest.mark.parametrize("depth", ["-1", "1.5", "nan"])
def test_a_depth_that_cannot_be(depth: str) -> None:
    """Is a sentence."""
    with pytest.raises(SchedulerError, match="depth is a whole number from 0"):
        load_policy("conservative", [f"depth={depth}"])


@SOME
@given(logs())
def test_slurm(rows: list[Row]) -> None:
    """Passes at ticks after events, a bounded depth and window, coarse reservations."""
    choices = ("interval=3", "depth=4", "window=20", "resolution=7")
    expected = reference.simulate(jobs_of(rows), NODES, reference.slurm(4, 20, 7), ticks=3)

    assert starts(rows, "slurm", None, *choices) == expected


@SOME
@given(logs())
def test_a_conservative_plan_is_never_moved_back(rows: list[Row]) -> None:
    """Whatever was planned for a job at one time, it starts by then."""
    run = simulation(rows, "conservative")
    promised: dict[int, int] = {}
    for until in range(rows[-1][0] + 1):
        run.run(until)
        planned = run.world.jobs.planned
        for job in run.world.queue[: run.world.scalars[QUEUED]].tolist():
            assert planned[job] <= promised.get(job, planned[job])
            promised[job] = planned[job]
    run.run()

    assert all(run.world.jobs.start[job] <= when for job, when in promised.items())


@SOME
@given(logs(exact=True))
def test_conservative_with_exact_requests_keeps_every_reservation(rows: list[Row]) -> None:
    """Where requests are exact, nothing comes free early and each job starts when it was first planned."""
    run = simulation(rows, "conservative")
    first: dict[int, int] = {}
    for until in range(rows[-1][0] + 1):
        run.run(until)
        for job in run.world.queue[: run.world.scalars[QUEUED]].tolist():
            first.setdefault(job, int(run.world.jobs.planned[job]))
    run.run()

    assert {job: int(run.world.jobs.start[job]) for job in first} == first


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative", "slurm"])
@settings(max_examples=60, deadline=None)
@given(rows=logs())
def test_no_node_has_two_jobs(policy: str, rows: list[Row]) -> None:
    """At any time each node has one job at most, and each job as many as it asks for, for its run time."""
    run = simulation(rows, policy)
    run.run()
    jobs, house = run.world.jobs, run.world.nodes
    taken: dict[tuple[int, int], int] = {}
    for job, row in enumerate(rows):
        mine = house.place[house.first[job] : house.first[job + 1]].tolist()
        assert len(set(mine)) == row[3]
        assert run.world.end[job] - jobs.start[job] == row[1]
        assert jobs.start[job] >= row[0]
        for node in mine:
            for second in range(jobs.start[job], run.world.end[job]):
                assert taken.setdefault((node, second), job) == job
    assert np.all(house.resident == -1)


def test_slurm_starts_heads_at_once_with_its_main_scheduler() -> None:
    """Without it a job waits for the tick."""
    rows = [(1, 5, 5, 8), (2, 5, 5, 8)]

    assert starts(rows, "slurm", None, "main=1") == [1, 6]
    assert starts(rows, "slurm") == [30, 60]
    assert starts(rows, "slurm", None, "phase=7") == [7, 37]


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ("depht=1", "'depht=1': the policy slurm has no parameter 'depht': it has interval, depth,"),
        ("depth=x", "'depth=x': the parameter depth of policy slurm is a number: write depth=100."),
        ("depth=0", "policy slurm: depth is a whole number from 1 to 1000000000, not 0."),
        ("interval=nan", "policy slurm: interval is a whole number from 1 to 1000000000, not nan."),
        ("main=2", "policy slurm: main is 0 or 1."),
    ],
)
def test_wrong_parameters(choice: str, sentence: str) -> None:
    """A sentence says what there is."""
    with pytest.raises(SchedulerError) as raised:
        load_policy("slurm", [choice])

    assert str(raised.value).startswith(sentence)
