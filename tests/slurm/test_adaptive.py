# SPDX-License-Identifier: Apache-2.0
"""Adaptive MPI programs in a job of a real Slurm: ranks rest and return within what Slurm has given the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.slurm.rig import ANOTHER
from tests.support import native_build
from tests.support.mpi_programs import Mpi

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.rig import Slurm

pytestmark = pytest.mark.skipif(bool(ANOTHER), reason="another Slurm has a root without MPI libraries.")

LIBRARIES = {"pmix": Mpi("openmpi"), "pmi2": Mpi("mpich")}
"""The libraries that start by each of Slurm's interfaces."""


@pytest.fixture(autouse=True)
def no_jobs(slurm: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    slurm.cancel_all()


@pytest.mark.parametrize("interface", LIBRARIES)
def test_ranks_rest_and_return_within_the_allocation(slurm: Slurm, interface: str) -> None:
    """Every element of the program's arrays comes through, and srun ends with its exit code."""
    known = slurm.srun("--mpi=list")
    if interface not in (known.stdout + known.stderr).split():
        pytest.skip(f"this Slurm has no {interface}.")
    program = LIBRARIES[interface].compile(native_build.SOURCES / "adaptive.c", slurm.folder)
    stop, name = slurm.folder / "work" / f"{interface}.stop", f"adaptive-{interface}"
    ran = slurm.launch(name, f"--mpi={interface}", "-n2", "-c1", *slurm.drom_run, str(program), "1", str(stop))
    job = f"slurm-{slurm.number_of(name)}"
    slurm.await_true(lambda: [row["min_tasks"] for row in slurm.rows() if row["job"] == job] == [1, 1], "its ranks")
    slurm.await_true(lambda: "begins 2\n" in slurm.log(f"srun-{name}"), "its begin")

    for cpus, states in ((1, ["resting", "running"]), (2, ["running", "running"])):
        slurm.resize(job, cpus)
        slurm.await_true(lambda: sorted(row["state"] for row in slurm.rows()) == states, f"{states}")  # noqa: B023
        slurm.await_true(lambda: f"changed {cpus}\n" in slurm.log(f"srun-{name}"), "its word")  # noqa: B023
    stop.touch()

    assert slurm.await_end(ran) == 0
    assert slurm.log(f"srun-{name}").splitlines() == ["begins 2", "changed 1", "changed 2", "0 wrong"]
