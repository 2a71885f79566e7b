"""The examples as tests see them: their sources, their malleable lines, how they are built and started."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.execution.mpi_hosts import AS_ROOT

from dromlib import native
from dromlib.cpulist import parse_cpulist
from tests.support import native_build
from tests.support.agents import wait_until
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.agents import Agent, Program

SOURCES = ROOT / "examples"
PAGES = ROOT / "docs" / "examples"
MARK = re.compile(r"\s*(/\*|//|#|!) malleable( (?P<word>begin|end)\b|\b).*$")
COMPILERS = {".c": "gcc", ".cpp": "g++", ".f90": "gfortran"}
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""On a machine that does other things as well, threads that spin at barriers wait for threads that do not run."""
UNCOMPILED = {"NUMBA_DISABLE_JIT": "1"}
"""Where a program's functions are never called, numba need not compile them."""
PATIENT = "600"
"""Seconds of grace of an agent that waits for a program on any machine to apply a grant itself."""


def lines(source: Path) -> list[str]:
    """Return the lines of a source."""
    return source.read_text(encoding="utf-8").splitlines()


def malleable_lines(source: Path) -> list[str]:
    """Return the lines that make an example malleable, without their marks: those that end in one, those in a block."""
    found, inside = [], False
    for line in lines(source):
        mark = MARK.search(line)
        if mark and mark["word"]:
            inside = mark["word"] == "begin"
        elif mark or inside:
            found.append(MARK.sub("", line))
    assert not inside, f"{source.name} begins a malleable block that does not end"
    return found


def build(source: Path, folder: Path) -> Path:
    """Return an example compiled into a folder, as its page says; skip where its compiler is missing."""
    compiler = "mpicc" if source.name.startswith("mpi_") else COMPILERS[source.suffix]
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program = folder / source.stem
    if program.exists():
        return program
    include, library = native.include_dir(), native.library_path().parent
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-pthread" if source.suffix == ".cpp" else "-fopenmp"]
    sources = [*([include / "drom.f90"] if source.suffix == ".f90" else []), source]
    linked = [f"-I{include}", f"-L{library}", f"-Wl,-rpath,{library}", "-ldrom", "-lm"]
    subprocess.run([compiler, *flags, *sources, *linked, "-o", program], cwd=folder, check=True)
    return program


def mpirun(ranks: int, *command: str | Path) -> list[str]:
    """Return the command line of an MPI launch as the pages say; skip where there is no launcher."""
    launcher = shutil.which("mpirun")
    if launcher is None:
        pytest.skip("needs mpirun")
    return [launcher, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *map(str, command)]


def command(name: str, folder: Path) -> list[str]:
    """Return the command line of an example, compiled unless it is Python; skip where it lacks something."""
    source = SOURCES / name
    if name.startswith("mpi4py"):
        pytest.importorskip("mpi4py", reason="needs mpi4py")
    return [sys.executable, str(source)] if source.suffix == ".py" else [str(build(source, folder))]


def mpi_environment(folder: Path) -> dict[str, str]:
    """Return what a launch needs in its environment; its shared memory lies in `folder`, also when it is killed."""
    return PASSIVE | AS_ROOT | {"OMPI_MCA_btl_vader_backing_directory": str(folder)}


def finish(program: Program, seconds: float = 240) -> tuple[int | None, str]:
    """Wait for the end of a program; return its exit code and its last line, the answer."""
    wait_until(lambda: program.process.poll() is not None, program.show, seconds)
    return program.process.poll(), (program.out.splitlines() or [""])[-1]


def run_long_enough(run: Callable[[int], bool], steps: int) -> None:
    """Call `run` with more and more steps, until it returns that a program made all its changes before it ended."""
    while not run(steps):
        steps *= 4


class Gates:
    """Gates on the way of a program, see native/gate.c: one after each of its first three grants.

    So it is resized, and looked at, at points that do not depend on how fast the machine is.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc")
        self._folder = folder / "gates"
        self._folder.mkdir()
        self._library = folder / "gate.so"
        native_build.compile_c(self._library, [native_build.SOURCES / "gate.c"], ["-shared", "-fPIC", "-ldl"])

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs in its environment to stop at the gates."""
        return {"LD_PRELOAD": str(self._library), "DROM_TEST_GATES": str(self._folder)}

    def open(self, number: int) -> None:
        """Let every process of the program pass gate 1, 2 or 3."""
        (self._folder / str(number)).touch()


def resize_twice(agent: Agent, gates: Gates, job: str, orders: Sequence[tuple[str, list[int]]]) -> None:
    """Resize a job at its first two gates; see that each task has put in force what it was granted; open the last.

    An order is the word for `drom resize JOB`, and how many CPUs each task is to have then.
    """
    for gate, (word, cpus) in enumerate(orders, 1):
        await_working(agent, job, len(cpus))
        done = agent.cli("resize", job, word)
        assert done.returncode == 0, done.stderr
        gates.open(gate)
        assert await_working(agent, job, len(cpus), cpus) == cpus
    gates.open(len(orders) + 1)


def await_working(agent: Agent, job: str, tasks: int, cpus: list[int] | None = None) -> list[int]:
    """Wait until each task has applied its grant by itself, of so many CPUs if given; return how many it has."""
    rows: list[dict[str, Any]] = []

    def settled() -> bool:
        nonlocal rows
        rows = [row for row in agent.order("ps")["tasks"] if row["job"] == job]
        return (
            len(rows) == tasks
            and all((row["applied"], row["mode"]) == (row["target"], "cooperative") for row in rows)
            and (cpus is None or had() == cpus)
        )

    def had() -> list[int]:
        return [parse_cpulist(row["applied"]).bit_count() for row in rows]

    wait_until(settled, lambda: f"{rows}\n{agent.log}")
    return had()
