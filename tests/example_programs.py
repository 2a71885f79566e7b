"""The examples as tests see them: their sources, their malleable lines, how they are built and started."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dromlib import native
from dromlib.cpulist import parse_cpulist
from tests.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.agents import Agent, Program

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "examples"
PAGES = ROOT / "docs" / "examples"
MARK = re.compile(r"\s*(/\*|#) malleable( (?P<word>begin|end)\b|\b).*$")
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""On a machine that does other things as well, threads that spin at barriers wait for threads that do not run."""
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


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


def build_c(source: Path, folder: Path) -> Path:
    """Return an example compiled into a folder, as its page says; skip where its compiler is missing."""
    compiler = "mpicc" if source.name.startswith("mpi_") else "gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program = folder / source.stem
    if program.exists():
        return program
    include, library = native.include_dir(), native.library_path().parent
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fopenmp"]
    command = [compiler, *flags, str(source), f"-I{include}", f"-L{library}", f"-Wl,-rpath,{library}", "-ldrom", "-lm"]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def mpirun(ranks: int, *command: str | Path) -> list[str]:
    """Return the command line of an MPI launch as the pages say; skip where there is no launcher."""
    launcher = shutil.which("mpirun")
    if launcher is None:
        pytest.skip("needs mpirun")
    return [launcher, "-n", str(ranks), "--oversubscribe", "--bind-to", "none", *map(str, command)]


def command(name: str, folder: Path) -> list[str]:
    """Return the command line of an example, compiled into `folder` where it is C; skip where it lacks something."""
    source = SOURCES / name
    if name.startswith("mpi4py"):
        pytest.importorskip("mpi4py", reason="needs mpi4py")
    return [str(build_c(source, folder))] if source.suffix == ".c" else [sys.executable, str(source)]


def mpi_environment(folder: Path) -> dict[str, str]:
    """Return what a launch needs in its environment; its shared memory lies in `folder`, also when it is killed."""
    return PASSIVE | AS_ROOT | {"OMPI_MCA_btl_vader_backing_directory": str(folder)}


def finish(program: Program, seconds: float = 100) -> tuple[int | None, str]:
    """Wait for the end of a program; return its exit code and its last line, the answer."""
    wait_until(lambda: program.process.poll() is not None, program.show, seconds)
    return program.process.poll(), (program.out.splitlines() or [""])[-1]


def outlives(agent: Agent, program: Program, job: str, tasks: int, orders: Sequence[tuple[str, int]]) -> bool:
    """Resize a job of so many tasks once it works; tell whether the program still worked after the last order.

    An order is the word for `drom resize JOB`, and the CPUs that each task is to have applied and worked on before the
    next order. A machine may be so fast that the program ends before: it is to be given more to do.
    """
    lives = _works(agent, program, job, tasks)
    for word, cpus in orders:
        done = agent.cli("resize", job, word)
        lives = program.process.poll() is None and _works(agent, program, job, tasks, cpus)
        assert done.returncode == 0 or not lives, done.stderr
    return lives


def _works(agent: Agent, program: Program, job: str, tasks: int, cpus: int | None = None) -> bool:
    """Wait until each task has applied its grant, of `cpus` CPUs if given, and works on; False if it has ended."""
    rows: list[dict[str, Any]] = []

    def ended() -> bool:
        return program.process.poll() is not None

    def settled() -> bool:
        nonlocal rows
        rows = [row for row in agent.order("ps")["tasks"] if row["job"] == job]
        had = {parse_cpulist(row["applied"]).bit_count() for row in rows}
        return (
            len(rows) == tasks
            and all((row["applied"], row["mode"]) == (row["target"], "cooperative") for row in rows)
            and (cpus is None or had == {cpus})
        )

    def show() -> str:
        return f"{rows}\n{agent.log}"

    wait_until(lambda: ended() or settled(), show, 60)
    before = [row["progress"] for row in rows]
    wait_until(
        lambda: ended() or (settled() and all(row["progress"] > old for row, old in zip(rows, before, strict=True))),
        show,
        60,
    )
    return not ended()
