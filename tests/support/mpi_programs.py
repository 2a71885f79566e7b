# SPDX-License-Identifier: Apache-2.0
"""The MPI libraries of this machine for tests: how programs are compiled and started with each."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from dromlib import native
from tests.support.example_programs import mpi_environment

if TYPE_CHECKING:
    from pathlib import Path

FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]


@dataclass(frozen=True)
class Mpi:
    """An MPI library as Debian names its compiler and its launcher."""

    name: str

    def compile(self, source: Path, folder: Path, *flags: str) -> Path:
        """Return the program compiled from a C file that uses drom_mpi.h; skip where the compiler is missing."""
        compiler = shutil.which(f"mpicc.{self.name}")
        if compiler is None:
            pytest.skip(f"needs mpicc.{self.name}")
        program, include, library = folder / f"{source.stem}.{self.name}", native.include_dir(), native.library_path()
        if not program.exists():
            linked = [f"-I{include}", f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", "-ldrom", "-lm"]
            sources = [source, include / "drom_mpi.c"]
            subprocess.run([compiler, *FLAGS, *flags, *sources, *linked, "-o", program], check=True)
        return program

    def launch(self, ranks: int, *command: str | Path) -> list[str]:
        """Return the command that starts so many ranks, more than there are CPUs too."""
        launcher = shutil.which(f"mpirun.{self.name}")
        if launcher is None:
            pytest.skip(f"needs mpirun.{self.name}")
        options = ["--oversubscribe", "--bind-to", "none"] if self.name == "openmpi" else []
        return [launcher, *options, "-n", str(ranks), *map(str, command)]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return what a launch needs in its environment; its shared memory lies in `folder`."""
        return mpi_environment(folder)


MPIS = (Mpi("openmpi"), Mpi("mpich"))
