# SPDX-License-Identifier: Apache-2.0
"""dromlib.mpi in one process: what it describes and refuses. tests/system/test_adaptive_mpi.py has more ranks."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.agents import SECONDS, environment
from tests.support.mpi_programs import MPIS, Mpi, each_mpi

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import numpy as np
from mpi4py import MPI
from dromlib.mpi import *
from dromlib.mpi import AdaptiveJob
"""


def start(folder: Path, mpi: Mpi, program: str, ranks: int, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a program in Python to its end, as the only process or launched; skip where something is missing."""
    mpi.command(folder / "program.py", folder)
    words = [sys.executable, "-c", HEAD + program]
    env = environment(**(mpi.environment(folder) | {"DROM_RUNTIME_DIR": str(folder)} | more))
    launch = words if ranks == 1 else mpi.launch(ranks, *words)
    return subprocess.run(launch, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)


def run(folder: Path, mpi: Mpi, program: str, ranks: int = 1, **more: str) -> tuple[str, str]:
    """Run a program that has to succeed; return what it prints, and its sentences on stderr."""
    done = start(folder, mpi, program, ranks, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


VIEWS = """
with AdaptiveJob(MPI.COMM_WORLD) as job:
    line, plate = job.array(cyclic(7, 2, halo=1), dtype=np.int16), job.array(given(3, lambda p, P: 3 * p // P), 4)
    plate.own[:] = [[1, 2, 3, 4]] * 3
    print(job.comm.size, int(job.point()), line.own.shape, line.with_halo.shape, line.own.dtype, *line.indices())
    print(plate.own.sum(), plate.with_halo.shape, plate.indices(1).tolist(), job.value(bytearray(b"x")))
"""


@each_mpi
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


@each_mpi
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


OBJECTS = """
import time

def level(work, speed, place):
    return greedy(work, np.ones_like(speed), place)  # this machine has other things to do

with AdaptiveJob(MPI.COMM_WORLD) as job:
    cells = job.objects(12, lambda number: [number], strategy=level)
    before = sorted(cells)
    for number in cells.measured():
        until = time.process_time() + (0.05 if number < 4 else 0)
        while time.process_time() < until:
            pass
    moved, heavy = cells.balance(), sum(number < 4 for number in cells)
    owners = [cells.owner(number) for number in range(12)]
    right = all(cells[number] == [number] and owners[number] == job.comm.rank for number in cells)
    def turn(work, speed, place):
        return place[::-1]

    marks = job.objects(4, str, pack=lambda mark: b"", unpack=len, strategy=turn)
    right &= marks == {job.comm.rank: str(job.comm.rank)} and marks.balance() == 4 and marks == {3 - job.comm.rank: 0}
    for line in job.comm.gather((before, moved > 0, heavy, right, job.comm.allreduce(len(cells)))) or ():
        print(*line)
"""


@each_mpi
def test_objects_with_much_work_are_shared_out(mpi: Mpi, tmp_path: Path) -> None:
    """Of four objects with work, all at the first two of four ranks, each rank gets one; their content moves too.

    So do objects without content.
    """
    out, err = run(tmp_path, mpi, OBJECTS, ranks=4)

    assert out == "".join(f"{list(range(3 * rank, 3 * rank + 3))} True 1 True 12\n" for rank in range(4))
    assert err == ""


STRATEGIES = """
with AdaptiveJob(MPI.COMM_WORLD) as job:
    for strategy in (lambda work, speed, place: place + 7, lambda work, speed, place: 1 / 0):
        cells = job.objects(2, str, strategy=strategy)
        print(cells, cells.balance(), cells)
    for call in (
        lambda: job.objects(0, str),
        lambda: job.objects(3, str, speed=-1),
        lambda: cells.owner(2),
        lambda: greedy([1.0], [1.0], [0, 1]),
    ):
        try:
            call()
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    print(refine([1.0, 3.0], [1.0, 1.0], [0, 0]).tolist())
"""


@each_mpi
def test_a_wrong_strategy_is_named_and_replaced(mpi: Mpi, tmp_path: Path) -> None:
    """The job runs on with drom's own strategy; wrong descriptions of objects are refused."""
    out, err = run(tmp_path, mpi, STRATEGIES)

    assert out == (
        "{0: '0', 1: '1'} 0 {0: '0', 1: '1'}\n" * 2 + REFUSES * 2 + "IndexError: range object index out of range\n"
        "ValueError: 1 objects, 2 places and 1 ranks: give a place of each object.\n[0, 1]\n"
    )
    said = "drom: a strategy has given an object to no rank that will run, so drom_mpi_refine() decides: correct it."
    assert err.count(said) == 2
    assert err.count("ZeroDivisionError") == 1


BROKEN = """
with AdaptiveJob(MPI.COMM_WORLD) as job:
    cells = job.objects(2, str, pack=lambda cell: 1 / 0, strategy=lambda work, speed, place: 1 - place)
    cells.balance()
    print("went on")
"""


@each_mpi
def test_an_object_that_cannot_be_packed_ends_the_job(mpi: Mpi, tmp_path: Path) -> None:
    """Its rank says why, and no other waits for it."""
    done = start(tmp_path, mpi, BROKEN, 2)

    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr
    assert "went on" not in done.stdout
