# SPDX-License-Identifier: Apache-2.0
"""A few jobs of workload 5 on a real Slurm, at each level of docs/slurm.md. It takes two minutes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from drom.scheduler.reproduction.sd_policy.real import completed, levels
from drom.scheduler.reproduction.sd_policy.real.command import RunSelection, left, make_all
from drom.scheduler.reproduction.sd_policy.real.settings import LEVELS, SCALES, SLURM
from drom.scheduler.testbed.slurm import why_no_slurm


def test_jobs_end_right_at_each_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job runs once to its right end, shares nodes only from level 1 on, and leaves nothing of its cluster."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    monkeypatch.setitem(SCALES, "slurm", SLURM._replace(nodes=3, jobs=8, largest=2, compression=120.0))
    with tempfile.TemporaryDirectory(prefix="drom-levels-") as folder:  # pytest's folders are closed to the user slurm
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        wanted = RunSelection(("slurm",), seeds=1)
        make_all(left(wanted, tmp_path), tmp_path, lambda _: None)
        assert not list(Path(folder).iterdir())
    runs = {run.task.policy: run for run in completed.all_in(tmp_path)}
    guests = {level: levels.sharing_of(run.told, dict.fromkeys(range(1, 9), 1.0)).guests for level, run in runs.items()}

    assert list(runs) == list(LEVELS)
    assert [run.told["problems"] for run in runs.values()] == [[]] * 3
    assert [run.result.states for run in runs.values()] == [{"completed": 8}] * 3
    assert guests["level-0"] == 0
    assert guests["level-1"] > 0
    assert left(wanted, tmp_path) == []
    assert levels.rows(runs.values())
