# SPDX-License-Identifier: Apache-2.0
"""Predicted run times: what predictors know, how predictions are corrected, and that nobody is killed by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import accuracy
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.interface import ENDED, RUNNING
from drom.scheduler.predictors import knowledge, learned
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.swf import write_swf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.commands import drom
from tests.support.job_logs import synthetic
from tests.support.schedules import NODES, logs, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.support.schedules import Row

PREDICTORS = ("recent", "learned")
POLICIES = ("easy", "conservative", "slurm")


def simulation(rows: Sequence[Row], users: Sequence[int], policy: str, predictor: str) -> Simulation:
    """Return a simulation of these jobs of these users before its first event."""
    work = workload(rows).with_columns(user=np.array(users, np.int64))
    choices = ["interval=5", "resolution=1"] if policy == "slurm" else []
    return Simulation.of(work, Machine(NODES), load_policy(policy, choices), predictor=predictor)


def test_recent_average() -> None:
    """The mean of the last two that have ended, never above the request; before there are two, and of others, that."""
    rows = [(0, 10, 500, 1), (1, 20, 500, 1), (15, 9, 500, 1), (30, 40, 500, 1), (30, 5, 12, 1), (40, 5, 500, 1)]
    run = simulation([*rows, (99, 5, 500, 1), (99, 5, 500, 1)], [7, 7, 7, 7, 7, 8, 7, -1], "easy", "recent")
    run.run()

    assert run.world.jobs.requested.tolist() == [500, 500, 500, 14, 12, 500, 22, 500]
    assert accuracy(run) == {
        "by": "recent",
        "mean_error_s": pytest.approx((490 + 480 + 491 + 26 + 7 + 495 + 17 + 495) / 8),
        "too_short": 1 / 8,
        "raised": 1,
    }


def test_corrections() -> None:
    """A prediction that has passed is raised by a minute, then five, a quarter of an hour, up to the request."""
    history = [(0, 10, 10, 1), (0, 10, 10, 1)]
    looks = [109, 110, 169, 170, 469, 470, 1369, 1370, 1900]
    rows = [*history, (100, 2000, 1500, 1), *((at, 1, 1, 1) for at in looks)]
    run = simulation(rows, [7, 7, 7, *([8] * len(looks))], "easy", "recent")
    limits = []
    for at in looks:
        run.run(at)
        limits.append(int(run.world.jobs.limit[2]))
    run.run()

    assert limits == [10, 70, 70, 370, 370, 1270, 1270, 1500, 1500]
    assert run.world.end[2] == 100 + 1500


def test_a_reservation_moves_with_a_correction() -> None:
    """The head is planned anew when a running job has outlived its prediction; who would delay it, waits."""
    rows = [(0, 10, 10, 1), (0, 10, 10, 1), (100, 300, 900, 6), (101, 50, 60, 8), (102, 50, 60, 2), (120, 5, 40, 1)]
    run = simulation(rows, [7, 7, 7, 8, 9, 6], "easy", "recent")
    planned = []
    for at in (101, 102, 120):
        run.run(at)
        planned.append(int(run.world.jobs.planned[3]))
    run.run()

    assert planned == [110, 110, 170]
    assert run.world.jobs.start[2:].tolist() == [100, 400, 450, 120]


def corrected(first: int, ran: int, most: int) -> int:
    """Return what is expected of a job that has run for so long, after a first prediction; never more than `most`."""
    expected, steps = first, [60 * minutes for minutes in (1, 5, 15, 30, 60, 120, 300, 600, 1200, 3000)]
    while expected <= ran:
        expected = min(expected + (steps.pop(0) if steps else 360_000), most)
    return expected


@pytest.mark.parametrize("predictor", PREDICTORS)
@given(rows=logs(), data=st.data())
@settings(deadline=None, max_examples=40)
def test_no_expected_end_has_passed(predictor: str, rows: list[Row], data: st.DataObject) -> None:
    """At each call who runs is expected to run for longer than yet, corrected step by step, never above the request."""
    users = data.draw(st.lists(st.integers(1, 2), min_size=len(rows), max_size=len(rows)))
    policy, factor = data.draw(st.sampled_from(POLICIES)), data.draw(st.sampled_from((1, 30, 900)))
    rows = [(submit * factor, run * factor, requested * factor, nodes) for submit, run, requested, nodes in rows]
    run = simulation(rows, users, policy, predictor)
    jobs, ends = run.world.jobs, run.world.end

    def look(_: Simulation) -> None:
        for job in np.flatnonzero(jobs.state == RUNNING):
            ran, requested = run.now - int(jobs.start[job]), rows[job][2]
            assert ran < jobs.limit[job] == corrected(int(jobs.requested[job]), ran, requested) <= requested

    run.observer = look
    run.run()
    if predictor == "recent":
        for job, (submit, _, requested, _) in enumerate(rows):
            mine = [i for i in range(len(rows)) if users[i] == users[job] and ends[i] <= submit]
            last = [rows[i][1] for i in sorted(mine, key=lambda i: (ends[i], jobs.start[i], i))[-2:]]
            assert jobs.requested[job] == max(1, min(sum(last) // 2 if len(last) == 2 else requested, requested))


@pytest.mark.parametrize("predictor", PREDICTORS)
@given(rows=logs(), data=st.data())
@settings(deadline=None, max_examples=40)
def test_predictions_do_not_know_the_future(predictor: str, rows: list[Row], data: st.DataObject) -> None:
    """Another run time of a job changes nothing before it first makes itself felt, at its end."""
    users = data.draw(st.lists(st.integers(1, 2), min_size=len(rows), max_size=len(rows)))
    policy, which = data.draw(st.sampled_from(POLICIES)), data.draw(st.integers(0, len(rows) - 1))
    submit, _, requested, nodes = rows[which]
    others = list(rows)
    others[which] = (submit, data.draw(st.integers(1, requested)), requested, nodes)
    one, two = (simulation(jobs, users, policy, predictor) for jobs in (rows, others))
    one.run()
    two.run()
    felt = min(one.world.end[which], two.world.end[which])

    for each, other in ((one, two), (two, one)):
        early = each.world.jobs.start < felt
        known = each.world.jobs.submit < felt
        assert (each.world.jobs.start[early] == other.world.jobs.start[early]).all()
        assert (each.world.jobs.requested[known] == other.world.jobs.requested[known]).all()


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_nobody_is_killed_by_a_prediction(predictor: str) -> None:
    """Also who shares nodes does all of its work, and no prediction is above the request."""
    work = synthetic()
    run = Simulation.of(work, Machine(16, 4), load_policy("sd"), predictor=predictor)
    run.run()
    jobs = run.world.jobs

    assert (jobs.state == ENDED).all()
    assert run.world.left.max() <= 0
    assert (jobs.requested <= run.work.requested_time).all()
    assert accuracy(run)["raised"] > 0
    assert jobs.lent.sum() > 0


def test_an_update_of_the_model() -> None:
    """As the formula says, for a feature of 2 and an observation of 1: gain and variance by hand; a cut beyond 3."""
    model, far = (np.zeros((1 + knowledge.FEATURES, knowledge.FEATURES)) for _ in range(2))
    x = np.zeros(knowledge.FEATURES)
    x[0] = 2
    for one, y in ((model, 1.0), (far, 50.0)):
        learned.begin(one)
        learned.update(one, x, y)

    assert model[0, 0] == pytest.approx(0.2 / 1.4)
    assert model[1, 0] == pytest.approx(0.1 - 0.04 / 1.4 + learned.DRIFT)
    assert far[0, 0] == pytest.approx(3 * 0.2 / 1.4)
    assert model[0, learned.SIMILAR] == 1


def test_the_model_learns() -> None:
    """Jobs that all take a tenth of what they ask for are soon known to, whoever submits them."""
    requests = np.random.default_rng(1).integers(1000, 9000, 300).tolist()
    rows = [(10_000 * i, request // 10, request, 1) for i, request in enumerate(requests)]
    run = simulation(rows, list(range(300)), "easy", "learned")
    run.run()
    ratio = run.world.jobs.requested / run.world.run

    assert ratio[0] == pytest.approx(10, rel=0.01)
    assert np.abs(ratio[100:] - 1).mean() < 0.2


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_stopped_and_resumed(predictor: str, tmp_path: Path) -> None:
    """What a predictor knows is saved with the rest; with another one it does not go on."""
    write_swf(synthetic(), tmp_path / "log.swf")
    common = ("simulate", tmp_path / "log.swf", "--nodes", "64", "--policy", "easy", "--predict")
    drom(*common, predictor, "--out", tmp_path / "whole")
    drom(*common, predictor, "--until", "9000", "--save", tmp_path / "saved")
    drom(*common, predictor, "--resume", tmp_path / "saved", "--out", tmp_path / "resumed")
    _, said = drom(*common, "user", "--resume", tmp_path / "saved", code=1)

    assert (tmp_path / "whole/jobs.csv").read_bytes() == (tmp_path / "resumed/jobs.csv").read_bytes()
    assert f"was saved with predictions {predictor}, not user" in said


def test_explained(tmp_path: Path) -> None:
    """What a job asked for, and what it was expected to take."""
    write_swf(synthetic(), tmp_path / "log.swf")
    told, _ = drom(
        "simulate", tmp_path / "log.swf", "--nodes", "64", "--predict", "recent", "--explain", "150", compiled=False
    )

    assert ", and was expected to take " in told


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--predict", "oracle"], "'oracle' is not a prediction: choose user, recent, learned."),
        (["--policy", "equipartition"], "--predict recent is for policies that plan with run times: choose easy,"),
        (["--event-rule", "pyss"], "--predict recent is for --event-rule instant, not pyss: leave one of them out."),
        (["--policy", "sd", "--cores", "2", "--set", "recompute=1"], "--predict recent and recompute=1 both"),
    ],
)
def test_bad_input(options: list[str], sentence: str, tmp_path: Path) -> None:
    """One sentence that says what to do."""
    write_swf(synthetic(), tmp_path / "log.swf")
    told, said = drom("simulate", tmp_path / "log.swf", "--nodes", "64", "--predict", "recent", *options, code=1)

    assert not told
    assert said.startswith(f"drom: {sentence}")
    assert said.count("\n") == 1


def test_not_while_gaps_are_filled(tmp_path: Path) -> None:
    """Containers in gaps go by the requested times."""
    write_swf(synthetic(), tmp_path / "log.swf")
    _, said = drom("simulate", tmp_path / "log.swf", "--nodes", "64", "--fill", "--predict", "recent", code=2)

    assert "--fill relies on the requested times: omit --predict" in said


def test_fcfs_does_not_plan(tmp_path: Path) -> None:
    """A note says so, and its schedule is the same."""
    write_swf(synthetic(), tmp_path / "log.swf")
    common = ("simulate", tmp_path / "log.swf", "--nodes", "64", "--policy", "fcfs", "--out")
    drom(*common, tmp_path / "user", compiled=False)
    _, said = drom(*common, tmp_path / "recent", "--predict", "recent", compiled=False)
    one, two = ((tmp_path / name / "schedule.swf.gz").read_bytes() for name in ("user", "recent"))

    assert "note: fcfs does not use run times: --predict has no effect.\n" in said
    assert one == two
