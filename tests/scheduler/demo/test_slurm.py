# SPDX-License-Identifier: Apache-2.0
"""The demonstration on Slurm, where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from drom.scheduler.demo.slurm import run
from drom.scheduler.testbed import slurm

if TYPE_CHECKING:
    import pytest


def test_an_installation_without_sources_is_told_where_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is made."""
    monkeypatch.setattr(slurm, "why_not", lambda: "")
    monkeypatch.setattr(slurm, "_CONTRIB", Path("/nowhere"))

    assert run(tmp_path / "out", as_json=False) == 1
    assert capsys.readouterr().err == (
        "drom: a cluster with Slurm needs the sources of drom, which are not installed: run make demo-slurm in them.\n"
    )
    assert not (tmp_path / "out").exists()


def test_a_user_without_roots_rights_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of every cluster of namespaces."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert "takes root's rights" in slurm.why_no_slurm()
    assert run(tmp_path / "out", as_json=True) == 1
