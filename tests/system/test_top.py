# SPDX-License-Identifier: Apache-2.0
"""`drom top` on a terminal, with a real agent and real programs."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Programs, environment, launch_agent, start_agent, wait_until
from tests.support.terminals import Terminal, has, terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.agents import Agent

pytestmark = pytest.mark.system


def command(agent: Agent, *words: str) -> list[str]:
    """Return the command line of `drom top`."""
    return [sys.executable, "-m", "drom", "top", "--runtime-dir", str(agent.dir), *words]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Return an agent of two cores in one socket."""
    with start_agent(tmp_path, "--topology", "core:2", "--grace", "0.2") as agent:
        yield agent


@pytest.fixture
def shown(agent: Agent, start: Programs, program: Path) -> Iterator[Terminal]:
    """A terminal with `drom top` and a job on all cores."""
    start.start(*agent.run("--job", "alpha", "--", program))
    agent.await_tasks(alpha="0-1")
    with terminal(command(agent), environment()) as screen:
        screen.await_screen(lambda lines: "alpha" in "\n".join(lines))
        yield screen


def test_a_node_is_watched(shown: Terminal, agent: Agent, start: Programs, program: Path) -> None:
    """Jobs come, shrink and go before one's eyes, in colours."""
    shown.await_screen(has(r"^socket \d  AA$", r"1 job, 1 task, 2 of 2 cores in use", r"^A alpha "))
    assert len(shown.colours) > 1
    start.start(*agent.run("--job", "beta", "--", program))
    shown.await_screen(has(r"^socket \d  AB$|^socket \d  BA$", r"^B beta ", r" [0-9]\.[1-9] changes a second"))
    start.started[0].quit()
    shown.await_screen(has(r"^socket \d  BB$", r"1 job, 1 task"))
    shown.type("q")
    assert shown.process.wait(60) == 0


def test_keys(shown: Terminal) -> None:
    """A task is chosen and explained; the order is another one; a smaller window is no harm; Ctrl-C ends it."""
    shown.type("s")
    shown.await_screen(has(r"s sort: cpus"))
    shown.type("j\n")
    shown.await_screen(has(r"^It has 2 CPUs \(0-1\), all its own\.", r"enter back to the tasks"))
    shown.type("\n")
    shown.await_screen(has(r"^A alpha ", r"s sort: cpus"))
    shown.resize(60, 12)
    os.kill(shown.process.pid, signal.SIGWINCH)
    shown.await_screen(has(r"^A alpha "))
    os.kill(shown.process.pid, signal.SIGINT)
    assert shown.process.wait(60) == 130


def test_the_agent_dies(tmp_path: Path) -> None:
    """The last picture stays, and says so, until another agent answers."""
    agent = launch_agent(tmp_path / "run", "--topology", "core:2")
    try:
        with terminal(command(agent), environment()) as screen:
            screen.await_screen(has(r"No task runs here"))
            agent.kill()
            screen.await_screen(has(r"The last known state: no agent answers", r"^socket \d  \.\.$"))
            agent = launch_agent(tmp_path / "run", "--topology", "core:2")
            screen.await_screen(lambda lines: "This is how it was" not in "\n".join(lines))
            screen.type("q")
            assert screen.process.wait(60) == 0
    finally:
        agent.discard()


@pytest.mark.parametrize(("words", "more"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_without_colours(agent: Agent, start: Programs, program: Path, words: list[str], more: dict[str, str]) -> None:
    """Letters alone tell who is where."""
    start.start(*agent.run("--job", "alpha", "--", program))
    agent.await_tasks(alpha="0-1")
    with terminal(command(agent, *words), environment(**more)) as screen:
        screen.await_screen(has(r"^socket \d  AA$", r"^A alpha "))
        assert screen.colours == {"default"}


def test_once(agent: Agent, start: Programs, program: Path) -> None:
    """What is no terminal gets one picture."""
    start.start(*agent.run("--job", "alpha", "--", program))
    agent.await_tasks(alpha="0-1")
    done = agent.cli("top")

    assert done.returncode == 0, done.stderr
    assert re.search(r"^socket \d  AA\n(.*\n)*\n  JOB .*\nA alpha ", done.stdout, re.MULTILINE)
    assert "\x1b" not in done.stdout


def test_a_terminal_that_cannot(agent: Agent) -> None:
    """One sentence that says what to type."""
    with terminal(command(agent), environment()) as screen:
        screen.await_screen(has(r"No task runs here"))
    env = environment() | {"TERM": "nothing"}
    with terminal(["env", "TERM=nothing", *command(agent)], env) as screen:
        screen.await_screen(has(r"drom: this terminal \(TERM=nothing\) cannot show a live picture: type drom t"))
        assert screen.process.wait(60) == 1


SPREAD = ",".join(f"{8 * n}-{8 * n + 3}" for n in range(16))
"""CPUs that take more characters than an 80-column terminal has beside other columns."""


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_cpus_of_a_task_are_whole_on_every_terminal(tmp_path: Path, start: Programs, columns: int) -> None:
    """`drom ps` cuts names before CPUs, and continues a long list; `drom top` marks what it cuts, and has the count."""
    with start_agent(tmp_path, "--emulate", "pack:2 core:64") as agent:
        start.start(*agent.run("--job", "a-job-with-a-rather-long-name", "--", "sleep", "1000"))
        wait_until(lambda: [row["applied"] for row in agent.tasks().values()] == ["0-127"], agent.tasks)
        start.start(*agent.run("--job", "b", "--", "sleep", "1000"))
        wait_until(lambda: {row["applied"] for row in agent.tasks().values()} == {"0-63", "64-127"}, agent.tasks)
        shown = has(r"^a-job.* 64 +0-63\b", r"^b .* 64 +64-127\b")
        for name, pattern in (("ps", "(?m)^b "), ("top", "(?m)^B b ")):
            with terminal([*command(agent)[:3], name, *command(agent)[4:]], environment(), columns) as screen:
                lines = screen.await_screen(has(pattern))
                lines = [line.removeprefix("A ").removeprefix("B ") for line in lines]
                assert shown(lines), lines
                assert any(" NCPUS " in line and " CPUS" in line for line in lines)

        assert agent.cli("set", "b", SPREAD).returncode == 0
        wait_until(lambda: agent.tasks()["b"]["applied"] == SPREAD, agent.tasks)
        for name in ("ps", "top"):
            piped = next(line for line in agent.cli(name).stdout.splitlines() if " 64 " in line and "0-3," in line)
            assert f" {SPREAD} " in piped
            assert "\N{HORIZONTAL ELLIPSIS}" not in piped
        with terminal([*command(agent)[:3], "ps", *command(agent)[4:]], environment(), columns) as screen:
            lines = screen.await_screen(has(r"124-127|120-123"))
            assert SPREAD.split(",") == re.findall(r"\b\d+-\d+\b", "\n".join(lines).partition("\nb ")[2])[:16]
