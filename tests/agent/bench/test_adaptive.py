# SPDX-License-Identifier: Apache-2.0
"""What `drom bench adaptive` measures, in few cycles."""

from __future__ import annotations

import shutil

import pytest
from drom.agent.bench import adaptive
from drom.agent.errors import ControlError


@pytest.mark.system
@pytest.mark.skipif(not shutil.which("mpicc.openmpi"), reason="needs Open MPI")
def test_growth_is_measured_beside_a_plain_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cycle has a positive time of growth, of release and of a plain spawn."""
    monkeypatch.setenv("MPICC", "mpicc.openmpi")
    monkeypatch.setattr(adaptive, "EACH", (1,))

    rows = adaptive.measure(2)["figures"]

    assert [row["unit"] for row in rows] == ["ms", "ms", "times", "ms"]
    assert all(row["min"] > 0 and len(row["runs"]) == 2 for row in rows)


@pytest.mark.system
def test_a_missing_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark needs MPI."""
    monkeypatch.setenv("MPICC", "mpicc.none")

    with pytest.raises(ControlError, match=r"mpicc\.none"):
        adaptive.cycles(1, 1)
