# SPDX-License-Identifier: Apache-2.0
"""`drom experiment` and `drom.experiment`: what they print and write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments import experiment as module
from drom.scheduler.experiments.running import RUNS

import drom
from tests.scheduler.experiments.test_design import SMALL
from tests.support import commands

if TYPE_CHECKING:
    from pathlib import Path

pd: Any = pytest.importorskip("pandas", reason="needs pandas")
VALUES = {
    "title": "In Python",
    "seeds": 2,
    "workload": {"model": "lublin", "jobs": 50, "load": [0.7, 0.9]},
    "simulation": {"nodes": 64, "policy": ["fcfs", "easy"]},
}


def test_the_command_prints_a_table_and_writes_a_folder(tmp_path: Path) -> None:
    """The report has date, command line, table, pictures and the file; a second time nothing is simulated."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    (tmp_path / "e.toml").write_text(f'title = "A <title>"\n{SMALL}')
    out, errors = commands.drom("experiment", tmp_path / "e.toml", "--out", tmp_path / "r")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "r" / RUNS).iterdir()}
    again, _ = commands.drom("experiment", tmp_path / "e.toml", "--out", tmp_path / "r", "--json")
    page = (tmp_path / "r" / "report.html").read_text()

    assert out.split()[:10] == ["METRIC", "LOAD", "POLICY", "RUNS", "MEAN", "+-", "CHANGE", "+-", "EFFECT", "VERDICT"]
    assert len(out.splitlines()) == 1 + 3 * 4 + 1
    assert errors.splitlines()[-1] == f"results written to {tmp_path / 'r'}"
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "r" / RUNS).iterdir()}
    assert json.loads(again)["table"]["runs"] == [2] * 12
    assert "<h1>A &lt;title&gt;</h1>" in page
    assert f"<pre>drom experiment {tmp_path}/e.toml --out {tmp_path}/r --json</pre>" in page
    assert (page.count("data:image/png;base64,"), "policy = [&quot;fcfs&quot;" in page) == (3, True)


def test_in_python_the_tables_are_data_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the files of the folder; without pyarrow these are CSV, without matplotlib there is no report."""
    monkeypatch.setattr(module, "has_parquet", lambda: False)
    monkeypatch.setattr(module, "can_draw", lambda: False)
    found = drom.experiment(VALUES, out=tmp_path / "r", progress=False)

    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["runs", "runs.csv", "table.csv"]
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "r" / "runs.csv", dtype={"load": str}), found.runs)
    assert pd.read_csv(tmp_path / "r" / "table.csv")["mean"].tolist() == found.table["mean"].tolist()
    assert (len(found.runs), len(found.table), found.faults) == (8, 12, [])
    assert repr(found).splitlines()[0].startswith("METRIC")


def test_parquet_has_the_same(tmp_path: Path) -> None:
    """Where pyarrow is installed."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    found = drom.experiment(VALUES, out=tmp_path / "r", progress=False)

    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "r" / "runs.parquet"), found.runs)
    assert "In Python" in (tmp_path / "r" / "report.html").read_text()


def test_faults_in_python_name_the_key(tmp_path: Path) -> None:
    """There is no line to name."""
    wrong = VALUES | {"workload": {"model": "lublin", "load": [0.7, -1.0]}}
    with pytest.raises(SchedulerError, match=r"^the experiment, workload.load: Lublin's model needs at least 1 job"):
        drom.experiment(wrong, out=tmp_path / "r")


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    """Exit 1 and one sentence with the line."""
    (tmp_path / "e.toml").write_text('[workload]\nlog = "x.swf"\n[simulation]\nnodes = 4\npolicy = "fcfs"\n')
    _, errors = commands.drom("experiment", tmp_path / "e.toml", code=1)

    assert errors == f"drom: {tmp_path}/e.toml:2: workload.log: there is no log x.swf: name a file.\n"
