# SPDX-License-Identifier: Apache-2.0
"""The solver of petsc4py, as Debian has it, made adaptive by the diff of docs/petsc4py.md."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dromlib
from dromlib import native
from tests.support import agents
from tests.support.agents import wait_until
from tests.support.mpi_programs import Mpi

if TYPE_CHECKING:
    from tests.support.agents import Agent, Program, Programs

pytestmark = [pytest.mark.programs, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "petsc4py.md"
SOURCES = Path("/usr/share/doc/python-petsc4py-doc/examples/demo/kspsolve")
DEBIAN = Path("/usr/lib/python3/dist-packages")
LARGER = {
    "petsc-mat.py": [("m, n  = 32, 32", "m, n  = 200, 200")],
    "petsc-cg.py": [
        ("        i = i + 1\n", "        i = i + 1\n        norm = x.norm()\n"),
        ("    return i,", '    print("norm of the solution: %.15g" % norm)\n    return i,'),
    ],
    "test_mat_cg.py": [("cg(A,b,x,100,1e-5)", "cg(A,b,x,4000,0)")],
}
"""What is replaced in each file: a larger grid, more iterations, and the norm of the solution."""
LEAST = 10
"""How often ranks have to have left in a storm."""


class Solver:
    """The solver's files in a folder, larger, and the environment in which Debian's Python runs them."""

    def __init__(self, folder: Path) -> None:
        if not (SOURCES.exists() and (DEBIAN / "petsc4py.pth").exists() and (DEBIAN / "mpi4py").exists()):
            pytest.skip(
                "needs python3-petsc4py, python-petsc4py-doc and python3-mpi4py: make test-programs fetches them"
            )
        self.mpi = Mpi("openmpi")
        self.mpi.find("mpirun")
        self.folder = folder / "kspsolve"
        shutil.copytree(SOURCES, self.folder)
        self._library = folder / "library"
        for place in (
            Path(dromlib.__file__).parent,
            native.include_dir().parent,
        ):  # one folder, unless it is installed in place
            shutil.copytree(place, self._library / "dromlib", dirs_exist_ok=True)
        (petsc,) = Path("/usr/lib/petscdir").glob("*/*-real")
        self._variables = {"PYTHONPATH": str(self._library), "PETSC_DIR": str(petsc)}

    def adapt(self) -> None:
        """Apply the diff of the page."""
        (diff,) = re.findall(r"^```diff\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        subprocess.run(["patch", "-p1", "-d", self.folder], input=diff, text=True, check=True, stdout=subprocess.PIPE)

    def enlarge(self) -> None:
        """Make the problem larger."""
        for name, pairs in LARGER.items():
            text = (self.folder / name).read_text(encoding="utf-8")
            for old, new in pairs:
                assert text.count(old) == 1
                text = text.replace(old, new)
            (self.folder / name).write_text(text, encoding="utf-8")

    def start(self, start: Programs, *before: str | Path) -> Program:
        """Start it on four ranks, with a command before it."""
        python = [*before, "/usr/bin/python3", "-m", "mpi4py", "test_mat_cg.py", "-plot", "0"]
        launch = self.mpi.launch(4, *python)
        return start.start("env", "-C", self.folder, *launch, **self.mpi.environment(start.folder) | self._variables)


def answer(program: Program) -> tuple[int, float]:
    """Wait for the end of the solver; return its iterations and the norm of its solution, which all ranks print."""
    assert program.wait() == 0, program.show()
    (norm,) = {float(value) for value in re.findall(r"norm of the solution: ([\d.]+)", program.out)}
    iterations = re.findall(r"iterations: (\d+)", program.out)
    return int(iterations[-1]), norm


def test_its_ranks_leave_and_return(tmp_path: Path, start: Programs) -> None:
    """The solution under a storm of resizes is that of the program as it is."""
    solver = Solver(tmp_path)
    solver.enlarge()
    iterations, norm = answer(solver.start(start))
    shutil.rmtree(solver.folder)
    shutil.copytree(SOURCES, solver.folder)
    solver.adapt()
    solver.enlarge()
    with agents.start_agent(tmp_path, "--emulate", "pack:2 core:2", "--grace", "600") as agent:
        program = solver.start(start, *agent.run("--job", "cg", "--"))
        storm(agent, program)

        found = answer(program)
        assert found[0] == iterations
        assert found[1] == pytest.approx(norm, rel=1e-9)
        assert program.err == ""
        assert agent.log.count("action=rest") >= LEAST
        agent.assert_clean()


def storm(agent: Agent, program: Program) -> None:
    """Resize the job at random until it ends, each time once its ranks have what they are to have."""
    chance, last = random.Random(7), 4
    wait_until(lambda: [row["min_tasks"] for row in agent.order("ps")["tasks"]] == [1] * 4, program.show)
    while program.process.poll() is None:
        last = chance.choice([ranks for ranks in (1, 2, 3, 4) if ranks != last])
        answered = agent.cli("resize", "cg", str(last))
        if answered.returncode:
            break  # it has just ended

        def is_in_force() -> bool:
            rows = agent.order("ps")["tasks"]
            return program.process.poll() is not None or sum(row["state"] == "running" for row in rows) == last  # noqa: B023

        wait_until(is_in_force, program.show)
