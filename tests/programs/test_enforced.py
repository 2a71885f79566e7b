"""Programs without malleability points: a region that never ends, and oneTBB. They are bound, and the cost is told."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.programs.storm import ORDERS, median_ms, resize, storm
from tests.support.agents import start_agent

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.agents import Programs

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

HERE = Path(__file__).parent


def build(kind: str, folder: Path) -> Path:
    """Compile a program of this folder; skip where something is missing."""
    if kind == "libomp" and not ctypes.util.find_library("omp"):
        pytest.skip("needs libomp (Debian): make setup fetches it")
    words = ["g++", "tbb.cpp", "-ltbb"] if kind == "oneTBB" else ["gcc", "-fopenmp", "endless.c"]
    if not shutil.which(words[0]):
        pytest.skip(f"needs {words[0]}")
    command = [*words, "-O2", "-o", str(folder / "program")]
    built = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if "tbb" in built.stderr and "No such file" in built.stderr:
        pytest.skip("needs libtbb-dev (Debian): make test-programs fetches it")
    assert built.returncode == 0, built.stderr
    return folder / "program"


@pytest.mark.parametrize("kind", ["libgomp", "libomp", "oneTBB"])
def test_a_program_that_cannot_follow_is_bound(
    start: Programs, tmp_path: Path, kind: str, tell: Callable[[str], None]
) -> None:
    """The program runs correctly but slower on the CPUs of each grant, and the cost is reported."""
    program = build(kind, tmp_path)
    runtime = ("--openmp-runtime", kind) if kind != "oneTBB" else ()
    with start_agent(tmp_path, "--topology", "pack:2 core:1", "--grace", "0.1") as agent:
        running = start.start(*agent.run("--job", "p", *runtime, "--", program))
        wide = median_ms(running)
        assert storm(agent, running) == (0, ORDERS)
        resize(agent, running, 1)
        narrow = median_ms(running)
        running.kill()
        agent.await_tasks()
    preload = {"LD_PRELOAD": "libomp.so.5"} if kind == "libomp" else {}
    one = ("1",) if kind == "oneTBB" else ()
    single = median_ms(start.start("taskset", "-c", "0", program, *one, OMP_NUM_THREADS="1", **preload))
    tell(
        f"{kind}: a unit of work takes {wide:.1f} ms with 2 threads on 2 CPUs, {narrow:.1f} ms with 2 threads on 1, "
        f"and {single:.1f} ms with 1 thread on 1 CPU: {narrow / single:.2f} times as long as a program that follows."
    )
