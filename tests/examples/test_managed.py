from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.support import agents
from tests.support.example_programs import PASSIVE, PATIENT, UNCOMPILED, Gates, command, finish, resize_twice

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS = {
    "asyncio_service.py": ("--requests", "5"),
    "numba_life.py": ("--gliders", "256", "--rounds", "20"),
    "numpy_blas.py": ("--size", "500", "--steps", "20"),
    "collatz.cpp": ("--below", "2000000"),
    "ring.f90": ("--size", "100000", "--steps", "60"),
    "stream.c": ("--size", "1000000", "--sweeps", "60"),
}
WRONG = {
    "asyncio_service.py": (("--clients",), ("--clients", "some"), ("--rounds", "0"), ("--what", "1")),
    "numba_life.py": (("--rounds",), ("--rounds", "soon"), ("--gliders", "0"), ("--seconds", "nan")),
    "numpy_blas.py": (("--steps",), ("--steps", "inf"), ("--size", "0"), ("--what", "1")),
    "collatz.cpp": (("--below",), ("--below", "some"), ("--below", "0"), ("--what", "1")),
    "ring.f90": (("--steps",), ("--steps", "soon"), ("--size", "0"), ("--what", "1")),
    "stream.c": (("--sweeps",), ("--sweeps", "soon"), ("--size", "0"), ("--what", "1")),
}
NAMES = sorted(ARGUMENTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the examples are compiled, once."""
    return tmp_path_factory.mktemp("examples")


@pytest.mark.timeout(300)
@pytest.mark.system
@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1")
@pytest.mark.parametrize("name", NAMES)
def test_resized_twice_it_gives_the_answer_it_gives_alone(tmp_path: Path, folder: Path, name: str) -> None:
    """Alone it is right and silent; shrunk and grown by an agent while it runs, it applies both and says the same."""
    gates, words = Gates(tmp_path), [*command(name, folder), *ARGUMENTS[name]]
    with (
        agents.programs(tmp_path / "programs") as programs,
        agents.start_agent(tmp_path, "--topology", "pack:2 core:1", "--grace", PATIENT) as agent,
    ):
        alone = programs.start(*words, DROM_RUNTIME_DIR=str(tmp_path / "no-agent"), **PASSIVE)
        status, answer = finish(alone)

        assert (status, alone.err) == (0, "")
        assert answer.endswith(" ok")

        managed = programs.start(*agent.run("--job", "it", "--", *words), **PASSIVE, **gates.environment)
        resize_twice(agent, gates, "it", [("1", [1]), ("auto", [2])])

        assert (*finish(managed), managed.err) == (0, answer, "")
        assert re.findall(r"event=(\w+) job=it .*action=(\w+)", agent.log) == [
            ("applied", "shrink"),
            ("applied", "grow"),
        ]
        agent.assert_clean()


@pytest.mark.parametrize(("name", "words"), [(name, words) for name in NAMES for words in WRONG[name]])
def test_wrong_usage_is_one_sentence(tmp_path: Path, folder: Path, name: str, words: tuple[str, ...]) -> None:
    """Arguments that make no sense end with exit code 2 and a line on stderr."""
    with agents.programs(tmp_path / "programs") as programs:
        program = programs.start(*command(name, folder), *words, **UNCOMPILED)

        assert finish(program) == (2, "")
        assert program.err.startswith(f"{name.partition('.')[0]}: ")
        assert program.err.count("\n") == 1
