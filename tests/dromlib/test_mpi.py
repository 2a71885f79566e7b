# SPDX-License-Identifier: Apache-2.0
"""dromlib.mpi in one process: what it describes and refuses. tests/system/test_adaptive_mpi.py has more ranks."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import SECONDS, environment
from tests.support.mpi_programs import MPIS, Mpi

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import numpy as np
from mpi4py import MPI
from dromlib.mpi import *
from dromlib.mpi import AdaptiveJob
"""


def run(folder: Path, mpi: Mpi, program: str, **more: str) -> tuple[str, str]:
    """Run a program in Python as the only rank; return what it prints, and its sentences on stderr."""
    mpi.command(folder / "program.py", folder)  # skips where something is missing
    words = [sys.executable, "-c", HEAD + program]
    env = environment(**(mpi.environment(folder) | {"DROM_RUNTIME_DIR": str(folder)} | more))
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


VIEWS = """
with AdaptiveJob(MPI.COMM_WORLD) as job:
    line, plate = job.array(cyclic(7, 2, halo=1), dtype=np.int16), job.array(given(3, lambda p, P: 3 * p // P), 4)
    plate.own[:] = [[1, 2, 3, 4]] * 3
    print(job.comm.size, int(job.point()), line.own.shape, line.with_halo.shape, line.own.dtype, *line.indices())
    print(plate.own.sum(), plate.with_halo.shape, plate.indices(1).tolist(), job.value(bytearray(b"x")))
"""


@pytest.mark.parametrize("mpi", MPIS, ids=lambda mpi: mpi.name)
def test_arrays_are_views_of_the_own_elements(mpi: Mpi, tmp_path: Path) -> None:
    """One rank alone has all elements, with room for the halo on both sides."""
    assert run(tmp_path, mpi, VIEWS) == (
        "1 0 (7,) (9,) int16 0 1 2 3 4 5 6\n30.0 (3, 4) [0, 1, 2, 3] bytearray(b'x')\n",
        "",
    )


WRONG = """
def tries(*calls):
    for call in calls:
        try:
            call()
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
with AdaptiveJob(MPI.COMM_WORLD, 1) as job:
    tries(
        lambda: AdaptiveJob(MPI.COMM_WORLD, 1 << 40),
        lambda: job.array(block(4), dtype=object),
        lambda: job.array(1, 2, 3),
        lambda: job.array(4),
        lambda: job.array(block(1 << 70)),
        lambda: job.array(given(4, lambda part, parts: 7)),
        lambda: job.value(b"fixed"),
    )
tries(job.point)
"""
REFUSES = "AdaptiveError: The adaptive job refuses this: the first rank says why on stderr.\n"


@pytest.mark.parametrize("mpi", MPIS, ids=lambda mpi: mpi.name)
def test_what_cannot_be_is_refused_with_a_sentence(mpi: Mpi, tmp_path: Path) -> None:
    """Wrong numbers are refused as in C, on all ranks; wrong objects of Python where they are."""
    out, err = run(tmp_path, mpi, WRONG)

    assert out == (
        f"{REFUSES}"
        "ValueError: An array of 1 axes of type object cannot move: give one or two, of numbers.\n"
        "ValueError: An array of 3 axes of type float64 cannot move: give one or two, of numbers.\n"
        f"{REFUSES * 3}"
        "TypeError: underlying buffer is not writable\n"
        "ValueError: This adaptive job is finalized: use it and its arrays before.\n"
    )
    assert [line.partition(":")[0] for line in err.splitlines()] == ["drom"] * 4
    assert "min_ranks is 2147483647 of 1 ranks: choose a number from 1 to 1." in err


TRIES = """
try:
    AdaptiveJob(MPI.COMM_WORLD)
except Exception as error:
    print(error)
"""


def test_the_compiler_of_another_library_is_named(tmp_path: Path) -> None:
    """A library that mpi4py does not run is noticed before it is called, and a compiler that is missing by its name."""
    openmpi, mpich = MPIS
    openmpi.command(tmp_path / "program.py", tmp_path)
    said, _ = run(tmp_path, mpich, TRIES, MPICC="mpicc.openmpi")

    assert said.startswith("MPICC is the compiler of another MPI library than mpi4py's (MPICH")

    said, _ = run(tmp_path, openmpi, TRIES, MPICC="mpicc.none")

    assert said == "drom_mpi.c is compiled on first use, by mpicc.none: install it, or set CC or MPICC.\n"
