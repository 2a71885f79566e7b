# SPDX-License-Identifier: Apache-2.0
"""MPI programs that a real Slurm starts below `drom run`: their ranks are one job, on the CPUs that Slurm gave it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.slurm.rig import ANOTHER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.slurm.rig import Slurm

pytestmark = pytest.mark.skipif(bool(ANOTHER), reason="another Slurm has a root without MPI libraries.")

PROGRAM = r"""
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words)
{
    int rank, ranks, sum, cpu, others;
    cpu_set_t mask;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    sched_getaffinity(0, sizeof mask, &mask);
    for (cpu = 0; !CPU_ISSET(cpu, &mask); cpu++)
        ;
    MPI_Sendrecv(&cpu, 1, MPI_INT, ranks - 1 - rank, 0, &others, 1, MPI_INT, ranks - 1 - rank, 0, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    sum = rank + 1;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: sum %d, %d CPU, %d beside %d\n", rank, ranks, sum, CPU_COUNT(&mask), cpu, others);
    fflush(stdout);
    while (access(words[1], F_OK) != 0)
        usleep(1000);
    MPI_Finalize();
    return sum;
}
"""
"""A program whose ranks print what they compute and where, and end with the sum when their argument is a file."""
TOOLS = {"pmix": "mpicc.openmpi", "pmi2": "mpicc.mpich"}
"""The compilers of the libraries that start by each of Slurm's interfaces."""


class Interface(NamedTuple):
    """An interface between Slurm and MPI libraries, and a program that uses it."""

    name: str
    program: Path


@pytest.fixture(params=TOOLS)
def interface(request: pytest.FixtureRequest, slurm: Slurm) -> Interface:
    """Return each interface that this Slurm has, with a program; skip where something is missing."""
    name, compiler = request.param, TOOLS[request.param]
    known = slurm.srun("--mpi=list")
    if name not in (known.stdout + known.stderr).split():
        pytest.skip(f"this Slurm has no {name}.")
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}: apt-get install libopenmpi-dev libmpich-dev.")
    program = slurm.folder / name
    subprocess.run([compiler, "-O1", "-D_GNU_SOURCE", "-xc", "-", "-o", program], input=PROGRAM, text=True, check=True)
    return Interface(name, program)


@pytest.fixture(autouse=True)
def no_jobs(slurm: Slurm) -> Iterator[None]:
    """End all jobs after the test."""
    yield
    slurm.cancel_all()


def words(slurm: Slurm, interface: Interface, end: Path) -> tuple[str, ...]:
    """Return the words after `srun` that run the program with two ranks, until `end` is a file."""
    return (f"--mpi={interface.name}", "-n2", "-c1", *slurm.drom_run, str(interface.program), str(end))


def await_ranks(slurm: Slurm, job: str) -> None:
    """Wait until the job has two ranks on a CPU each, and check that the agent has no other job."""
    slurm.await_true(lambda: sorted(slurm.ranks().get(f"slurm-{job}", [])) == ["0", "1"], "two ranks")
    assert list(slurm.ranks()) == [f"slurm-{job}"]


def check_output(text: str) -> None:
    """Check what the ranks have computed, and that each has run on its own CPU."""
    lines = sorted(line for line in text.splitlines() if line.startswith("rank"))
    places = [("0 beside 1", "1 beside 0"), ("1 beside 0", "0 beside 1")]

    assert tuple(lines) in [
        tuple(f"rank {rank} of 2: sum 3, 1 CPU, {where}" for rank, where in enumerate(place)) for place in places
    ]


def test_ranks_below_srun_are_one_job(slurm: Slurm, interface: Interface) -> None:
    """Ranks that srun starts find each other, and srun ends with their exit code."""
    end = slurm.folder / "work" / f"{interface.name}.end"
    ran = slurm.launch(interface.name, *words(slurm, interface, end))
    await_ranks(slurm, slurm.number_of(interface.name))
    end.touch()

    assert slurm.await_end(ran) == 3
    check_output(slurm.log(f"srun-{interface.name}"))


def test_ranks_of_a_script_are_one_job(slurm: Slurm, interface: Interface) -> None:
    """Two steps of a script, one after the other, each have both CPUs of the job for their ranks."""
    ends = [slurm.folder / "work" / f"{interface.name}.end{number}" for number in range(2)]
    steps = [f"srun {' '.join(words(slurm, interface, end))} > {end}.out" for end in ends]
    job = slurm.submit("\n".join(steps), "--ntasks=2", cpus=1)
    for end in ends:
        slurm.await_true(Path(f"{end}.out").exists, "the step")
        await_ranks(slurm, job)
        end.touch()
    slurm.await_no_jobs()

    for end in ends:
        check_output(Path(f"{end}.out").read_text())
