"""OpenMP programs that know nothing of drom, under a real agent: built by gcc and by clang, on both runtimes."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.system.proc import thread_masks

from dromlib import layout, native
from dromlib.layout import MAILBOX
from tests.support.agents import Agent, Program, Programs, affinity, environment, start_agent, wait_until
from tests.support.example_programs import build as build_example

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

SOURCES = Path(__file__).parent
OPENBLAS = Path(f"/usr/lib/{platform.machine()}-linux-gnu/openblas-openmp")
BOTH, ONE, BOUND = "threads 2 cpus 01 01", "threads 1 cpus 0", "threads 2 cpus 0 0"
PINNED = "threads 2 cpus 0 1"


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent of two cores, patient with programs on a busy machine."""
    with start_agent(tmp_path_factory.mktemp("node"), "--topology", "pack:2 core:1", "--grace", "20") as agent:
        yield agent


@pytest.fixture
def agent(shared_agent: Agent, start: Programs) -> Iterator[Agent]:
    """The shared agent; the node is empty again after the test."""
    yield shared_agent
    shared_agent.assert_clean()
    start.kill()
    shared_agent.await_tasks()


@pytest.fixture(scope="module", params=["gcc-libgomp", "gcc-libomp", "clang-libomp"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Name each compiler and the runtime that its programs run on."""
    compiler, runtime = request.param.split("-")
    if runtime == "libomp" and not has_libomp():
        pytest.skip("needs LLVM's OpenMP runtime (Debian: libomp-dev)")
    return Build(compiler, runtime, tmp_path_factory.mktemp(compiler))


@dataclass(frozen=True)
class Build:
    """A compiler, the OpenMP runtime to run its programs on, and where they go."""

    compiler: str
    runtime: str
    folder: Path

    def program(self, *flags: str) -> Path:
        """Compile openmp.c."""
        if not shutil.which(self.compiler):
            pytest.skip(f"needs {self.compiler}")
        target = self.folder / f"openmp{len(list(self.folder.iterdir()))}"
        command = [self.compiler, "-O1", "-fopenmp", *flags, str(SOURCES / "openmp.c"), "-o", str(target)]
        subprocess.run(command, check=True)
        return target


def has_libomp() -> bool:
    """Tell whether LLVM's runtime is installed."""
    try:
        ctypes.CDLL("libomp.so.5")
    except OSError:
        return False
    return True


def await_line(program: Program, line: str) -> None:
    """Wait until the program has said this last."""
    wait_until(lambda: program.out.splitlines()[-1:] == [line], program.show)


def has_cpus(pid: int, cpus: str) -> bool:
    """Return whether these are the CPUs of the threads of a process."""
    return affinity(pid) == cpus


def resize(agent: Agent, build: Build, program: Program, expected: dict[int, str], cycles: int = 3) -> None:
    """Shrink and grow job a, and see that the program's own threads say what is expected for each number of CPUs."""
    for cpus in [1, 2] * cycles:
        agent.order("resize", job="a", cpus=cpus)
        rows = agent.await_tasks(a="0" if cpus == 1 else "0-1")
        await_line(program, expected[cpus])
        assert (rows["a"]["mode"], rows["a"]["points"]) == ("cooperative", build.runtime)
        # A thread that has just begun to fork may have the CPUs of the runtime's start for an instant.
        wait_until(partial(has_cpus, program.pid, "0" if cpus == 1 else "0,1"), program.show)
    assert "event=applied job=a" in agent.log
    assert program.err == ""


def await_products(program: Program) -> None:
    """Wait until the program has made some more matrix products."""
    said = len(program.out)
    wait_until(lambda: "products" in program.out[said:], program.show, 60)


def begin(agent: Agent, start: Programs, build: Build, *words: str | Path, **extra: str) -> Program:
    """Start a program as job a and wait for its first region."""
    program = start.start(*agent.run("--job", "a", "--openmp-runtime", build.runtime, *words), **extra)
    program.await_out("^threads")
    return program


def test_size_and_masks_follow_the_grant(agent: Agent, start: Programs, build: Build) -> None:
    """A program that asks in each region how many threads it has gets as many as it has CPUs, and all are bound."""
    resize(agent, build, begin(agent, start, build, build.program(), "loop"), {1: ONE, 2: BOTH})


def test_who_asks_before_each_region_gets_what_he_was_told(agent: Agent, start: Programs, build: Build) -> None:
    """Work that is split by hand by a fresh number is resized, and none of it stays undone."""
    resize(agent, build, begin(agent, start, build, build.program(), "asks"), {1: ONE, 2: BOTH})


def test_who_puts_the_number_back_is_resized(agent: Agent, start: Programs, build: Build) -> None:
    """A number that the program was told, and sets after another one, is no limit for the time after."""
    resize(agent, build, begin(agent, start, build, build.program(), "restores"), {1: ONE, 2: BOTH})


def test_a_number_that_is_set_past_us_counts(agent: Agent, start: Programs, build: Build) -> None:
    """Who sets it by the runtime's own function is told it, and has it until he sets another one."""
    runtime = {"libgomp": "libgomp.so.1", "libomp": "libomp.so.5"}[build.runtime]
    program = begin(agent, start, build, build.program(), "outside", runtime)
    for cpus in (1, 2, 1, 2):
        agent.order("resize", job="a", cpus=cpus)
        agent.await_tasks(a="0" if cpus == 1 else "0-1")
    assert "wrong" not in program.out
    assert program.process.poll() is None


@pytest.mark.parametrize("shape", ["-O0", "-O2"])
@pytest.mark.parametrize("kind", ["lazy", "lazy-maximum", "lazy-helper"])
def test_who_asks_in_the_first_run_of_a_region_keeps_the_number(
    agent: Agent, start: Programs, build: Build, kind: str, shape: str
) -> None:
    """Buffers that a region makes for itself after a shrink are for all threads: it has them for ever."""
    resize(agent, build, begin(agent, start, build, build.program(shape), kind), {1: BOUND, 2: BOTH})


def test_who_asks_in_a_later_run_of_a_region_keeps_the_number(agent: Agent, start: Programs, build: Build) -> None:
    """Buffers that a region makes late are for as many threads as it then has; it never gets more."""
    program = begin(agent, start, build, build.program(), "lazy-late")
    resize(agent, build, program, {1: ONE, 2: "threads 1 cpus 01"})


@pytest.mark.parametrize("kind", ["asked-once", "logs", "counted", "shares", "buffers", "clauses"])
def test_who_depends_on_a_number_keeps_it(agent: Agent, start: Programs, build: Build, kind: str) -> None:
    """Work split by an old number, buffers made by one, and num_threads clauses: bound to fewer CPUs, never resized."""
    resize(agent, build, begin(agent, start, build, build.program(), kind), {1: BOUND, 2: BOTH})


def test_threadprivate_data_survives(agent: Agent, start: Programs, build: Build) -> None:
    """LLVM's runtime keeps the threads of a team that shrinks; libgomp would not, so its team stays."""
    program = begin(agent, start, build, build.program("-DTHREAD_DATA"), "threadprivate")
    resize(agent, build, program, {1: BOUND if build.runtime == "libgomp" else ONE, 2: BOTH})


def test_the_users_binding_is_kept_within_the_grant(agent: Agent, start: Programs, build: Build) -> None:
    """With OMP_PROC_BIND each thread has a core of its own, also after growing, and none outside the grant."""
    program = begin(agent, start, build, build.program(), "loop", OMP_PROC_BIND="close", OMP_PLACES="cores")
    resize(agent, build, program, {1: ONE, 2: PINNED})
    (box,) = (agent.dir / "mail").iterdir()
    assert MAILBOX.read(box.read_bytes(), "points") >> layout.ENUMS["POINTS"].index("pinned") & 1


def test_a_binding_that_the_program_asks_for_itself_is_kept(agent: Agent, start: Programs, build: Build) -> None:
    """LLVM's runtime looks at the first region; GNU's has done so before main, and so has LLVM's in its place."""
    program = begin(agent, start, build, build.program(), "places")
    resize(agent, build, program, {1: ONE, 2: PINNED if build.compiler == "clang" else BOTH})


def test_the_users_binding_is_known_to_who_starts_early(agent: Agent, start: Programs, build: Build) -> None:
    """A library that asks its OpenMP in a constructor, as OpenBLAS does, runs before any code of ours."""
    library = build.folder / "libearly.so"
    text = (
        "int omp_get_max_threads(void);\n__attribute__((constructor)) static void ask(void) { omp_get_max_threads(); }"
    )
    command = [build.compiler, "-fopenmp", "-shared", "-fPIC", "-xc", "-", "-o", str(library)]
    subprocess.run(command, input=text, text=True, check=True)
    program = build.program("-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{build.folder}")
    begun = begin(agent, start, build, program, "loop", OMP_PROC_BIND="close", OMP_PLACES="cores")
    resize(agent, build, begun, {1: ONE, 2: PINNED})


def test_threads_that_the_runtime_meets_late_are_bound(agent: Agent, start: Programs, build: Build) -> None:
    """LLVM's runtime gives each thread of the program that forks the CPUs of its start; it has those of the grant."""
    resize(agent, build, begin(agent, start, build, build.program(), "roots"), {1: BOUND, 2: BOTH})


@pytest.mark.skipif(os.sysconf("SC_THREAD_STACK_MIN") > 16384, reason="threads need larger stacks here")
def test_small_stacks_have_room_for_a_resize(agent: Agent, start: Programs, build: Build) -> None:
    """The thread that forks, and attaches, has a stack of 16 KiB, and so have those of its team."""
    program = begin(agent, start, build, build.program(), "narrow", OMP_STACKSIZE="16k")
    resize(agent, build, program, {1: ONE, 2: BOTH})


def test_next_region_follows_whatever_was_told(agent: Agent, start: Programs, build: Build) -> None:
    """With --malleability next-region a program with buffers is resized as well, and told the launch number."""
    words = ("--malleability", "next-region")
    resize(agent, build, begin(agent, start, build, *words, build.program(), "buffers"), {1: ONE, 2: BOTH})


@pytest.mark.parametrize(
    ("how", "small"),
    [("auto processors", ONE), ("auto sets-processors", BOUND), ("next-region sets-processors", ONE)],
)
def test_processors_are_those_that_the_job_can_have(
    agent: Agent, start: Programs, build: Build, how: str, small: str
) -> None:
    """Launched on one CPU of two, a program never has more threads than processors, and grows if it sets as many."""
    other = start.start(*agent.run("--job", "b", "--class", "rigid", "--cpus", "1", "sleep", "600"))
    agent.await_tasks(b="1")
    malleability, kind = how.split()
    program = begin(agent, start, build, "--malleability", malleability, build.program(), kind)
    agent.await_tasks(a="0", b="1")
    await_line(program, small)
    other.kill()
    agent.await_tasks(a="0-1")
    await_line(program, BOTH)


def test_bind_only_is_bound_from_outside(agent: Agent, start: Programs, build: Build) -> None:
    """With --malleability bind-only nothing is loaded into the program, and `drom ps` says that nobody answers."""
    program = begin(agent, start, build, "--malleability", "bind-only", build.program(), "loop")
    agent.order("resize", job="a", cpus=1)
    assert agent.await_tasks(a="0")["a"]["mode"] == "bind-only"
    await_line(program, BOUND)
    assert "libdrom" not in Path(f"/proc/{program.pid}/maps").read_text(encoding="utf-8")


def test_without_an_agent_a_program_is_as_ever(tmp_path: Path, start: Programs, build: Build) -> None:
    """The library loaded by hand, with no agent anywhere: as many threads as ever, and not a word."""
    mine = {"LD_PRELOAD": str(native.preload_path()), "DROM_RUNTIME_DIR": str(tmp_path), "OMP_NUM_THREADS": "3"}
    program = start.start(build.program(), "loop", **mine)
    program.await_out("^threads 3 cpus")
    assert program.err == ""


def test_threads_made_after_a_shrink_are_bound(agent: Agent, start: Programs, build: Build) -> None:
    """LLVM's runtime gives a new thread the CPUs that the process had at first; then it has those of the grant."""
    program = start.start(*agent.run("--job", "a", "--openmp-runtime", build.runtime, build.program(), "late"))
    agent.await_tasks(a="0-1")
    agent.order("resize", job="a", cpus=1)
    agent.await_tasks(a="0")
    program.await_out("^threads")
    assert program.out == f"{BOUND}\n"


LATE = """
#include <drom.h>
#include <unistd.h>
int main(void) {
    drom *d = drom_attach();
    for (;; usleep(1000)) {
        drom_grant g;
        if (!drom_poll(d) || drom_take(d, &g) <= 0)
            continue;
        drom_apply(d, &g);
        if (g.ncpus == 2)
#pragma omp parallel num_threads(16)
            pause();
    }
}
"""
"""A program whose first region comes after a growth and has many threads."""


def test_threads_made_after_a_growth_have_all_cpus(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """LLVM's runtime gives them those of the program's start, also where the program attends to grants by itself.

    The thread that makes them has these, too, until it has made the last one.
    """
    if not has_libomp():
        pytest.skip("needs LLVM's OpenMP runtime (Debian: libomp-dev)")
    (tmp_path / "late.c").write_text(LATE, encoding="utf-8")
    late = build_example(tmp_path / "late.c", tmp_path)
    other = start.start(*agent.run("--job", "b", "--class", "rigid", "--cpus", "1", "sleep", "600"))
    agent.await_tasks(b="1")
    program = start.start(*agent.run("--job", "a", "--openmp-runtime", "libomp", late))
    agent.await_tasks(a="0", b="1")
    wait_until(lambda: agent.tasks()["a"]["polls"], program.show)
    assert set(thread_masks([program.pid]).values()) == {0b01}
    other.kill()
    agent.await_tasks(a="0-1")
    wait_until(lambda: list(thread_masks([program.pid]).values()) == [0b11] * 16, program.show)


def test_a_program_that_forks_is_resized(agent: Agent, start: Programs, build: Build) -> None:
    """Children made between regions end well, and say nothing for their parent."""
    resize(agent, build, begin(agent, start, build, build.program(), "forks"), {1: ONE, 2: BOTH}, cycles=1)


def test_a_program_that_closes_every_descriptor_is_resized(agent: Agent, start: Programs, build: Build) -> None:
    """Files that it then opens are its own: nothing of what is told the agent is written into them."""
    resize(agent, build, begin(agent, start, build, build.program(), "closes"), {1: ONE, 2: BOTH})


def test_a_program_that_clears_its_environment_is_resized(agent: Agent, start: Programs, build: Build) -> None:
    """What drom-run has said there is known from before, also which agent it was."""
    resize(agent, build, begin(agent, start, build, build.program(), "clears"), {1: ONE, 2: BOTH}, cycles=1)


def test_a_program_without_its_environment_is_bound(agent: Agent, start: Programs, build: Build) -> None:
    """A program whose environment was cleared has nothing loaded: it is bound from outside, and `drom ps` says so."""
    program = begin(agent, start, build, "env", "-i", build.program(), "loop")
    agent.order("resize", job="a", cpus=1)
    row = agent.await_tasks(a="0")["a"]
    assert (row["mode"], row["points"]) == ("bind-only", "")
    await_line(program, BOUND)
    assert re.search(r"^a .* bind-only ", agent.cli("ps").stdout, re.MULTILINE)


def test_a_program_with_points_of_its_own_is_managed_once(agent: Agent, start: Programs) -> None:
    """An OpenMP program that attaches through drom.h wins over what drom-run has loaded into it."""
    program = start.start(*agent.run("--job", "a", native.example_path("jacobi"), "--seconds", "600"), DROM_LOG="1")
    agent.await_tasks(a="0-1")
    wait_until(lambda: agent.tasks()["a"]["polls"] and not agent.tasks()["a"]["points"], program.show)
    for cpus in (1, 2):
        agent.order("resize", job="a", cpus=cpus)
        row = agent.await_tasks(a="0" if cpus == 1 else "0-1")["a"]
        assert (row["mode"], row["points"]) == ("cooperative", "")
    applied = re.findall(r"event=applied .* epoch=(\d+)", program.err)
    assert sorted(applied, key=int)[-2:] == sorted(set(applied), key=int)[-2:]


def team(folder: Path, name: str, *flags: str | Path, compiler: str = "gcc") -> Path:
    """Compile team.c: a library."""
    library = folder / f"lib{name}.so"
    command = [compiler, "-fPIC", "-shared", "-fopenmp", *flags, SOURCES / "team.c", "-o", library]
    subprocess.run(command, check=True)
    return library


def main_of_teams(folder: Path, *flags: str) -> Path:
    """Compile team.c: the program that opens libraries."""
    program = folder / "main"
    subprocess.run(["gcc", "-O1", "-DMAIN", *flags, SOURCES / "team.c", "-o", program], check=True)
    return program


def resize_teams(agent: Agent, program: Program, expected: dict[int, str], cycles: int = 3) -> None:
    """Shrink and grow job a, and see what is said of the teams for each number of CPUs."""
    program.await_out("^threads")
    for cpus in [1, 2] * cycles:
        agent.order("resize", job="a", cpus=cpus)
        agent.await_tasks(a="0" if cpus == 1 else "0-1")
        await_line(program, expected[cpus])


@pytest.fixture(params=["libgomp", "libomp"])
def runtime(request: pytest.FixtureRequest) -> str:
    """Name each runtime."""
    if request.param == "libomp" and not has_libomp():
        pytest.skip("needs LLVM's OpenMP runtime (Debian: libomp-dev)")
    return str(request.param)


@pytest.mark.parametrize("shape", ["-O0", "-O2"])
def test_a_region_forked_in_the_last_call_is_its_files(
    agent: Agent, start: Programs, tmp_path: Path, runtime: str, shape: str
) -> None:
    """A library that asks once keeps its number, also where its code jumps to the runtime from the program's call."""
    library = team(tmp_path, "team", shape, "-DTAIL", "-DONCE")
    words = ("--openmp-runtime", runtime, str(main_of_teams(tmp_path)), str(library))
    environment = {"LD_PRELOAD": f"{runtime}.so.5"} if runtime == "libomp" else {}
    resize_teams(agent, start.start(*agent.run("--job", "a", *words), **environment), {1: "threads 2", 2: "threads 2"})


def test_a_blas_that_sets_what_it_was_told_follows(agent: Agent, start: Programs, tmp_path: Path, runtime: str) -> None:
    """To set the number that one was just told says nothing about what one could use."""
    libraries = [team(tmp_path, name, "-O1", "-DBLAS") for name in ("one", "two")]
    words = ("--openmp-runtime", runtime, str(main_of_teams(tmp_path)), *map(str, libraries))
    environment = {"LD_PRELOAD": f"{runtime}.so.5"} if runtime == "libomp" else {}
    program = start.start(*agent.run("--job", "a", *words), **environment)
    resize_teams(agent, program, {1: "threads 1 1", 2: "threads 2 2"})


def test_a_tool_with_some_functions_of_a_runtime_is_none(
    agent: Agent, start: Programs, build: Build, tmp_path: Path
) -> None:
    """Where another library stands before the runtime, that is found behind it, and teams follow."""
    tool = tmp_path / "tool.so"
    subprocess.run(["gcc", "-O1", "-fPIC", "-shared", SOURCES / "tool.c", "-o", tool], check=True)
    program = begin(agent, start, build, build.program(), "loop", LD_PRELOAD=str(tool))
    resize(agent, build, program, {1: ONE, 2: BOTH})


def test_of_many_runtimes_eight_are_managed(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """Libraries may bring one each; regions in the ninth are as ever."""
    found = Path(f"/usr/lib/{platform.machine()}-linux-gnu/libgomp.so.1")
    if not found.exists():
        pytest.skip("needs libgomp where Debian has it")
    libraries: list[Path] = []
    for number in range(9):
        runtime = tmp_path / f"libgom{number}.so.1"
        runtime.write_bytes(found.read_bytes().replace(b"libgomp.so.1\0", runtime.name.encode() + b"\0"))
        made = tmp_path / f"{number}.o"
        subprocess.run(["gcc", "-O1", "-fPIC", "-fopenmp", "-c", SOURCES / "team.c", "-o", made], check=True)
        libraries.append(tmp_path / f"lib{number}.so")
        link = ["gcc", "-shared", str(made), str(runtime), f"-Wl,-rpath,{tmp_path}", "-o", str(libraries[-1])]
        subprocess.run(link, check=True)
    words = ("--openmp-runtime", "libgomp", str(main_of_teams(tmp_path)), *map(str, libraries))
    program = start.start(*agent.run("--job", "a", *words))
    resize_teams(agent, program, {1: "threads" + 8 * " 1" + " 2", 2: "threads" + 9 * " 2"}, cycles=1)


def test_what_is_known_of_a_library_ends_with_it(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """Another one that is loaded in its place is not held to the answers that it had."""
    libraries = [team(tmp_path, "asks", "-O1", "-DTAIL", "-DONCE"), team(tmp_path, "not", "-O1", "-DTAIL")]
    words = ("--openmp-runtime", "libgomp", str(main_of_teams(tmp_path, "-DRELOAD")), *map(str, libraries))
    program = start.start(*agent.run("--job", "a", *words), LD_PRELOAD="libgomp.so.1")
    program.await_out("^threads")
    if "in its place" not in program.out:
        pytest.skip("the loader has put it elsewhere")
    resize_teams(agent, program, {1: "threads 1", 2: "threads 2"}, cycles=1)


@pytest.mark.parametrize("kind", ["-DTAIL", "-DTAIL -DONCE"])
def test_a_library_without_versions_is_followed(
    agent: Agent, start: Programs, tmp_path: Path, runtime: str, kind: str
) -> None:
    """One that was not linked to the OpenMP runtime it uses is resized, or keeps the number that it was told."""
    made = tmp_path / "team.o"
    subprocess.run(["gcc", "-O1", "-fPIC", "-fopenmp", *kind.split(), "-c", SOURCES / "team.c", "-o", made], check=True)
    library = tmp_path / "libteam.so"
    subprocess.run(["gcc", "-shared", made, "-o", library], check=True)
    loaded = {"libgomp": "libgomp.so.1", "libomp": "libomp.so.5"}[runtime]
    words = ("--openmp-runtime", runtime, str(main_of_teams(tmp_path)), str(library))
    program = start.start(*agent.run("--job", "a", *words), LD_PRELOAD=loaded)
    small = "threads 2" if "ONCE" in kind else "threads 1"
    resize_teams(agent, program, {1: small, 2: "threads 2"}, cycles=1)


def test_two_runtimes_in_one_process_are_both_managed(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """Libraries of gcc and of clang that one program opens: the teams of both follow, each in its own runtime."""
    if not has_libomp() or not shutil.which("clang"):
        pytest.skip("needs clang with its OpenMP library (Debian: clang, libomp-dev)")
    source = str(SOURCES / "team.c")
    libraries = [tmp_path / f"lib{compiler}.so" for compiler in ("gcc", "clang")]
    for library in libraries:
        command = [library.stem.removeprefix("lib"), "-O1", "-fPIC", "-shared", "-fopenmp", source, "-o", str(library)]
        subprocess.run(command, check=True)
    subprocess.run(["gcc", "-O1", "-DMAIN", source, "-o", str(tmp_path / "main")], check=True)
    program = start.start(*agent.run("--job", "a", tmp_path / "main", *libraries))
    for cpus in (1, 2, 1):
        program.await_out("^threads")
        agent.order("resize", job="a", cpus=cpus)
        rows = agent.await_tasks(a="0" if cpus == 1 else "0-1")
        await_line(program, f"threads {cpus} {cpus}")
    assert rows["a"]["points"] == "libomp and libgomp"


PARTS = """
#include <omp.h>
long FUNCTION(long n);
long FUNCTION(long n)
{
    long total = 0;
    int members = 0, told = 0;
    omp_set_num_threads(2);
#pragma omp parallel reduction(+ : total, members, told)
    {
        int index = omp_get_thread_num(), count = omp_get_num_threads();
        for (long i = n * index / count; i < n * (index + 1) / count; i++)
            total += i * omp_get_team_size(1);
        members++;
        told += count;
    }
    if (told != members * members)
        return -told;
    return total + omp_get_max_threads() * 10000000L + omp_get_num_procs() * 100000000L;
}
"""
"""A library that splits its work by hand; its answer has all that it is told of threads in it."""
ASKER = """
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
long parts(long n);
int main(int argc, char **argv)
{
    int size = 0, members = 0;
    long (*sum)(long) = 0;
#ifdef LINKED
    sum = parts;
#else
    void *library = dlopen(argv[1], RTLD_NOW | (argc > 2 ? RTLD_GLOBAL : RTLD_LOCAL));
    *(void **)&sum = library ? dlsym(library, "parts") : 0;
#endif
    for (int i = 0; i < 3; i++) {
        omp_set_num_threads(2);
        members = 0;
#pragma omp parallel
        {
#pragma omp atomic
            members++;
#pragma omp single
            size = 10 * omp_get_num_threads() + omp_get_team_size(1);
        }
        printf("team %d of %d, told %d %d, answer %ld\\n", members, omp_get_max_threads(), size, omp_get_num_procs(),
               sum ? sum(1000) : -1);
    }
    return argc < 1;
}
"""
"""A program with regions of its own that has such a library, linked or opened."""


INTEL = Path(sys.prefix) / "lib" / "libiomp5.so"
"""Intel's OpenMP, as PyPI has it."""


def made(compiler: str, text: str, target: Path, *flags: str | Path) -> Path:
    """Compile C with OpenMP; `intel` is clang with Intel's runtime."""
    source = target.with_suffix(".c")
    source.write_text(text, encoding="utf-8")
    if compiler == "intel":
        compiled = target.with_suffix(".o")
        shared = [flag for flag in flags if str(flag).startswith(("-D", "-fPIC"))]
        subprocess.run(["clang", "-O1", "-fopenmp", *shared, "-c", source, "-o", compiled], check=True)
        runtime = [str(INTEL), f"-Wl,-rpath,{INTEL.parent}"]
        subprocess.run(["clang", compiled, *flags, *runtime, "-o", target], check=True)
    else:
        subprocess.run([compiler, "-O1", "-fopenmp", source, *flags, "-o", target], check=True)
    return target


MATRIX = [f"{main} {library}" for main in ("gcc", "clang", "intel", "none") for library in ("gcc", "clang", "intel")]


@pytest.mark.parametrize("way", ["linked", "local", "global", "with another"])
@pytest.mark.parametrize("compilers", MATRIX)
def test_each_file_is_answered_by_the_runtime_it_would_have_alone(
    agent: Agent, start: Programs, tmp_path: Path, compilers: str, way: str
) -> None:
    """Whichever compilers made a program and its library, however that is loaded, answers are those without drom."""
    if not has_libomp() or not shutil.which("clang") or not shutil.which("gcc"):
        pytest.skip("needs gcc, and clang with its OpenMP library (Debian: clang, libomp-dev)")
    if "intel" in compilers and not INTEL.exists():
        pytest.skip("needs Intel's OpenMP (PyPI: intel-openmp)")
    main, library = compilers.split()
    parts = made(library, PARTS, tmp_path / "libparts.so", "-fPIC", "-shared", "-DFUNCTION=parts")
    if way == "with another":
        compiler = "clang" if library == "gcc" else "gcc"
        other = made(compiler, PARTS, tmp_path / "libother.so", "-fPIC", "-shared", "-DFUNCTION=other")
        both = tmp_path / "libboth.so"
        subprocess.run(["gcc", "-shared", "-Wl,--no-as-needed", other, parts, "-o", both], check=True)
        parts = both
    text = ASKER
    if main == "none":
        text = re.sub(r"#pragma.*|#include <omp.h>|omp_set.*", "", text)
        text = re.sub(r"omp_get_\w+\([01]?\)", "0", text)
    flags = ["-DLINKED", "-Wl,--no-as-needed", parts] if way == "linked" else ["-ldl"]
    program = made(main.replace("none", "gcc"), text, tmp_path / "main", *flags, "-Wl,--as-needed")
    opened = {"linked": [], "global": [str(parts), "global"]}.get(way, [str(parts)])
    known = environment() | {"KMP_DUPLICATE_LIB_OK": "TRUE"}
    words = ["taskset", "-c", "0,1", str(program), *opened]
    alone = subprocess.run(words, env=known, capture_output=True, text=True, check=True)
    assert "answer 220999000\n" in alone.stdout
    for choice in ("auto", "libgomp", "libomp"):
        for malleability in ("auto", "next-region", "bind-only"):
            how = ("--malleability", malleability, "--openmp-runtime", choice)
            ours = start.start(*agent.run("--require", *how, program, *opened), KMP_DUPLICATE_LIB_OK="TRUE")
            assert ours.wait() == 0, ours.show()
            assert ours.out == alone.stdout, how


def test_of_two_llvm_runtimes_the_first_is_managed(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """`drom ps` says so; threads of the other one are bound, and as many as ever."""
    found = Path(f"/usr/lib/{platform.machine()}-linux-gnu/libomp.so.5")
    if not found.exists() or not shutil.which("clang"):
        pytest.skip("needs clang with its OpenMP library (Debian: clang, libomp-dev)")
    runtimes = [found, tmp_path / "libomq.so.5"]
    runtimes[1].write_bytes(found.read_bytes().replace(b"libomp.so.5\0", b"libomq.so.5\0"))
    libraries = [tmp_path / f"lib{number}.so" for number in range(2)]
    for library, runtime in zip(libraries, runtimes, strict=True):
        made = library.with_suffix(".o")
        subprocess.run(["clang", "-fPIC", "-fopenmp", "-c", str(SOURCES / "team.c"), "-o", str(made)], check=True)
        link = ["clang", "-shared", str(made), str(runtime), f"-Wl,-rpath,{tmp_path}", "-o", str(library)]
        subprocess.run(link, check=True)
    subprocess.run(["gcc", "-O1", "-DMAIN", str(SOURCES / "team.c"), "-o", str(tmp_path / "main")], check=True)
    program = start.start(*agent.run("--job", "a", tmp_path / "main", *libraries), KMP_DUPLICATE_LIB_OK="TRUE")
    program.await_out("^threads")
    agent.order("resize", job="a", cpus=1)
    rows = agent.await_tasks(a="0")
    await_line(program, "threads 1 2")
    assert rows["a"]["points"] == "the first libomp"


TOOL = """
#include <stdio.h>
static int begin(void *lookup, int device, void *data) { fputs("the tool begins\\n", stderr); return 1; }
static void end(void *data) { }
static struct { int (*begin)(void *, int, void *); void (*end)(void *); long data; } tool = {begin, end, 0};
void *ompt_start_tool(unsigned version, const char *runtime) { return &tool; }
"""


@pytest.mark.parametrize("variable", ["OMP_TOOL_LIBRARIES", "LD_PRELOAD"])
def test_a_tool_of_the_users_is_not_displaced(agent: Agent, start: Programs, build: Build, variable: str) -> None:
    """LLVM's runtime reports to one tool: to the user's, and the program is bound from outside."""
    if build.runtime != "libomp":
        pytest.skip("needs a runtime that has tools")
    tool = build.folder / "tool.so"
    command = ["gcc", "-fPIC", "-shared", "-xc", "-", "-o", str(tool)]
    subprocess.run(command, input=TOOL, text=True, check=True)
    program = begin(agent, start, build, build.program(), "loop", **{variable: str(tool)})
    agent.order("resize", job="a", cpus=1)
    assert agent.await_tasks(a="0")["a"]["mode"] == "bind-only"
    await_line(program, BOUND)
    assert program.err == "the tool begins\n"


def test_a_tool_of_the_users_is_told_where_there_are_other_points(agent: Agent, start: Programs, build: Build) -> None:
    """A program that asks for its number of threads attaches all the same: `drom ps` says who has the regions."""
    if build.runtime != "libomp":
        pytest.skip("needs a runtime that has tools")
    program = begin(agent, start, build, build.program(), "asks", OMP_TOOL_LIBRARIES="/nowhere.so")
    agent.order("resize", job="a", cpus=1)
    assert agent.await_tasks(a="0")["a"]["points"] == "libomp of another tool"
    await_line(program, BOUND)


def test_our_own_library_is_no_other_tool(agent: Agent, start: Programs, build: Build) -> None:
    """A user may name it as a tool, as one does where nothing is preloaded: regions follow all the same."""
    program = begin(agent, start, build, build.program(), "loop", OMP_TOOL_LIBRARIES=f":{native.tool_path()}")
    resize(agent, build, program, {1: ONE, 2: BOTH})


@pytest.mark.parametrize(("malleability", "small"), [("auto", BOUND), ("next-region", ONE)])
def test_the_runtime_may_open_the_library_as_its_tool(
    agent: Agent, start: Programs, build: Build, malleability: str, small: str
) -> None:
    """Then regions are points; numbers are told past us, so they stay unless the program does not care."""
    if (build.compiler, build.runtime) != ("clang", "libomp"):
        pytest.skip("needs a runtime that has tools, and nothing preloaded")
    environment = ("env", f"DROM_MALLEABILITY={malleability}", f"OMP_TOOL_LIBRARIES={native.tool_path()}")
    words = ("--malleability", "bind-only", *environment)
    resize(agent, build, begin(agent, start, build, *words, build.program(), "loop"), {1: small, 2: BOTH})


@pytest.mark.parametrize("runtime", ["libgomp", "libomp"])
def test_matrix_products_of_openblas_go_on(agent: Agent, start: Programs, runtime: str, tmp_path: Path) -> None:
    """OpenBLAS, whose threads wait for one another, neither hangs nor errs while it is resized, on either runtime."""
    if not (OPENBLAS / "libopenblas.so").exists():
        pytest.skip("needs OpenBLAS with OpenMP (Debian: libopenblas-openmp-dev)")
    if runtime == "libomp" and not has_libomp():
        pytest.skip("needs LLVM's OpenMP runtime (Debian: libomp-dev)")
    program = tmp_path / "gemm"
    flags = ["-O1", str(SOURCES / "gemm.c"), f"-L{OPENBLAS}", f"-Wl,-rpath,{OPENBLAS}", "-lopenblas"]
    subprocess.run(["gcc", *flags, "-o", str(program)], check=True)
    running = start.start(*agent.run("--job", "a", "--openmp-runtime", runtime, program))
    agent.await_tasks(a="0-1")
    for cpus in (1, 2) * 3:
        agent.order("resize", job="a", cpus=cpus)
        agent.await_tasks(a="0" if cpus == 1 else "0-1")
        await_products(running)
    assert "wrong" not in running.out
    assert running.err == ""


@pytest.fixture
def busy_cpu() -> Iterator[None]:
    """Keep CPU 1 busy."""
    code = "import os; os.sched_setaffinity(0, {1}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            process.kill()


@pytest.mark.usefixtures("busy_cpu")
def test_threads_go_to_the_cpus_gained(agent: Agent, start: Programs, tmp_path: Path) -> None:
    """Threads of libgomp begin a region after a growth on CPUs of their own, though these are not idle by then."""
    program = tmp_path / "spread"
    flags = ["-D_GNU_SOURCE", "-O1", "-fopenmp"]
    subprocess.run(["gcc", *flags, str(SOURCES / "spread.c"), "-o", str(program)], check=True)
    a = start.start(*agent.run("--job", "a", "--openmp-runtime", "libgomp", program))
    a.await_out("^on .")
    for _ in range(10):
        for cpus in (1, 2):
            said = len(a.out.splitlines())
            agent.order("resize", job="a", cpus=cpus)
            a.await_out(rf"(?:.+\n){{{said + 1}}}")

    # Another one may be moved by the kernel before it has looked where it is.
    assert a.out.splitlines()[2::2].count("on 0 1") >= 8, a.out
