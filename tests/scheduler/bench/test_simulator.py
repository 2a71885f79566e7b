# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.scheduler.bench import simulator
from drom.scheduler.errors import SchedulerError
from drom.workloads.making import Recipe
from drom.workloads.swf import write_swf

from tests.support.job_logs import synthetic

if TYPE_CHECKING:
    from pathlib import Path

GROWN = tuple(simulator.Case(f"{jobs} jobs", Recipe(jobs=jobs, nodes=64, seed=1), 64, 1, "easy") for jobs in (20, 40))


def test_a_folder_of_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases whose log is there; a line for each of the others. The environment names it where no option does."""
    (tmp_path / simulator.KTH).touch()
    found = simulator.real_cases(tmp_path)
    told = capsys.readouterr().err
    monkeypatch.setenv("DROM_WORKLOADS", str(tmp_path))

    assert [(case.policy, path) for case, path in found] == [("conservative", tmp_path / simulator.KTH)]
    assert told.count("\n") == len(simulator.REAL) - 1
    assert f"left out: EASY, CEA-Curie: no {simulator.CURIE} in {tmp_path}: name it with --log.\n" in told
    assert simulator.real_cases(None) == found


def test_one_log(tmp_path: Path) -> None:
    """Its own cases where it is one that has some, else every policy on the machine that it names."""
    (tmp_path / simulator.CURIE).touch()
    write_swf(synthetic(), tmp_path / "mine.swf.gz")
    found = simulator.real_cases(tmp_path / "mine.swf.gz")

    assert {case.nodes for case, _ in simulator.real_cases(tmp_path / simulator.CURIE)} == {5040}
    assert [case.name for case, _ in found] == [f"{name}, mine.swf.gz" for name in ("easy", "slurm", "conservative")]
    assert {(case.nodes, case.cores) for case, _ in found} == {(64, 1)}


def test_a_log_that_cannot_be_used(tmp_path: Path) -> None:
    """One sentence."""
    write_swf(synthetic().commented(()), tmp_path / "mine.swf")

    with pytest.raises(SchedulerError, match=r"mine\.swf does not give the number of processors of its machine"):
        simulator.real_cases(tmp_path / "mine.swf")
    with pytest.raises(SchedulerError, match=r"There is no log .*none\.swf"):
        simulator.real_cases(tmp_path / "none.swf")


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds and memory of each case, the growth, and a whole run."""
    monkeypatch.setattr(simulator, "GROWN", GROWN)
    write_swf(synthetic(), tmp_path / "mine.swf.gz")
    told = simulator.measure(1, tmp_path / "mine.swf.gz")

    assert len(told["figures"]) == 2 * 3 + 2 * 2 + 1 + 1
    assert {figure["unit"] for figure in told["figures"]} == {"s", "MB", "times"}


def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case may be timed with reading its log and writing its results, which takes longer than the simulation."""
    monkeypatch.setattr(simulator, "REAL", (simulator.Case("mine", simulator.CURIE, 64, 1, "sd", whole=5),))
    monkeypatch.setattr(simulator, "GROWN", GROWN)
    write_swf(synthetic(), tmp_path / simulator.CURIE)
    alone, _, whole, *_ = simulator.measure(2, tmp_path)["figures"]

    assert whole["name"] == "mine: the whole command, with results"
    assert whole["min"] > alone["max"]
