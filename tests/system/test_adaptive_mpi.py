# SPDX-License-Identifier: Apache-2.0
"""Adaptive MPI jobs under a real agent, with each MPI library: ranks that rest and return, whatever happens."""

from __future__ import annotations

import itertools
import os
import random
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from drom.agent.errors import ControlError
from drom.agent.ipc import registry

from dromlib import native
from tests.support import agents, native_build
from tests.support.agents import wait_until
from tests.support.example_programs import SOURCES, run_long_enough
from tests.support.mpi_programs import Mpi, each_mpi

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.mark import ParameterSet

    from tests.support.agents import Agent, Program, Programs

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), each_mpi]
FOUR = ("--emulate", "pack:2 core:2", "--grace", "600")
"""An agent that waits for programs on any machine to pass a malleability point."""
LANGUAGES = ("adaptive.c", "adaptive.f90", "adaptive.py")
"""The program in each language."""
EXAMPLES = {
    "mpi_heat.c --size 64 --steps": 1000,
    "mpi_particles.c 200": 400,
    "mpi4py_heat.py --size 64 --steps": 160,
    "mpi4py_particles.py --particles 100 --steps": 20,
}
"""The examples, and the steps of each that take longer than a change of its ranks, on most machines."""
STORMS = {40: (), 200: [pytest.mark.programs]}
"""How often ranks change, in a test and in a longer one, which has a mark."""


def storms(programs: Iterable[str]) -> list[ParameterSet]:
    """Return each program with each number of changes."""
    chosen = itertools.product(programs, STORMS.items())
    return [pytest.param((one, changes), marks=marks, id=f"{changes}-{one}") for one, (changes, marks) in chosen]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the program is compiled, once for each MPI library."""
    return tmp_path_factory.mktemp("adaptive")


class Adaptive:
    """An adaptive program as job `a`, in C unless `source` is another, which ends when told."""

    def __init__(
        self,
        mpi: Mpi,
        folder: Path,
        start: Programs,
        agent: Agent,
        *words: str,
        ranks: int = 4,
        min_ranks: int = 1,
        source: str = "adaptive.c",
    ) -> None:
        self._stop = start.folder / "stop"
        self.ranks = ranks
        self.agent = agent
        command = mpi.command(native_build.SOURCES / source, folder)
        self._start(mpi, start, *command, str(min_ranks), self._stop, *words)

    def _start(self, mpi: Mpi, start: Programs, *command: str | Path) -> None:
        """Start a program as job `a`, and wait until its ranks have said that they may rest."""
        launch = mpi.launch(self.ranks, *self.agent.run("--job", "a", "--", *command))
        self.program: Program = start.start(*launch, **mpi.environment(start.folder))
        may_rest = [True] * self.ranks
        wait_until(lambda: [row["min_tasks"] > 0 for row in self.rows()] == may_rest, self.show)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of `drom ps` of the job, by rank."""
        return [row for row in self.agent.order("ps")["tasks"] if row["job"] == "a"]

    def show(self) -> str:
        """Return what the job has said and has."""
        return f"{self.rows()}\n{self.program.show()}\n{self.agent.log}"

    def await_states(self, *states: str) -> list[dict[str, Any]]:
        """Wait until the ranks have these states, and each what is planned for it; return their rows."""

        def there() -> list[dict[str, Any]] | None:
            rows = self.rows()
            settled = all(row["target"] == row["granted"] == row["applied"] == row["held"] for row in rows)
            return rows if settled and [row["state"] for row in rows] == list(states) else None

        return wait_until(there, self.show)

    def resize(self, cpus: int) -> None:
        """Have the job run on so many CPUs, and wait until the ranks have what they are to have."""
        self.agent.order("resize", job="a", cpus=cpus)
        wait_until(lambda: self.runs_on(cpus), self.show)

    def changes(self) -> list[int]:
        """Return how many ranks ran after each change that the program has told."""
        return [int(ranks) for ranks in re.findall(r"^changed (\d+)$", self.program.out, re.MULTILINE)]

    def runs_on(self, cpus: int) -> bool:
        """Return whether so many ranks run, and the others rest."""
        states = sorted(row["state"] for row in self.rows())
        return states == ["resting"] * (self.ranks - cpus) + ["running"] * cpus

    def end(self) -> None:
        """End the program and see that it has found every element right."""
        self._stop.touch()
        wait_until(lambda: self.program.process.poll() is not None, self.program.show)
        assert self.program.out.splitlines()[-1] == "0 wrong", self.program.show()
        assert (self.program.process.poll(), self.program.err) == (0, ""), self.program.show()


@pytest.mark.parametrize("storm", storms(LANGUAGES))
def test_changes_leave_every_element_right(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs, storm: tuple[str, int]
) -> None:
    """Ranks leave and return at random; arrays of all kinds are right at each step, and all ranks end.

    All ranks have the same communicator each time that all run. Ranks that return may do so one after another.
    """
    (source, changes), sizes, last = storm, random.Random(33), 4
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent, source=source)
        for _ in range(changes):
            before, last = len(job.changes()), sizes.choice([cpus for cpus in (1, 2, 3, 4) if cpus != last])
            job.resize(last)
            wait_until(lambda: job.changes()[before:][-1:] == [last], job.show)  # noqa: B023 - it is awaited here
        job.resize(1)
        job.end()
        agent.assert_clean()


class Constants(Adaptive):
    """The program with an array that does not change, as job `a`, which ends by itself."""

    def __init__(self, mpi: Mpi, folder: Path, start: Programs, agent: Agent, *words: str) -> None:
        self.ranks, self.agent = 4, agent
        self._start(mpi, start, *mpi.command(native_build.SOURCES / "constants.c", folder), *words)


def test_a_constant_array_moves_while_the_program_goes_on(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs
) -> None:
    """There are steps between the news of a change and the change, in both directions, and every element is right."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Constants(mpi, folder, start, agent)
        job.resize(2)
        agent.order("resize", job="a", cpus=4)

        assert job.program.wait() == 0
        changed = r"(changed \d after [1-9]\d*\n)+"
        assert re.fullmatch(rf"{changed}changed 4 after [1-9]\d*\n0 wrong\n", job.program.out), job.program.out
        assert job.program.err == ""
        agent.assert_clean()


@pytest.mark.parametrize("returns", [False, True], ids=["leaving", "returning"])
def test_a_program_may_end_while_a_constant_array_moves(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs, returns: bool
) -> None:
    """All ranks end, those that were about to rest, and those that were about to return."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Constants(mpi, folder, start, agent, *["returning"] if returns else ["leaving"])
        if returns:
            job.resize(2)
        agent.order("resize", job="a", cpus=4 if returns else 2)

        assert job.program.wait() == 0
        assert job.program.out.splitlines()[-1] == "0 wrong"
        assert "changed 4" not in job.program.out
        assert job.program.err == ""
        agent.assert_clean()


class Example(Adaptive):
    """An example as job `a`, which ends by itself."""

    def __init__(self, mpi: Mpi, folder: Path, start: Programs, agent: Agent, *command: str) -> None:
        self.ranks, self.agent = 4, agent
        source, *words = command
        self._start(mpi, start, *mpi.command(SOURCES / source, folder), *words)

    def is_over(self) -> bool:
        """Return whether the program has ended."""
        return self.program.process.poll() is not None

    def change(self, changes: int) -> int:
        """Change ranks so often, then have one run; return how many changes were over before the program."""
        made = 0
        for cpus in [*((1, 3, 2, 4)[change % 4] for change in range(changes)), 1]:
            try:
                self.agent.order("resize", job="a", cpus=cpus)
            except ControlError:  # no job `a` is there
                break
            wait_until(lambda: self.is_over() or self.runs_on(cpus), self.show)  # noqa: B023 - it is awaited here
            if self.is_over():
                break
            made += 1
        wait_until(self.is_over, self.show, 120)
        return made


@pytest.mark.parametrize("storm", storms(EXAMPLES))
def test_an_example_gives_its_answer_after_changes(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs, storm: tuple[str, int]
) -> None:
    """An example, alternately on 1 to 4 ranks, ends on one rank with every number right."""
    command, changes = storm
    with agents.start_agent(tmp_path, *FOUR) as agent:

        def run(steps: int) -> bool:
            job = Example(mpi, folder, start, agent, *command.split(), str(steps))
            made = job.change(changes)

            assert re.fullmatch(rf"{command.partition('.')[0]}: .* ok\n", job.program.out), job.program.show()
            assert (job.program.process.poll(), job.program.err) == (0, "")
            return made > changes

        run_long_enough(run, EXAMPLES[command] * changes)
        agent.assert_clean()


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of all threads of a process, from the kernel's nanoseconds."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def test_a_rank_that_rests_uses_no_cpu(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs) -> None:
    """A resting rank sleeps; its looks for messages take less than 0.3 % of a CPU on a busy machine too."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent)
        job.resize(1)
        rank = psutil.Process(job.rows()[3]["pid"])
        used, since = cpu_seconds(rank), time.monotonic()
        time.sleep(4)  # the time over which the CPU time is measured

        wait_until(lambda: rank.status() == psutil.STATUS_SLEEPING, job.show)
        assert (cpu_seconds(rank) - used) / (time.monotonic() - since) < 0.003

        job.resize(4)
        job.end()


def test_an_arrival_starts_on_the_cores_of_ranks_that_rest(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs
) -> None:
    """A job of 4 ranks on 4 cores gives an arrival two of them, says so, and gets them back when that ends."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent)
        other = start.start(*agent.run("--job", "b", "--cpus", "2", "--min", "2", "--", "sleep", "600"))
        job.await_states("running", "running", "resting", "resting")
        table, why = agent.cli("ps").stdout, agent.cli("explain", "a").stdout

        assert [row["state"] for row in job.rows()] == ["running", "running", "resting", "resting"]
        assert "resting" in table
        assert "; tasks 2 and 3 rest." in why
        assert "It says that it can run on 1 of its tasks: the others rest while there are too few CPUs for all." in why
        agent.assert_clean()

        other.kill()
        job.await_states("running", "running", "running", "running")
        job.end()


def test_ranks_rest_on_across_the_death_of_an_agent(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs) -> None:
    """The next agent leaves resting ranks at rest, and wakes them; when it stops all ranks return."""
    with agents.start_agent(tmp_path, *FOUR, stop=False) as first:
        job = Adaptive(mpi, folder, start, first)
        first.order("resize", job="a", cpus=2)
        job.await_states("running", "running", "resting", "resting")
        first.kill()
        with agents.start_agent(tmp_path, *FOUR) as second:
            job.agent = second
            rows = job.await_states("running", "running", "resting", "resting")

            assert [row["applied"] for row in rows[2:]] == ["", ""]
            second.assert_clean()

            second.order("resize", job="a", cpus=3)
            job.await_states("running", "running", "running", "resting")
        job.program.await_out("changed 4")
        job.end()


def test_min_ranks_always_run(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs) -> None:
    """An order for fewer CPUs than the program needs is refused with a sentence."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent, min_ranks=3)

        assert "can have 3 to 4 CPUs, not 2" in agent.cli("resize", "a", "2").stderr

        agent.order("resize", job="a", cpus=3)
        job.await_states("running", "running", "running", "resting")
        job.end()


def test_grants_that_leave_no_rank_are_refused(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs) -> None:
    """An agent that takes the last core of every rank is not obeyed: a sentence says so once, and all continue."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent)
        records = registry.Registry.open(agent.dir / "registry")
        for slot in records.records():
            native.publish(native.address(records.memory, records._base(slot.index)), 0, records._words, 0)
        said = (
            "drom: too few ranks would have cores, so none rests now: give the job at least as many cores as min_ranks."
        )
        job.program.await_err(said)
        before = [row["polls"] for row in job.rows()]
        wait_until(lambda: all(row["polls"] > polls for row, polls in zip(job.rows(), before, strict=True)), job.show)
        job._stop.touch()

        assert job.program.wait() == 0
        assert job.program.out.splitlines()[-1] == "0 wrong"
        assert job.program.err == f"{said}\n"


class Grants:
    """The grants of an adaptive program whose agent is killed, as it would correct those that a test publishes."""

    def __init__(self, job: Adaptive) -> None:
        self._job = job
        self.pids = [row["pid"] for row in job.rows()]
        self._records = registry.Registry.open(job.agent.dir / "registry")
        slots = {slot.fields["pid"]: slot.index for slot in self._records.records()}
        self._places = [native.address(self._records.memory, self._records._base(slots[pid])) for pid in self.pids]
        job.agent.kill()

    def publish(self, rank: int, mask: int) -> None:
        """Publish a grant for a rank: it rests without CPUs."""
        native.publish(self._places[rank], mask, self._records._words, 0)

    def change(self, ranks: int, *grants: tuple[int, int], pause: float = 0) -> None:
        """Publish grants one after another, and wait until so many ranks run."""
        before = len(self._job.changes())
        for rank, mask in grants:
            self.publish(rank, mask)
            time.sleep(pause)
        wait_until(lambda: self._job.changes()[before:][-1:] == [ranks], self._job.program.show)


def test_a_rank_that_leaves_has_those_join_that_it_knows(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs
) -> None:
    """A rank that was told of another one's core loses its own within the time in which it waits for more of them."""
    with agents.start_agent(tmp_path, *FOUR, stop=False) as agent:
        job = Adaptive(mpi, folder, start, agent)
        job.resize(2)
        wait_until(lambda: job.changes()[-1:] == [2], job.show)
        grants = Grants(job)
        for attempt in range(24):
            gains, loses = (2, 0) if attempt % 2 == 0 else (0, 2)
            grants.change(2, (gains, 1), (loses, 0), pause=attempt % 6 / 1000)  # another moment each time
        job.end()


def test_a_rank_returns_without_the_ranks_that_rest(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs) -> None:
    """A rank rests first, and then the one to which it would have reported a core; that one is stopped meanwhile."""
    with agents.start_agent(tmp_path, *FOUR, stop=False) as agent:
        job = Adaptive(mpi, folder, start, agent)
        grants = Grants(job)
        grants.change(3, (3, 0))
        grants.change(2, (0, 0))
        grants.change(1, (1, 0))
        stopped = [psutil.Process(grants.pids[rank]) for rank in (0, 1)]
        for process in stopped:
            process.suspend()
        try:
            grants.change(2, (3, 1))
        finally:
            for process in stopped:
                process.resume()
        job.end()


def test_a_program_reports_how_many_ranks_it_can_use(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs) -> None:
    """The agent takes back the cores of the others, and says why."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent, "0", "1", "2")
        job.await_states("running", "running", "resting", "resting")

        wait_until(lambda: {row["max_tasks"] for row in job.rows()} == {2}, job.show)
        assert "It says that it can run on 1 to 2 of its tasks" in agent.cli("explain", "a").stdout
        job.end()


def test_a_range_of_ranks_that_is_none_is_one_sentence(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs) -> None:
    """All ranks run on as before."""
    said = "drom: 3 to 9 of 4 ranks cannot run: choose numbers from 1 to 4, the smaller one first."
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent, "0", "3", "9")
        job.program.await_err(said)
        job._stop.touch()

        assert job.program.wait() == 0
        assert job.program.out.splitlines()[-1] == "0 wrong"
        assert job.program.err == f"{said}\n"


def test_a_message_to_a_rank_that_rests_is_one_sentence(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs
) -> None:
    """A resting rank reports once who has sent it a message on MPI_COMM_WORLD, and the job runs on."""
    said = "drom: rank 0 has sent rank 3, which rests, a message (tag 7) on MPI_COMM_WORLD: use drom_mpi_comm()."
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent, "message", source="stray.c")
        job.resize(2)
        job.program.await_err(re.escape(said))
        job.resize(4)
        job._stop.touch()

        assert job.program.wait() == 0
        assert job.program.err == f"{said}\n"


def test_a_rank_that_cannot_return_says_what_the_others_may_wait_for(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs
) -> None:
    """Ranks that run wait on MPI_COMM_WORLD for one that rests; after a while that one, with a core, says so once."""
    said = (
        "drom: rank 3 has a core, but the running ranks have come to no malleability point for 0.2 s: if they wait in "
        "a call on MPI_COMM_WORLD, use drom_mpi_comm() there."
    )
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent, "barrier", source="stray.c")
        job.resize(3)
        agent.order("resize", job="a", cpus=4)
        job.program.await_err(re.escape(said))

        assert job.program.err == f"{said}\n"


@pytest.mark.parametrize("rank", [0, 3])
def test_the_death_of_a_rank_ends_the_job_and_frees_its_cores(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs, rank: int
) -> None:
    """Whether it runs or rests, MPI ends the others, and the agent is left without tasks."""
    with agents.start_agent(tmp_path, *FOUR) as agent:
        job = Adaptive(mpi, folder, start, agent)
        job.resize(2)
        psutil.Process(job.rows()[rank]["pid"]).kill()

        assert job.program.wait() != 0
        wait_until(lambda: not job.rows(), job.show)
        agent.assert_clean()


@pytest.mark.parametrize("source", LANGUAGES)
def test_a_wrong_minimum_is_one_sentence(mpi: Mpi, folder: Path, tmp_path: Path, start: Programs, source: str) -> None:
    """A program that asks for more ranks than it has, or for none, is told what to choose."""
    command = mpi.command(native_build.SOURCES / source, folder)
    for wrong in ("0", "3"):
        started = start.start(*mpi.launch(2, *command, wrong, tmp_path), **mpi.environment(start.folder))

        assert started.wait() == 3
        assert started.err.count(f"drom: min_ranks is {wrong} of 2 ranks: choose a number from 1 to 2.\n") == 1


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
def test_a_rank_that_reaches_no_point_shares_the_cores_of_its_job(
    mpi: Mpi, folder: Path, tmp_path: Path, start: Programs
) -> None:
    """After the grace time the agent binds it to the CPUs of the other ranks; it rests once it passes a point."""
    with agents.start_agent(tmp_path, "--topology", "pack:2 core:1", "--grace", "0.2") as agent:
        job = Adaptive(mpi, folder, start, agent, "8", ranks=2)
        job.program.await_out("stops")
        agent.order("resize", job="a", cpus=1)
        agent.await_log(r"event=enforced job=a task=1 .*action=rest")
        pid = job.rows()[1]["pid"]

        assert agents.affinity(pid) == job.rows()[0]["granted"]
        agent.assert_clean()

        agent.order("resize", job="a", cpus=2)
        wait_until(lambda: agents.affinity(pid) == job.rows()[1]["granted"] != "", job.show, 30)
        job.end()
