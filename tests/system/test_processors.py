"""How many processors a program finds whose job has one CPU of two and may have both, whatever asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Agent, Programs, environment, start_agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

MODES = ("auto", "next-region")
PYTHON = f"{sys.executable} -c"
OF_THE_MOMENT = {
    "nproc": "nproc",
    "all": "nproc --all",
    "sysconf": "getconf _NPROCESSORS_ONLN",
    "affinity": f'{PYTHON} "import os; print(len(os.sched_getaffinity(0)))"',
    "cpu_count": f'{PYTHON} "import os; print(os.cpu_count())"',
    "variable": "echo ${OMP_NUM_THREADS-unset}",
    "hardware_concurrency": "./concurrency",
    "make": "make -s -j$(nproc) --eval 'all:;@echo $(MAKEFLAGS)' | grep -o 'j[0-9]*' || echo none",
}
"""Commands for a shell, each of which prints one number."""
CONCURRENCY = (
    '#include <cstdio>\n#include <thread>\nint main() { std::printf("%u\\n", std::thread::hardware_concurrency()); }'
)
TEAM = """
#include <omp.h>
#include <stdio.h>
int main(void)
{
    int counted = 0;
#pragma omp parallel
#pragma omp atomic
    counted++;
    printf("%d %d %d\\n", omp_get_max_threads(), omp_get_num_procs(), counted);
    return 0;
}
"""
FORKED = """
#include <omp.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    int counted = 0;
#ifdef BEFORE
#pragma omp parallel
#pragma omp atomic
    counted++;
    counted = 0;
#endif
    if (fork() == 0) {
#pragma omp parallel
#pragma omp atomic
        counted++;
        printf("%d %d\\n", omp_get_max_threads(), counted);
        return 0;
    }
    wait(0);
    return 0;
}
"""
"""A program whose child uses OpenMP."""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Start an agent of two CPUs, of which another job has one."""
    with start_agent(tmp_path_factory.mktemp("node"), "--topology", "pack:2 core:1", "--grace", "20") as agent:
        other = subprocess.Popen(agent.run("--class", "rigid", "--cpus", "1", "sleep", "inf"), env=environment())
        try:
            agent.await_tasks(sleep="1")
            yield agent
        finally:
            other.kill()
            other.wait()


def printed(start: Programs, agent: Agent, *words: str | Path, **extra: str) -> str:
    """Return what a program says to its end below drom-run."""
    program = start.start(*agent.run("--require", *words), **extra)
    assert program.wait() == 0, program.show()
    return program.out.strip()


@pytest.mark.parametrize("malleability", ["auto", "next-region", "bind-only"])
def test_readers_of_processors_find_those_of_the_moment(
    narrow: Agent, start: Programs, tmp_path: Path, malleability: str
) -> None:
    """What is not OpenMP finds what it finds without drom on the same CPU, and starts no more than that."""
    if shutil.which("g++"):
        build = ["g++", "-xc++", "-", "-o", str(tmp_path / "concurrency")]
        subprocess.run(build, input=CONCURRENCY, text=True, check=True)
    for name, command in OF_THE_MOMENT.items():
        if name == "hardware_concurrency" and not shutil.which("g++"):
            continue
        script = f"cd {tmp_path}; {command}"
        alone = subprocess.run(
            ["taskset", "-c", "0", "sh", "-c", script], env=environment(), capture_output=True, text=True, check=True
        )
        found = printed(start, narrow, "--malleability", malleability, "sh", "-c", script)
        assert found == alone.stdout.strip(), name


def test_a_number_of_the_users_is_what_all_find(narrow: Agent, start: Programs, tmp_path: Path) -> None:
    """OMP_NUM_THREADS that is set before drom is obeyed as without it, by nproc and by OpenMP."""
    program = tmp_path / "team"
    subprocess.run(["gcc", "-O1", "-fopenmp", "-xc", "-", "-o", program], input=TEAM, text=True, check=True)
    script = f"nproc; {program}"
    assert printed(start, narrow, "sh", "-c", script, OMP_NUM_THREADS="3").split() == ["3", "3", "2", "3"]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("how", [f"{mode} {runtime}" for mode in MODES for runtime in ("libgomp", "libomp", "auto")])
def test_openmp_makes_threads_for_all_cpus_that_it_can_get(
    narrow: Agent, start: Programs, tmp_path: Path, compiler: str, how: str
) -> None:
    """Launched on one CPU of two, also by a shell, its first team has two threads, and it is told so."""
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    program = tmp_path / "team"
    subprocess.run([compiler, "-O1", "-fopenmp", "-xc", "-", "-o", program], input=TEAM, text=True, check=True)
    malleability, runtime = how.split()
    words = ("--malleability", malleability, "--openmp-runtime", runtime)
    team = "2 2 2" if malleability == "auto" else "2 2 1"
    assert printed(start, narrow, *words, program) == team
    assert printed(start, narrow, *words, "sh", "-c", f"{program}; true") == team
    assert printed(start, narrow, *words, program, OMP_THREAD_LIMIT="1") == "1 2 1"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("how", ["libgomp", "libomp", "libomp -DBEFORE"])
def test_a_forked_child_makes_threads_for_all_cpus_as_well(
    narrow: Agent, start: Programs, tmp_path: Path, compiler: str, how: str
) -> None:
    """LLVM's runtime starts anew in it."""
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    program = tmp_path / "forked"
    runtime, *flags = how.split()
    subprocess.run(
        [compiler, "-O1", "-fopenmp", *flags, "-xc", "-", "-o", program], input=FORKED, text=True, check=True
    )
    assert printed(start, narrow, "--openmp-runtime", runtime, program) == "2 2"


@pytest.mark.parametrize("value", ["", "2"])
def test_openblas_makes_no_more_threads_than_it_finds_cpus(value: str) -> None:
    """NumPy's OpenBLAS on one CPU has one thread, whatever its variable says: the variable cannot make it grow."""
    code = (
        "import os, numpy; one = numpy.ones((500, 500)); one @ one\n"
        "print(len(os.listdir('/proc/self/task')), numpy.show_config('dicts')['Build Dependencies']['blas']['name'])"
    )
    env = environment(OPENBLAS_NUM_THREADS=value)
    done = subprocess.run(
        ["taskset", "-c", "0", sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    threads, _, blas = done.stdout.strip().partition(" ")
    if "openblas" not in blas:
        pytest.skip(f"NumPy uses {blas}")
    assert threads == "1"
