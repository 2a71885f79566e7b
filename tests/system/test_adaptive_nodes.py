# SPDX-License-Identifier: Apache-2.0
"""Adaptive MPI programs that release ranks and spawn them on other nodes, which are emulated on this machine."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from drom.agent.testbed.mpi_nodes import emulated_nodes

from dromlib import native
from tests.support import agents, native_build
from tests.support.agents import wait_until
from tests.support.example_programs import SOURCES, run_long_enough
from tests.support.mpi_programs import MPIS, SPAWNING, Mpi

if TYPE_CHECKING:
    from tests.support.agents import Agent, Program, Programs

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
TWO = ("--emulate", "pack:1 core:2", "--grace", "600")
NODES = {"n1": 2, "n2": 2, "n3": 2}
IGNORED = (
    "drom: the host file is ignored: write a line NODE slots=N for each node, at least one and each once, in 64 KiB.\n"
)
"""What is said about a host file that is wrong."""
STAY = (
    "drom: ranks stay on a node that is given up, as MPI ends those of one launch together: launch on one node, or let "
    "ranks end alone (docs/adaptive-mpi.md).\n"
)
CANNOT_SPAWN = (
    "drom: MPI has not spawned ranks on each new node, so no more are spawned: use a library that can, and nodes that "
    "it was given.\n"
)


EXAMPLES = {
    "mpi_heat.c --size 64 --steps": 20000,
    "mpi_particles.c 300": 4000,
    "mpi4py_heat.py --size 64 --steps": 2000,
    "mpi4py_particles.py --particles 100 --steps": 400,
}
"""The examples, and steps of each that take longer than changes of nodes, on most machines."""


@pytest.fixture(params=SPAWNING, ids=lambda mpi: mpi.name)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    """Return each MPI library in turn that can spawn."""
    library: Mpi = request.param
    return library


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the program is compiled, once for each MPI library."""
    return tmp_path_factory.mktemp("nodes")


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process, which may have ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


class Spread:
    """A program that compares all its elements at each step, on emulated nodes, with two ranks on each of the first."""

    def __init__(
        self,
        mpi: Mpi,
        folder: Path,
        start: Programs,
        *,
        least: int = 1,
        launcher: tuple[str, ...] = (),
        source: Path = native_build.SOURCES / "adaptive.c",
        words: tuple[str, ...] = (),
        launched: int = 2,
        **variables: str,
    ) -> None:
        self._stop, self._hosts = start.folder / "stop", start.folder / "hosts"
        command = mpi.command(source, folder)
        self._name = Path(command[0]).name
        self.have(**dict.fromkeys(list(NODES)[: launched // 2], 2))
        launch = mpi.launch_on(NODES, launched, *launcher, *command, *(words or (str(least), str(self._stop))))
        environment = mpi.environment(start.folder) | emulated_nodes(start.folder) | variables
        self.program: Program = start.start(*launch, DROM_MPI_HOSTFILE=str(self._hosts), **environment)

    def write(self, text: str) -> None:
        """Replace the host file."""
        fresh = self._hosts.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.rename(self._hosts)

    def have(self, **nodes: int) -> None:
        """Order these nodes, with so many ranks on each new one."""
        self.write("".join(f"{node} slots={slots}\n" for node, slots in nodes.items()))

    def ranks(self) -> list[str]:
        """Return the nodes of the processes that are there."""
        there = psutil.process_iter(["name"])
        found = [environment_of(process) for process in there if process.info["name"] == self._name]
        return sorted(one["DROM_NODE"] for one in found if one.get("DROM_MPI_HOSTFILE") == str(self._hosts))

    def await_ranks(self, *nodes: str) -> None:
        """Wait until there are processes on these nodes, and no others."""
        wait_until(lambda: self.ranks() == list(nodes), lambda: f"{self.ranks()}\n{self.program.show()}", 60)

    def is_over(self) -> bool:
        """Return whether the program has ended."""
        return self.program.process.poll() is not None

    def moves_to(self, *nodes: str) -> bool:
        """Order these nodes with two ranks each, and wait until it runs there; return whether it has not ended."""
        self.have(**dict.fromkeys(nodes, 2))
        wanted = sorted([*nodes, *nodes])
        wait_until(lambda: self.is_over() or self.ranks() == wanted, self.program.show)
        return not self.is_over()

    def errors(self) -> str:
        """Return stderr, without a warning of Open MPI's launcher: the shell for a node was faster than it."""
        lines = self.program.err.splitlines(keepends=True)
        return "".join(line for line in lines if "plm:rsh: Warning: setpgid" not in line)

    def end(self, said: str = "") -> None:
        """End the program, and assert that it has found every element right."""
        self._stop.touch()
        wait_until(lambda: self.program.process.poll() is not None, self.program.show, 60)
        assert self.program.out.splitlines()[-1] == "0 wrong", self.program.show()
        assert (self.program.process.poll(), self.errors()) == (0, said), self.program.show()


def test_a_program_grows_onto_a_node_and_gives_it_up(mpi: Mpi, folder: Path, start: Programs) -> None:
    """Ranks are spawned on nodes that are added to the host file, and end where a node is taken out of it."""
    job = Spread(mpi, folder, start)
    job.have(n1=2, n2=2, n3=1)
    job.program.await_out("changed 5")
    job.await_ranks("n1", "n1", "n2", "n2", "n3")
    job.have(n1=2, n3=1)
    job.program.await_out("changed 3")
    job.await_ranks("n1", "n1", "n3")
    job.end()


def test_ranks_that_have_not_joined_yet_spawn_none(mpi: Mpi, folder: Path, start: Programs) -> None:
    """A node that is added while the ranks of another one have not come to their first point gets its ranks once."""
    job = Spread(mpi, folder, start, source=native_build.SOURCES / "late.c")
    for nodes in (["n1", "n2"], ["n1", "n2", "n3"]):
        job.have(**dict.fromkeys(nodes, 2))
        job.await_ranks(*sorted([*nodes, *nodes]))
    job.program.await_out("changed 4")
    job.end()


def test_a_node_may_have_another_name_for_the_launcher(mpi: Mpi, folder: Path, start: Programs) -> None:
    """Ranks are spawned on the host that a line of the host file names, and released by the name of their node."""
    job = Spread(mpi, folder, start)
    job.write("n1 slots=2\nother slots=2 host=n2\n")
    job.program.await_out("changed 4")
    job.await_ranks("n1", "n1", "other", "other")
    job.have(n1=2)
    job.await_ranks("n1", "n1")
    job.end()


def test_ranks_of_one_launch_leave_its_nodes_one_by_one(folder: Path, start: Programs) -> None:
    """Ranks that can end alone are released where any node is given up, and are spawned there anew."""
    job = Spread(SPAWNING[1], folder, start, launched=4, MPIR_CVAR_CH4_NETMOD="ofi")
    job.await_ranks("n1", "n1", "n2", "n2")
    for stays in ("n2", "n1", "n2"):
        job.have(**{stays: 2})
        job.await_ranks(stays, stays)
        job.have(n1=2, n2=2)
        job.await_ranks("n1", "n1", "n2", "n2")
    job.end()


def test_ranks_that_end_only_together_stay(folder: Path, start: Programs) -> None:
    """The ranks of a launch stay on a node that is given up while another node of it is not, and a sentence says so."""
    job = Spread(MPIS[1], folder, start, launched=4)
    job.await_ranks("n1", "n1", "n2", "n2")
    job.have(n1=2)
    job.program.await_err("ranks stay on a node")
    job.await_ranks("n1", "n1", "n2", "n2")
    job.end(STAY)


def test_a_program_moves_to_other_nodes(mpi: Mpi, folder: Path, start: Programs) -> None:
    """The ranks of the launch end too, once those on the new node run; the launcher stays until the program ends."""
    job = Spread(mpi, folder, start)
    job.program.await_out("^begins")
    job.have(n2=2)
    job.await_ranks("n2", "n2")
    job.have(n3=1)
    job.await_ranks("n3")
    job.end()


@pytest.mark.parametrize("changes", [6, pytest.param(50, marks=pytest.mark.programs)])
def test_changes_of_nodes_leave_every_element_right(mpi: Mpi, folder: Path, start: Programs, changes: int) -> None:
    """Nodes come and go at random, the same ones again and again."""
    job, chosen = Spread(mpi, folder, start), random.Random(33)
    nodes = {"n1"}
    for _ in range(changes):
        nodes ^= {chosen.choice(["n1", "n2", "n3"])}
        nodes = nodes or {"n2"}
        job.have(**dict.fromkeys(sorted(nodes), 2))
        job.await_ranks(*sorted([*nodes, *nodes]))
    job.end()


@pytest.mark.parametrize(
    "text",
    ["n2 slot=2\n", "n2 slots=0\n", "n2 slots=2 3\n", "n2 slots=99999999\n", "# nothing\n", "n2 slots=1\nn2 slots=1\n"],
)
def test_a_host_file_that_is_wrong_is_one_sentence(mpi: Mpi, folder: Path, start: Programs, text: str) -> None:
    """The program runs on with its ranks, until the file is right."""
    job = Spread(mpi, folder, start)
    job.program.await_out("^begins")
    job.write(text)
    job.program.await_err("ignored")
    job.write("n1 slots=2 # two\n\n  n2  slots=1")
    job.await_ranks("n1", "n1", "n2")
    job.end(IGNORED)


def test_a_program_keeps_its_fewest_ranks(mpi: Mpi, folder: Path, start: Programs) -> None:
    """A node is not given up if fewer ranks would be left than the program needs."""
    job = Spread(mpi, folder, start, least=2)
    job.have(n1=2, n2=1)
    job.program.await_out("changed 3")
    job.have(n2=1)
    job.program.await_err("too few ranks")
    job.have(n2=1, n3=1)
    job.await_ranks("n2", "n3")
    said = "drom: too few ranks would be left, so none is released: leave nodes for min_ranks in the host file.\n"
    job.end(said)


def test_a_library_that_cannot_spawn_is_one_sentence(folder: Path, start: Programs) -> None:
    """The program runs on with the ranks that it has."""
    job = Spread(MPIS[1], folder, start)
    job.program.await_out("^begins")
    job.have(n1=2, n2=2)
    job.program.await_err("has not spawned")
    job.have(n1=2, n3=2)
    job.end(CANNOT_SPAWN)


def test_released_ranks_leave_their_agent(mpi: Mpi, folder: Path, start: Programs) -> None:
    """Spawned ranks are tasks of the job, rest and wake as others do, and leave nothing when they are released."""
    with (
        agents.start_agent(start.folder, *TWO, name="n1") as first,
        agents.start_agent(start.folder, *TWO, name="n2") as second,
    ):
        job = Spread(mpi, folder, start, launcher=(str(native.run_path()), "--job", "a", "--"))

        def await_states(agent: Agent, *wanted: str) -> None:
            def states() -> list[tuple[str, str]]:
                return sorted((row["job"], row["state"]) for row in agent.order("ps")["tasks"])

            there = [("a", state) for state in wanted]
            wait_until(lambda: states() == there, lambda: f"{states()}\n{job.program.show()}", 60)

        job.have(n1=2, n2=2)
        await_states(second, "running", "running")
        job.program.await_out("changed 4")
        second.order("resize", job="a", cpus=1)
        await_states(second, "resting", "running")
        job.have(n1=2)
        await_states(second)
        job.have(n2=2)
        await_states(first)
        await_states(second, "running", "running")
        job.end()
        for agent in (first, second):
            agent.assert_clean()


@pytest.mark.parametrize("source", ["adaptive.f90", "adaptive.py"])
def test_programs_in_other_languages_change_nodes(mpi: Mpi, folder: Path, start: Programs, source: str) -> None:
    """Ranks of programs in Fortran and Python are spawned and released as those in C are; every element is right."""
    job = Spread(mpi, folder, start, source=native_build.SOURCES / source)
    for nodes in (["n1", "n2"], ["n2"], ["n2", "n3"], ["n1", "n3"]):
        job.have(**dict.fromkeys(nodes, 2))
        job.await_ranks(*sorted([*nodes, *nodes]))
    job.end()


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_gives_its_answer_on_other_nodes(mpi: Mpi, folder: Path, start: Programs, example: str) -> None:
    """An example that has grown onto another node and left its first one prints what it prints without that."""
    source, *words = example.split()

    def run(steps: int) -> bool:
        given = (*words, str(steps))
        alone = mpi.launch(1, *mpi.command(SOURCES / source, folder), *given)
        environment = os.environ | mpi.environment(start.folder)
        answer = subprocess.run(alone, env=environment, capture_output=True, text=True, check=True)
        job = Spread(mpi, folder, start, source=SOURCES / source, words=given)
        moves = job.moves_to("n1", "n2") and job.moves_to("n2")
        wait_until(job.is_over, job.program.show, 200)

        assert job.program.out == answer.stdout, job.program.show()
        assert answer.stdout.endswith(" ok\n")
        assert (job.program.process.poll(), job.errors()) == (0, "")
        return moves

    run_long_enough(run, EXAMPLES[example])
