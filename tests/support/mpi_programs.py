# SPDX-License-Identifier: Apache-2.0
"""The MPI libraries of this machine for tests: how programs are compiled and started with each."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from dromlib import native
from tests.support import native_build
from tests.support.example_programs import mpi_environment

MPICH = Path("/usr/lib/x86_64-linux-gnu/libmpich.so.12")
"""Debian's MPICH, which mpi4py knows by another name."""
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]


@dataclass(frozen=True)
class Mpi:
    """An MPI library as Debian names its compiler and its launcher."""

    name: str

    def find(self, tool: str) -> str:
        """Return the path of a tool, such as mpicc; skip where it is missing."""
        path = shutil.which(f"{tool}.{self.name}")
        if path is None:
            pytest.skip(f"needs {tool}.{self.name}")
        return path

    def compile(self, source: Path, folder: Path) -> Path:
        """Return the program compiled from a C file that uses drom_mpi.h, or includes drom_mpi.c to see inside.

        Skip where the compiler is missing.
        """
        compiler = self.find("mpicc")
        program, include, library = folder / f"{source.stem}.{self.name}", native.include_dir(), native.library_path()
        if not program.exists():
            linked = [f"-I{include}", f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", "-ldrom", "-lm"]
            is_inside = '#include "drom_mpi.c"' in source.read_text(encoding="utf-8")
            sources = [source] if is_inside else [source, include / "drom_mpi.c"]
            subprocess.run([compiler, *FLAGS, *sources, *linked, "-o", program], check=True)
        return program

    def command(self, source: Path, folder: Path) -> list[str | Path]:
        """Return the command line of a program in C, Fortran or Python; skip where it lacks something."""
        if source.suffix == ".c":
            return [self.compile(source, folder)]
        if source.suffix == ".f90":
            return [self.compile_fortran(source, folder)]
        pytest.importorskip("mpi4py", reason="needs mpi4py")
        self.find("mpicc")
        if self.name == "mpich" and not MPICH.exists():
            pytest.skip(f"needs {MPICH}")
        return [sys.executable, "-m", "mpi4py", source]

    def compile_fortran(self, source: Path, folder: Path) -> Path:
        """Return the program compiled from a Fortran file that uses the module drom_mpi, as docs/compiling.md says."""
        if not shutil.which(f"mpif90.{self.name}") or not shutil.which(f"mpicc.{self.name}"):
            pytest.skip(f"needs mpif90.{self.name}")
        program, library = folder / f"{source.stem}.fortran.{self.name}", native.library_path().parent
        if not program.exists():
            scratch, include = folder / f"fortran.{self.name}", native.include_dir()
            scratch.mkdir()
            linked = [f"-L{library}", f"-Wl,-rpath,{library}", "-ldrom"]
            sources = [str(include / "drom_mpi.f90"), str(source), "drom_mpi.o"]
            module = [f"mpicc.{self.name}", *FLAGS, "-c", str(include / "drom_mpi.c")]
            subprocess.run(module, cwd=scratch, check=True)
            fortran = [f"mpif90.{self.name}", "-O2", "-Wall", "-Werror", *sources, *linked, "-o", str(program)]
            subprocess.run(fortran, cwd=scratch, check=True)
        return program

    def launch(self, ranks: int, *command: str | Path) -> list[str]:
        """Return the command that starts so many ranks, more than there are CPUs too."""
        options = ["--oversubscribe", "--bind-to", "none"] if self.name == "openmpi" else []
        return [self.find("mpirun"), *options, "-n", str(ranks), *map(str, command)]

    def launch_on(self, nodes: dict[str, int], ranks: int, *command: str | Path) -> list[str]:
        """Return the command that starts so many ranks on the first of these nodes; the others can get some later."""
        launcher, *rest = self.launch(ranks, *command)
        hosts = ",".join(f"{node}:{slots}" for node, slots in nodes.items())
        return [launcher, "--host" if self.name == "openmpi" else "-hosts", hosts, *rest]

    def environment(self, folder: Path) -> dict[str, str]:
        """Return what a launch needs in its environment, with mpi4py too; its shared memory lies in `folder`.

        Ranks that wait for messages sleep: those that are to send them may have no CPU.
        """
        environment = mpi_environment(folder) | {"MPICC": f"mpicc.{self.name}", "MPI4PY_MPIABI": self.name}
        if shutil.which("gcc"):
            environment["LD_PRELOAD"] = str(_patient())
        if self.name == "openmpi":
            return environment | {"OMPI_MCA_mpi_yield_when_idle": "1"}
        renamed = folder / "mpi4py" / "libmpi.so.12"
        if not renamed.exists():
            renamed.parent.mkdir()
            renamed.symlink_to(MPICH)
        return environment | {"LD_LIBRARY_PATH": str(renamed.parent)}


@functools.cache
def _patient() -> Path:
    """Return the library with which waiting ranks sleep, compiled once by this process."""
    folder = Path(tempfile.mkdtemp(prefix="drom-test-"))
    atexit.register(shutil.rmtree, folder)
    library = folder / "patient_mpi.so"
    native_build.compile_c(library, [native_build.SOURCES / "patient_mpi.c"], ["-shared", "-fPIC", "-ldl"])
    return library


class Wheel(Mpi):
    """The MPICH of PyPI, which can spawn, in the environment that DROM_TEST_MPICH names."""

    def find(self, tool: str) -> str:
        """Return the path of a tool."""
        prefix = os.environ.get("DROM_TEST_MPICH")
        if prefix is None:
            pytest.skip("needs DROM_TEST_MPICH: a folder in which `pip install mpich` has made bin/mpicc")
        return f"{prefix}/bin/{tool}"

    def environment(self, folder: Path) -> dict[str, str]:
        """Return what a launch needs in its environment, with mpi4py too."""
        library = Path(self.find("mpicc")).parent.parent / "lib"
        found = {"MPICC": self.find("mpicc"), "MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(library)}
        return mpi_environment(folder) | found


MPIS = (Mpi("openmpi"), Mpi("mpich"))
each_mpi = pytest.mark.parametrize("mpi", MPIS, ids=lambda mpi: mpi.name)
"""The decorator, or mark of a module, with which tests get each MPI library as `mpi`."""
SPAWNING = (Mpi("openmpi"), Wheel("mpich-wheel"))
"""The MPI libraries that can spawn ranks."""
