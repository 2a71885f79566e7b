from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dromlib.cpulist import parse_cpulist
from tests.support import agents
from tests.support.example_programs import (
    PATIENT,
    UNCOMPILED,
    Gates,
    await_working,
    command,
    finish,
    mpi_environment,
    mpirun,
    resize_twice,
)

ARGUMENTS = ("--size", "400000", "--steps")
NAMES = ("mpi4py_numba.py", "mpi_openmp.c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the examples in C are compiled, once."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.timeout(300)
@pytest.mark.system
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_resized_twice_give_the_answer_they_give_alone(tmp_path: Path, folder: Path, name: str) -> None:
    """Alone it is right; under an agent both ranks shrink and grow, and say the same."""
    environment, gates = mpi_environment(tmp_path), Gates(tmp_path)
    words = [*command(name, folder), *ARGUMENTS, "60"]
    with (
        agents.programs(tmp_path / "programs") as programs,
        agents.start_agent(tmp_path, "--emulate", "pack:2 core:2", "--grace", PATIENT) as agent,
    ):
        alone = finish(programs.start(*mpirun(2, *words), **environment, DROM_RUNTIME_DIR="/nonexistent"))

        assert alone[0] == 0
        assert alone[1].endswith(" ok")

        launch = mpirun(2, *agent.run("--job", "it", "--", *words))
        managed = programs.start(*launch, **environment, **gates.environment)
        resize_twice(agent, gates, "it", [("2", [1, 1]), ("auto", [2, 2])])

        assert finish(managed) == alone, managed.show()
        actions = sorted(re.findall(r"event=(\w+) job=it .*action=(\w+)", agent.log))
        assert actions == [("applied", "grow")] * 2 + [("applied", "shrink")] * 2


@pytest.mark.timeout(300)
@pytest.mark.system
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_are_two_tasks_of_one_job(tmp_path: Path, folder: Path, name: str) -> None:
    """`mpirun -n 2 drom run -- PROGRAM`: `drom ps --json` shows one job of two tasks, whose threads share no CPU."""
    words = [*command(name, folder), *ARGUMENTS, "1000000000"]
    with (
        agents.programs(tmp_path / "programs") as programs,
        agents.start_agent(tmp_path, "--topology", "pack:2 core:1") as agent,
    ):
        managed = programs.start(*mpirun(2, *agent.run("--", *words)), **mpi_environment(tmp_path))
        job = Path(words[0]).name

        # From the loop on the program itself is the responder, before it perhaps the launcher's library or hook.
        agents.wait_until(
            lambda: [bool(row["progress"]) for row in agent.order("ps")["tasks"]] == [True] * 2, managed.show
        )
        await_working(agent, job, 2)

        rows = json.loads(agent.cli("ps", "--json").stdout)["tasks"]
        masks = [parse_cpulist(agents.affinity(row["pid"])) for row in rows]

        assert [(row["job"], row["task"], row["mode"]) for row in rows] == [
            (job, task, "cooperative") for task in (0, 1)
        ]
        assert masks == [parse_cpulist(row["granted"]) for row in rows]
        assert masks[0] & masks[1] == 0

        managed.process.terminate()
        finish(managed)
        agent.assert_clean()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("words", [("--steps", "soon"), ("--steps", "0"), ("--size", "0"), ("--what", "1")])
def test_wrong_usage_is_one_sentence(tmp_path: Path, folder: Path, name: str, words: tuple[str, ...]) -> None:
    """Arguments that make no sense end with exit code 2 and a line on stderr, from one rank."""
    with agents.programs(tmp_path / "programs") as programs:
        environment = mpi_environment(tmp_path) | UNCOMPILED
        program = programs.start(*mpirun(2, *command(name, folder), *words), **environment)
        status, _ = finish(program)

        assert status == 2
        assert program.err.count(f"{name.partition('.')[0]}: ") == 1, program.err
