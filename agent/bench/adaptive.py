# SPDX-License-Identifier: Apache-2.0
"""`drom bench adaptive`: nodes that an adaptive MPI program gets and gives up, beside MPI_Comm_spawn alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from drom.agent.bench.report import figure
from drom.agent.errors import ControlError
from drom.agent.execution.mpi_hosts import AS_ROOT
from drom.agent.testbed.mpi_nodes import emulated_nodes

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Sequence

LAUNCHED, NODES = 2, ("n2", "n3")
"""Ranks of the launch, and the nodes that come and go."""
EACH = (2, 4)
"""Ranks on each of these."""
REACH = 1.3
"""How much longer than a plain spawn growing may take."""
PATIENCE = 60.0
"""Seconds that a cycle may take."""


def measure(runs: int) -> dict[str, Any]:
    """Return medians and spread of `runs` cycles of growth and release, each beside a plain spawn of as many ranks."""
    return {"schema_version": 1, "figures": [row for each in EACH for row in _rows(each, cycles(runs, each))]}


def _rows(each: int, found: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Return the rows of the table for nodes with `each` ranks."""
    grow, release, plain = zip(*found, strict=True)
    ranks = f"{each * len(NODES)} ranks"
    ratios = [one / other for one, other in zip(grow, plain, strict=True)]
    return [
        figure(f"spawn {ranks} on {len(NODES)} nodes", "ms", grow, None),
        figure(f"MPI_Comm_spawn and merge of {ranks}", "ms", plain, None),
        figure(f"spawn {ranks}, beside that", "times", ratios, REACH),
        figure(f"release {ranks}", "ms", release, None),
    ]


def cycles(runs: int, each: int) -> list[list[float]]:
    """Return the milliseconds of growth, release and plain spawn in each cycle. Raises ControlError if it fails.

    The program is compiled by MPICC, otherwise mpicc, and started by the mpirun beside that.
    """
    try:
        program = native.bench_path("nodes")
    except FileNotFoundError as error:
        raise ControlError(str(error)) from error
    compiler = shutil.which(os.environ.get("MPICC") or "mpicc") or "mpicc"
    with TemporaryDirectory() as name:
        folder = Path(name)
        hosts = folder / "hosts"
        hosts.write_text(f"n1 slots={LAUNCHED}\n", encoding="ascii")
        command = [*_mpirun(compiler, each), str(program), str(hosts), str(runs), str(each), *NODES]
        environment = os.environ | AS_ROOT | emulated_nodes(folder) | {"DROM_MPI_HOSTFILE": str(hosts)}
        try:
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=PATIENCE * runs
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ControlError(f"{command[0]} has not run the program of the benchmark: {error}.") from error
    found = [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
    if done.returncode or len(found) != runs:
        raise ControlError("the program of the benchmark has failed: use an MPI library that can spawn, as MPICC.")
    return found


def _mpirun(compiler: str, each: int) -> list[str]:
    """Return the launcher that belongs to an MPI compiler, with the nodes."""
    launcher = compiler.replace("mpicc", "mpirun")
    is_hydra = b"HYDRA" in subprocess.run([launcher, "--version"], capture_output=True, check=False).stdout
    hosts = ",".join([f"n1:{LAUNCHED}", *(f"{node}:{each * len(NODES)}" for node in NODES)])
    options = ["-hosts"] if is_hydra else ["--oversubscribe", "--bind-to", "none", "--host"]
    return [launcher, *options, hosts, "-n", str(LAUNCHED)]
