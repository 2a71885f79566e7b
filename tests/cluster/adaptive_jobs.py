# SPDX-License-Identifier: Apache-2.0
"""Adaptive MPI jobs of real clusters: their environment with each MPI library, and what has to become of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.scheduler.demo.adaptive import QUIETLY

from tests.support import native_build
from tests.support.agents import wait_until
from tests.support.mpi_programs import MPIS, Mpi, Wheel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.rig import Rig

OPEN_MPI, MPICH_4 = MPIS
"""Debian's MPICH hangs in MPI_Finalize() in every second run over nodes, of any program: docs/adaptive-mpi.md."""
WHEEL = Wheel("mpich-wheel")
EACH = pytest.mark.parametrize("mpi", [*MPIS, WHEEL], ids=lambda mpi: mpi.name)
BY_TCP = {"UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"}
"""All nodes are one machine for the libraries below MPICH, but their processes share no memory."""
LONG = {"time": 3600}


def environment_of(here: Rig, mpi: Mpi, folder: Path) -> dict[str, str]:
    """Return the environment of a job whose mpirun is that of an MPI library."""
    tools, found = folder / f"tools.{mpi.name}", here.spec().environment
    if not tools.exists():
        tools.mkdir()
        (tools / "mpirun").write_text(f'#!/bin/sh\nexec {mpi.find("mpirun")} "$@"\n', encoding="utf-8")
        (tools / "mpirun").chmod(0o755)
    network = {"MPIR_CVAR_CH4_NETMOD": "ofi"} if mpi is WHEEL else {}  # not UCX, on which no rank ends alone
    return found | QUIETLY | BY_TCP | network | {"PATH": f"{tools}:{found['PATH']}"}


def start(here: Rig, folder: Path, *words: str, mpi: Mpi = OPEN_MPI, **asked: int) -> int:
    """Submit a program that compares all its elements at each step, and ends when there is the file `stop`."""
    program = mpi.compile(native_build.SOURCES / "adaptive.c", folder)
    environment = environment_of(here, mpi, folder)
    return here.submit(str(program), "1", "stop", *words, environment=environment, **asked, **LONG)


def end(here: Rig, number: int, mpi: Mpi = OPEN_MPI) -> None:
    """End the program, and assert that it has found every element right in its one attempt."""
    (here.work / "stop").touch()
    if mpi is MPICH_4:
        wait_until(lambda: here.output(number).endswith("\n0 wrong"), lambda: here.output(number))
        return
    value = here.await_state(number, "completed", "failed")
    assert (value["status"], value["attempt"]) == (0, 1), here.output(number)
    assert here.lines(f"drom-{number}.out")[-1] == "0 wrong"


def await_cores(here: Rig, number: int, cores: int) -> None:
    """Wait until the tasks of a job hold so many cores together, and the scheduler knows that."""
    wait_until(
        lambda: sum(here.held(number).values()) == sum(here.job(number)["sizes"].values()) == cores,
        lambda: f"{here.held(number)}\n{here.job(number)}\n{here.output(number)}",
    )
