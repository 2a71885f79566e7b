# SPDX-License-Identifier: Apache-2.0
"""Simulations in forks of a command."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator import batch
from drom.scheduler.simulator.batch import Run, run_all

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # pytest-xdist's threads


def test_a_simulation_that_is_killed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the folder of a simulation that was killed, and the others are made."""

    def simulate(words: list[str], _said: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL if words[-1].endswith("killed") else 0)

    monkeypatch.setattr(batch, "_simulate", simulate)
    runs = [Run(tmp_path / "log", 1, 1, (), tmp_path / name) for name in ("killed", "whole")]
    failures: list[str] = []
    shown: list[float] = []
    run_all(runs, 1, shown.append, lambda run, error: failures.append(f"{run.folder.name}: {error}"))

    assert failures == [f"killed: {tmp_path / 'killed'}: killed."]
    assert shown == [0.5, 1.0]


def test_a_simulation_is_a_fork(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A simulation has what this process has loaded, and its own streams and session, which Ctrl-C does not reach."""
    kept = tmp_path / "kept"

    def main() -> None:
        kept.write_text(f"{os.getppid()} {os.getsid(0) == os.getpid()} {sys.argv[1]}")
        sys.stdout.write("not shown")
        sys.exit("drom: one line\ndrom: another")

    monkeypatch.setattr("drom.__main__.main", main)
    with pytest.raises(SchedulerError, match=r"^another$"):
        run_all([Run(tmp_path / "log", 1, 1, (), tmp_path)], None, lambda _: None)

    assert kept.read_text() == f"{os.getpid()} True simulate"
