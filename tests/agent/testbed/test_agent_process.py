# SPDX-License-Identifier: Apache-2.0
"""Starting, awaiting and ending an agent's process, tried with shells that print an agent's log."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from drom.agent.testbed.agent_process import AgentProcess, clean_environment

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 60.0
STAYS = "read -r never < {}; exit 1"
"""A shell reads from a fifo that nothing writes to until a signal ends it."""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Return a fifo that nothing writes to."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def shell(folder: Path, script: str) -> AgentProcess:
    """Start a shell in place of an agent."""
    return AgentProcess(["sh", "-c", script], folder / "log", clean_environment())


@pytest.mark.parametrize("line", ["time event=ready mode=managing", '{"event": "ready", "mode": "managing"}'])
def test_an_agent_is_ready_when_its_log_says_so(tmp_path: Path, fifo: Path, line: str) -> None:
    """Both forms of the log are understood, and an agent that runs stops with the status of its signal."""
    with closing(shell(tmp_path, f"echo '{line}'; {STAYS.format(fifo)}")) as agent:
        assert agent.await_ready(SECONDS)
        assert (agent.ended(), agent.last_words()) == (False, line)
        assert agent.stop(SECONDS) == -signal.SIGTERM
    assert agent.ended()


def test_an_agent_that_ends_never_becomes_ready(tmp_path: Path) -> None:
    """Its last line of output says why, without the prefix of messages."""
    with closing(shell(tmp_path, "echo 'drom: no CPU may be managed here.' >&2; exit 1")) as agent:
        assert not agent.await_ready(SECONDS)
        assert (agent.ended(), agent.last_words()) == (True, "no CPU may be managed here.")


def test_an_agent_that_compiles_is_awaited_on_request(tmp_path: Path, fifo: Path) -> None:
    """An agent serves while it compiles, so only callers that measure wait for the end of that."""
    begin = "echo 'a event=compiling b'; echo 'a event=ready b'"
    script = f"{begin}; read -r go < {fifo}; echo 'a event=compiled b'; {STAYS.format(fifo)}"
    with closing(shell(tmp_path, script)) as agent:
        assert agent.await_ready(SECONDS)
        assert agent.compiles()
        seen: list[float] = []

        def finish(seconds: float) -> None:
            if not seen:
                fifo.write_text("go\n", encoding="utf-8")
            seen.append(seconds)

        assert agent.await_ready(SECONDS, finish, compiled=True)
        assert seen
        assert not agent.compiles()


def test_an_agent_that_is_slow_is_not_ready(tmp_path: Path, fifo: Path) -> None:
    """The wait ends at its limit, and the agent still runs then."""
    with closing(shell(tmp_path, STAYS.format(fifo))) as agent:
        assert not agent.await_ready(0.0)
        assert (agent.ended(), agent.last_words()) == (False, "nothing")


def test_the_output_of_an_earlier_agent_does_not_count(tmp_path: Path) -> None:
    """Agents that append to one log are told apart."""
    for line in ("a event=ready b", "second"):
        with closing(shell(tmp_path, f"echo '{line}'")) as agent:
            agent.process.wait(SECONDS)
    assert agent.said() == b"second\n"
    assert not agent.await_ready(SECONDS)


def test_an_agent_that_ignores_sigterm_is_killed(tmp_path: Path, fifo: Path) -> None:
    """`stop` reports that it still runs, and `close` ends it."""
    with closing(shell(tmp_path, f"trap '' TERM; echo 'a event=ready b'; {STAYS.format(fifo)}")) as agent:
        assert agent.await_ready(SECONDS)
        assert agent.stop(0.0) is None
        agent.close(0.0)
        assert agent.process.returncode == -signal.SIGKILL
