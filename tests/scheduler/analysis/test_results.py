# SPDX-License-Identifier: Apache-2.0
"""Files of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.scheduler.analysis import results
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.simulator.simulation import Machine, Simulation

from tests.support.job_logs import synthetic

if TYPE_CHECKING:
    from pathlib import Path


def test_tables_are_the_same_with_and_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte, also where a job has not begun and so has no nodes."""
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    run = Simulation.of(synthetic(300), Machine(64), load_policy("easy"))
    run.run(int(run.work.submit[150]))
    for name in ("with", "without"):
        results.write(run, {"complete": False}, tmp_path / name)
        monkeypatch.setattr(results, "has_parquet", lambda: False)
    written = [(tmp_path / name / "jobs.csv").read_bytes() for name in ("with", "without")]

    assert written[0] == written[1]
    assert written[0].count(b"\n") == 301
    assert b"waiting," in written[0]
    assert not (tmp_path / "without" / "jobs.parquet").exists()
