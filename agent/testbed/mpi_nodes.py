# SPDX-License-Identifier: Apache-2.0
"""Nodes of MPI jobs that are emulated on this machine: launchers start what is for any node here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_REMOTE = """#!/bin/sh
# NODE COMMAND: run a command here as if on that node, in place of ssh
export DROM_NODE="$1" TMPDIR="{folder}/tmp-$1" DROM_RUNTIME_DIR="{folder}/$1"
mkdir -p "$TMPDIR"
shift
exec sh -c "$*"
"""


def emulated_nodes(folder: Path) -> dict[str, str]:
    """Return variables with which mpirun of Open MPI or MPICH starts the processes of all nodes on this machine.

    They then know their node, and find an agent in a folder of its name. Their files are in `folder`. MPICH uses no
    shared memory: it would take ranks of other nodes, which have the same host name, for ranks of its own.
    """
    remote = folder / "remote"
    remote.write_text(_REMOTE.format(folder=folder), encoding="utf-8")
    remote.chmod(0o700)
    return {
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": str(remote),
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_leave_session_attached": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl_vader_backing_directory": str(folder),
        "MPIR_CVAR_NOLOCAL": "1",
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": str(remote),
    }
