# SPDX-License-Identifier: Apache-2.0
"""The demonstration on a real Slurm. It takes three minutes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.demo.slurm import RUNS, run
from drom.scheduler.testbed.cluster import why_no_mpi
from drom.scheduler.testbed.slurm import why_no_slurm

if TYPE_CHECKING:
    from _pytest.capture import CaptureFixture


def test_jobs_share_nodes_and_all_end_right(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    """No core is held by two, jobs lend cores where they may, and nothing is left behind."""
    if reason := why_no_slurm() or why_no_mpi():
        pytest.skip(reason)

    assert run(tmp_path / "out", as_json=True) == 0
    value = json.loads(capsys.readouterr().out)
    lenders = {name: value["runs"][name]["summary"]["metrics"]["malleable_starts"] for name in RUNS}
    assert value["problems"] == []
    assert (lenders["backfill"], lenders["shared"] > 0, lenders["decided"] > 0) == (0, True, True)
    assert [(tmp_path / "out" / name / "summary.json").exists() for name in RUNS] == [True] * 3
    assert not list(Path("/sys/fs/cgroup").glob("*/slurm_n[1-4]"))
