"""MPI programs that know nothing of drom, under a real agent: C, Fortran and Python, with Open MPI and with MPICH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dromlib import native
from dromlib.cpulist import parse_cpulist
from tests.support.agents import Agent, Program, Programs, affinity, start_agent, wait_until
from tests.support.example_programs import PATIENT, await_working, finish, mpi_environment
from tests.support.mpi_programs import MPICH

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

HERE = Path(__file__).parent
REAL = {0, 1, 2, 3} <= os.sched_getaffinity(0)
"""Whether there are CPUs for two ranks of two; else the agent shows a larger machine, and masks stay as they are."""
CALL = re.compile(r"CALL\((\w+), (\w+), (\d+)\)")


@dataclass(frozen=True)
class Library:
    """An MPI library: the names of its launcher and compilers, and how to leave the binding of ranks to us."""

    launcher: str
    c: str
    fortran: str
    words: tuple[str, ...]

    def mpirun(self, ranks: int, *command: str | Path) -> list[str]:
        """Return the command line of a launch."""
        return [self.launcher, "-n", str(ranks), *self.words, *map(str, command)]


LIBRARIES = {
    "openmpi": Library("mpirun.openmpi", "mpicc.openmpi", "mpif90.openmpi", ("--oversubscribe", "--bind-to", "none")),
    "mpich": Library("mpirun.mpich", "mpicc.mpich", "mpif90.mpich", ("-bind-to", "none")),
}


@pytest.fixture(scope="module", params=LIBRARIES)
def mpi(request: pytest.FixtureRequest) -> Library:
    """Each MPI library that is here."""
    library = LIBRARIES[request.param]
    if not shutil.which(library.launcher) or not shutil.which(library.c):
        pytest.skip(f"needs {library.launcher} and {library.c}")
    return library


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent of four cores, real where there are so many."""
    machine = ("--topology" if REAL else "--emulate", "pack:2 core:2")
    with start_agent(tmp_path_factory.mktemp("node"), *machine, "--grace", PATIENT) as started:
        yield started


def build(compiler: str, source: str, target: Path, *flags: str) -> Path:
    """Compile a program of this folder; skip where the compiler is missing."""
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    subprocess.run([compiler, "-O1", "-g", "-pthread", *flags, str(HERE / source), "-o", str(target)], check=True)
    return target


def build_kind(kind: str, mpi: Library, folder: Path) -> list[str | Path]:
    """Return the command line of a program, without the file that stops it."""
    if kind == "python":
        pytest.importorskip("mpi4py", reason="needs mpi4py")
        if mpi is LIBRARIES["mpich"] and not MPICH.exists():
            pytest.skip(f"needs {MPICH}")
        return [sys.executable, HERE / "mpi_program.py"]
    if kind in {"mpi", "mpi_f08"}:
        return [build(mpi.fortran, "mpi.F90", folder / kind, f"-DMODULE={kind}")]
    flags = ["-fopenmp"] if kind == "openmp" else []
    return [build(mpi.c, "mpi.c", folder / kind, *flags), "threads" if kind == "threads" else "steps"]


def extra(mpi: Library, folder: Path) -> dict[str, str]:
    """Return what a launch needs in its environment."""
    (folder / "mpi4py").mkdir()
    (folder / "mpi4py" / "libmpi.so.12").symlink_to(MPICH)
    if mpi is not LIBRARIES["mpich"]:
        return mpi_environment(folder)
    return mpi_environment(folder) | {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(folder / "mpi4py")}


def resize(agent: Agent, program: Program, cpus: int, points: str) -> None:
    """Resize job m and see that both tasks have put that in force themselves, in the masks of their threads."""
    agent.order("resize", job="m", cpus=2 * cpus)
    assert await_working(agent, "m", 2, [cpus, cpus]) == [cpus, cpus]
    rows = agent.order("ps")["tasks"]
    assert [(row["job"], row["task"], row["points"]) for row in rows] == [("m", 0, points), ("m", 1, points)]
    assert program.process.poll() is None, program.show()
    if REAL:
        assert [parse_cpulist(affinity(row["pid"])) for row in rows] == [parse_cpulist(row["granted"]) for row in rows]


def await_threads(program: Program, count: int) -> None:
    """Wait until both ranks have said last that their regions have so many threads; 0: they have none."""
    for rank in (0, 1) if count else ():
        program.await_out(rf"(?s)rank {rank} threads {count}\n(?!.*rank {rank})")


@pytest.mark.parametrize("kind", ["steps", "threads", "openmp", "mpi", "mpi_f08", "python"])
def test_ranks_follow_their_grants(agent: Agent, mpi: Library, kind: str, start: Programs, tmp_path: Path) -> None:
    """Two ranks of an unmodified program are two tasks of one job, resized at their MPI calls; each answer is right."""
    stop = tmp_path / "stop"
    command = [*build_kind(kind, mpi, tmp_path), stop]
    launch = agent.run("--job", "m", "--openmp-runtime", "libgomp", "--", *command)
    program = start.start(*mpi.mpirun(2, *launch), **extra(mpi, tmp_path))
    await_working(agent, "m", 2, [2, 2])
    points = "libgomp and mpi" if kind == "openmp" else "mpi"
    await_threads(program, 2 if kind == "openmp" else 0)
    wait_until(lambda: [row["points"] for row in agent.order("ps")["tasks"]] == [points, points], lambda: agent.log)
    for cpus in (1, 2, 1):
        resize(agent, program, cpus, points)
        await_threads(program, cpus if kind == "openmp" else 0)
    stop.touch()
    status, answer = finish(program)
    assert (status, program.err) == (0, ""), program.show()
    assert re.fullmatch(r"right after [1-9]\d* steps", answer), program.show()
    agent.await_tasks()


def test_the_mask_follows_the_grant(mpi: Library, start: Programs, tmp_path: Path) -> None:
    """A rank leaves a real CPU when it has to, and comes back to it."""
    stop = tmp_path / "stop"
    command = [*build_kind("steps", mpi, tmp_path), stop]
    with start_agent(tmp_path, "--topology", "pack:2 core:1", "--grace", PATIENT) as agent:
        program = start.start(*mpi.mpirun(1, *agent.run("--job", "a", "--", *command)), **extra(mpi, tmp_path))
        await_working(agent, "a", 1, [2])
        for cpus, mask in ((1, "0"), (2, "0,1")):
            agent.order("resize", job="a", cpus=cpus)
            row = agent.await_tasks(a=mask.replace(",", "-"))["a"]
            assert (row["mode"], affinity(row["pid"])) == ("cooperative", mask)
        stop.touch()
        assert finish(program)[0] == 0, program.show()


def test_a_tool_that_is_loaded_as_well_sees_every_call(
    agent: Agent, mpi: Library, start: Programs, tmp_path: Path
) -> None:
    """A tool that stands in front of MPI by LD_PRELOAD is called after us, once for each call."""
    tool = build(mpi.c, "mpi_tool.c", tmp_path / "tool.so", "-shared", "-fPIC")
    stop = tmp_path / "stop"
    words = agent.run("--job", "t", "--", *build_kind("steps", mpi, tmp_path), stop)
    environment = extra(mpi, tmp_path) | {"LD_PRELOAD": str(tool)}
    program = start.start(*mpi.mpirun(1, *words), **environment)
    await_working(agent, "t", 1)
    stop.touch()
    assert finish(program)[0] == 0, program.show()
    steps, seen = (program.await_out(pattern)[1] for pattern in (r"after (\d+) steps", r"the tool saw (\d+)"))
    assert steps == seen
    agent.await_tasks()


def test_the_parameters_are_those_of_the_library(mpi: Library, tmp_path: Path) -> None:
    """Every function that we stand in front of has as many parameters as we pass on."""
    (tmp_path / "include.c").write_text("#include <mpi.h>\n", encoding="utf-8")
    command = [mpi.c, "-E", "-P", str(tmp_path / "include.c")]
    include = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    table = (HERE.parent.parent / "dromlib/native/preload/mpi_calls.h").read_text(encoding="utf-8")
    calls = CALL.findall(table)
    assert len(calls) > 70
    for name, fortran, count in calls:
        assert fortran == name.lower()
        for form in (name, f"{name}_c"):
            declared = re.search(rf"\bMPI_{form}\(([^;]*?)\)(?:\s|__attribute__\(\(.*?\)\))*;", include)
            assert declared or form != name, name
            if declared:
                parameters = declared[1].split(",") if declared[1] != "void" else []
                assert len(parameters) == int(count), declared[0]


def test_programs_without_mpi_find_none(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """A program that asks the loader whether there is MPI is answered as ever, and nobody attaches in it."""
    source = "extern int MPI_Init(void) __attribute__((weak)); int main(void) { return MPI_Init != 0; }"
    program = tmp_path / "without"
    subprocess.run(["gcc", "-xc", "-", "-fPIE", "-o", str(program)], input=source, text=True, check=True)
    started = start.start(*agent.run("--job", "w", "--", program))
    assert (started.wait(), started.err) == (0, "")
    assert "event=responder_set job=w" not in agent.log


def test_ranks_that_share_a_cpu_give_way_while_they_wait(start: Programs, tmp_path: Path) -> None:
    """Below `drom run -- mpirun` a waiting rank of Open MPI takes less than half as much CPU time as one that works."""
    library = LIBRARIES["openmpi"]
    if not shutil.which(library.launcher):
        pytest.skip(f"needs {library.launcher}")
    program = build(library.c, "mpi.c", tmp_path / "mpi")
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        launch = library.mpirun(2, program, "waits", "never")
        words = agent.run("--cpus", "1", "--", *launch)
        started = start.start(*words, **mpi_environment(tmp_path))
        said = started.await_out(r"waited using (\d+) percent")
        assert int(said[1]) < 50, started.show()
        assert finish(started)[0] == 0


def test_only_a_launch_that_shares_its_cpus_is_told_to_yield(agent: Agent, start: Programs) -> None:
    """drom-run sets it for Open MPI unless it launches a rank, or the user has set it."""
    words = agent.run("--", "sh", "-c", "echo [$OMPI_MCA_mpi_yield_when_idle]")
    rank = {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    for environment, said in (({}, "[1]\n"), ({"OMPI_MCA_mpi_yield_when_idle": "0"}, "[0]\n"), (rank, "[]\n")):
        program = start.start(*words, **environment)
        assert program.wait() == 0
        assert program.out == said
    wait_until(lambda: not agent.tasks(), agent.tasks)


def test_without_an_agent_an_mpi_program_is_as_ever(mpi: Library, start: Programs, tmp_path: Path) -> None:
    """The library loaded by hand, with no agent anywhere: right answers, and not a word."""
    (tmp_path / "stop").touch()
    mine = extra(mpi, tmp_path) | {"DROM_RUNTIME_DIR": str(tmp_path)}
    command = ["env", f"LD_PRELOAD={native.preload_path()}", *build_kind("steps", mpi, tmp_path), tmp_path / "stop"]
    program = start.start(*mpi.mpirun(2, *command), **mine)
    assert finish(program) == (0, "right after 1 steps"), program.show()
    assert program.err == ""


SPAWN = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    MPI_Comm other;
    MPI_Init(&argc, &argv);
    MPI_Comm_get_parent(&other);
    int is_first = other == MPI_COMM_NULL;
    if (is_first)
        MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &other, MPI_ERRCODES_IGNORE);
    printf("%s %d\\n", is_first ? "first" : "spawned", getpid());
    fflush(stdout);
    while (access(getenv("STOP"), F_OK))
        usleep(10000);
    MPI_Comm_disconnect(&other);
    return MPI_Finalize();
}
"""


@pytest.mark.parametrize("inside", [False, True])
def test_spawned_processes_belong_to_the_task_of_the_program(start: Programs, tmp_path: Path, *, inside: bool) -> None:
    """They are children of mpirun: with `mpirun -n 1 drom run` they are known by the environment that it hands on."""
    mpi = LIBRARIES["openmpi"]
    source, program, stop = tmp_path / "spawn.c", tmp_path / "spawn", tmp_path / "stop"
    source.write_text(SPAWN, encoding="utf-8")
    if not shutil.which(mpi.c):
        pytest.skip(f"needs {mpi.c}")
    subprocess.run([mpi.c, str(source), "-o", str(program)], check=True)
    with start_agent(tmp_path, "--topology", "pack:2 core:1", "--grace", "0.2") as agent:
        if inside:
            command = agent.run("--job", "s", "--", *mpi.mpirun(1, program))
        else:
            command = mpi.mpirun(1, *agent.run("--job", "s", "--", program))
        launched = start.start(*command, **extra(mpi, tmp_path), STOP=str(stop))
        pids = [int(launched.await_out(rf"{who} (\d+)")[1]) for who in ("first", "spawned")]
        agent.order("resize", job="s", cpus=1)
        wait_until(lambda: [affinity(pid) for pid in pids] == ["0", "0"], lambda: agent.log)
        stop.touch()
        assert launched.wait() == 0
