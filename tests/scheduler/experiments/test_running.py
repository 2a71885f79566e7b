# SPDX-License-Identifier: Apache-2.0
"""The runs of an experiment: their metrics, what is kept of them, and how they go on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.analysis.schedule import schedule_of
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments import running
from drom.scheduler.experiments.experiment import run_experiment, write_outcome
from drom.scheduler.experiments.running import RUNS, jobs_of, key_of, measure, run_design, simulation_of, trimmed
from drom.workloads.swf import write_swf

from tests.scheduler.experiments.test_design import SMALL, design_of
from tests.support.job_logs import synthetic

if TYPE_CHECKING:
    from pathlib import Path

    from drom.scheduler.experiments.design import Design

IDLE = "from drom.scheduler.interface import NEVER\ndef decide(state, event, options, actions):\n    return NEVER\n"
"""A policy that starts no job, at which a simulation fails."""


@pytest.fixture
def design(tmp_path: Path) -> Design:
    """Return an experiment of eight runs."""
    return design_of(tmp_path / "e.toml", SMALL)


def nothing(_: object) -> None:
    """Show or say nothing."""


def test_only_the_jobs_between_count(design: Design) -> None:
    """Means are over them, the utilisation is that between their submissions; without trimming all count."""
    case = design.case(design.chosen(design.cells[1]), 1)
    run = simulation_of(case, jobs_of(case))
    run.run()
    whole, part, table = metrics(run, Power()), trimmed(run, 0.1, 0.2), schedule_of(run).table
    between = slice(5, 40)
    response = (table["end"] - table["submit"])[between]
    first, last = table["submit"][between][[0, -1]]
    busy = np.maximum(np.minimum(table["end"], last) - np.maximum(table["start"], first), 0) * table["nodes"]

    assert trimmed(run, 0, 0) == whole
    assert part["mean_response_s"] == pytest.approx(response.mean())
    assert part["mean_slowdown"] == pytest.approx((response / table["full_speed_run_time"][between]).mean())
    assert part["utilisation"] == pytest.approx(busy.sum() / (64 * (last - first)))
    assert {name for name in whole if whole[name] == part[name]} >= {"makespan_s", "energy_joule", "reconfigurations"}


def test_an_interrupted_experiment_goes_on(design: Design, tmp_path: Path) -> None:
    """What has ended is kept; the same runs are made as without the interruption, each once."""
    shown: list[float] = []

    def interrupt(done: float) -> None:
        shown.append(done)
        if len(shown) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_design(design, tmp_path / "out", 2, interrupt)
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / RUNS).iterdir()}
    found = run_design(design, tmp_path / "out", 2, shown.append)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out" / RUNS).iterdir()}

    assert (len(kept), len(again), kept.items() <= again.items()) == (3, 8, True)
    assert shown == [1 / 8, 2 / 8, 3 / 8, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1]
    for (cell, seed), run in found.items():
        assert run["metrics"] == measure(design.case(design.chosen(cell), seed))["metrics"]
    assert run_design(design, tmp_path / "out", 2, lambda _: pytest.fail("made again")) == found


def test_tables_of_options_are_levels(tmp_path: Path) -> None:
    """Each is a cell of its own, with its label in the rows and in the table."""
    levels = "classes = [{malleable = 0.5}, {malleable = 0.25, moldable = 0.5}]"
    design = design_of(tmp_path / "e.toml", f"{SMALL.replace('[0.7, 0.9]', '0.7')}{levels}\n")
    outcome = run_experiment(design, str, tmp_path / "out", 1, say=nothing, show=nothing)

    assert {row.levels["classes"] for row in outcome.rows} == {"malleable=0.5", "malleable=0.25,moldable=0.5"}
    assert {row.runs for row in outcome.rows} == {2}


def test_what_is_kept_and_damaged_is_made_again(design: Design, tmp_path: Path) -> None:
    """Only those runs."""
    found = run_design(design, tmp_path / "out", 2, nothing)
    paths = [tmp_path / "out" / RUNS / f"{key_of(design.case(design.chosen(cell), 1))}.json" for cell in design.cells]
    before = [json.loads(path.read_text())["metrics"] for path in paths]
    damaged = ("", "[1]", '{"metrics": {}, "seconds": 1.0}', '{"metrics": 1, "seconds": 1.0}')
    for path, text in zip(paths, damaged, strict=True):
        path.write_text(text)
    shown: list[float] = []
    again = run_design(design, tmp_path / "out", 1, shown.append)

    assert shown == [5 / 8, 6 / 8, 7 / 8, 1]
    assert [run["metrics"] for run in again.values()] == [run["metrics"] for run in found.values()]
    assert [json.loads(path.read_text())["metrics"] for path in paths] == before


def test_the_key_is_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of logs, policies and tables the content counts, beside options, seed and the version of drom."""
    log, policy = tmp_path / "log.swf", tmp_path / "mine.py"
    write_swf(synthetic(), log)
    policy.write_text(IDLE)
    text = f'warm_up = 0\n[workload]\nlog = "{log}"\n[simulation]\nnodes = 64\npolicy = "{policy}"\n'
    (tmp_path / "e.toml").write_text(text)

    def key(**changes: Any) -> str:
        running._digest.cache_clear()
        design = design_of(tmp_path / "e.toml", text)
        return key_of(design.case(design.chosen(()), 1)._replace(**changes))

    keys = [key(), key(warm_up=0.2)]
    write_swf(synthetic(seed=2), log)
    keys.append(key())
    policy.write_text(policy.read_text() + "# other\n")
    keys.append(key())
    monkeypatch.setattr("importlib.metadata.version", lambda _: "9.9")
    keys.append(key())

    assert len(set(keys)) == len(keys)
    assert key() == keys[-1]


def test_a_run_that_fails_is_named_and_made_again(tmp_path: Path) -> None:
    """The others are there; their cells are compared. If all fail, the first is told."""
    log = tmp_path / "log.swf"
    write_swf(synthetic(), log)
    policy = tmp_path / "mine.py"
    policy.write_text(IDLE)
    text = f'[workload]\nlog = "{log}"\n[simulation]\nnodes = 64\npolicy = ["fcfs", "{policy}"]\n'
    design = design_of(tmp_path / "e.toml", text)
    outcome = run_experiment(design, str, tmp_path / "out", 2, say=nothing, show=nothing)

    assert [fault.split(": ")[0] for fault in outcome.faults] == [f"policy {policy}, seed 1"]
    assert [row.levels["policy"] for row in outcome.rows] == ["fcfs"] * 3
    assert len(list((tmp_path / "out" / RUNS).iterdir())) == 1
    alone = design_of(tmp_path / "e.toml", text.replace('["fcfs", ', "").replace(f'"{policy}"]', f'"{policy}"'))
    with pytest.raises(SchedulerError, match=r"^All runs have failed, the first: the only cell, seed 1: "):
        run_experiment(alone, str, tmp_path / "out", 2, say=nothing, show=nothing)


def test_results_that_cannot_be_written(design: Design, tmp_path: Path) -> None:
    """One sentence."""
    (tmp_path / "out").write_text("")
    with pytest.raises(SchedulerError, match=r"cannot hold results: .*: name another folder with --out"):
        run_design(design, tmp_path / "out", 1, nothing)
    outcome = run_experiment(design, str, tmp_path / "there", 2, say=nothing, show=nothing)
    (tmp_path / "there" / "runs.parquet").mkdir()
    (tmp_path / "there" / "runs.csv").mkdir()
    with pytest.raises(SchedulerError, match=r"The results cannot be written to .*: Is a directory: name another"):
        write_outcome(outcome, tmp_path / "there", "", "")
