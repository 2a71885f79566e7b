# SPDX-License-Identifier: Apache-2.0
"""How a rank of an adaptive MPI job ends all others when it cannot go on."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support import native_build
from tests.support.mpi_programs import Mpi, each_mpi

if TYPE_CHECKING:
    from pathlib import Path


@each_mpi
@pytest.mark.parametrize(("turn", "naps", "left"), [(3, 3, 0), (0, 1000, 10)], ids=["reads", "never reads"])
def test_a_launcher_has_a_second_to_read_why(mpi: Mpi, tmp_path: Path, turn: int, naps: int, left: int) -> None:
    """MPICH's launcher loses what a rank has printed just before it aborts."""
    program = mpi.compile(native_build.SOURCES / "last_words.c", tmp_path)

    done = subprocess.run([program, str(turn)], capture_output=True, text=True, check=True)

    assert done.stdout == f"{naps} naps, {left} bytes, exit code 1\n"
