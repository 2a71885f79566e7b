# SPDX-License-Identifier: Apache-2.0
"""Launchers that register the process that has started them: real agents, in emulation."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dromlib import native
from tests.support.agents import Agent, Programs, environment, start_agent

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.system


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Return the agent of two emulated cores, in a folder that every user may enter: pytest's are closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with start_agent(Path(name), "--emulate", "core:2") as running:
            yield running


def register_parent(agent: Agent, *options: str) -> str:
    """Return the command line that registers a shell, in that shell's words."""
    return " ".join([str(native.run_path()), "--runtime-dir", str(agent.dir), "--for-parent", *options])


def test_the_process_that_started_the_launcher_is_the_task(agent: Agent, start: Programs) -> None:
    """It is one until it ends, whatever becomes of the launcher."""
    shell = start.start("sh", "-c", f"{register_parent(agent, '--job shell')} && echo there && exec cat")
    shell.await_out("export DROM_CPUS=0-1")
    shell.await_out("there")

    assert {job: task["pid"] for job, task in agent.await_tasks(shell="0-1").items()} == {"shell": shell.pid}
    shell.kill()
    agent.await_tasks()


def test_a_parent_that_registers_again_is_the_same_task(agent: Agent, start: Programs) -> None:
    """The second launcher gets the same grant."""
    twice = register_parent(agent, "--job shell")
    shell = start.start("sh", "-c", f"{twice} >/dev/null && {twice} && exec cat")
    shell.await_out("export DROM_CPUS=0-1")

    assert list(agent.await_tasks(shell="0-1")) == ["shell"]


def test_a_parent_is_forgotten_whose_launcher_ends_while_it_waits(agent: Agent, start: Programs) -> None:
    """Nobody would tell it of a grant."""
    rigid = start.start(*agent.run("--job", "rigid", "--class", "rigid", "--cpus", "2", "--", "sleep", "1000"))
    agent.await_tasks(rigid="0-1")
    shell = start.start("sh", "-c", f"{register_parent(agent, '--job shell --deadline 1')}; echo on; exec cat")
    shell.await_out("on")

    agent.await_tasks(rigid="0-1")
    rigid.kill()
    agent.await_tasks()
    assert shell.err.endswith("has granted no CPUs before the deadline.\n")


def test_an_ancestor_of_the_agent_is_refused(agent: Agent) -> None:
    """The agent would bind itself."""
    done = subprocess.run(
        register_parent(agent).split(), env=environment(), capture_output=True, text=True, check=False
    )

    refused = "the process that started this one is an ancestor of the agent: register a program."
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"drom: refused: {refused}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_parent_of_another_user_is_refused(agent: Agent, start: Programs) -> None:
    """A user binds processes of their own only."""
    shell = start.start("sh", "-c", f"setpriv --reuid=65534 --clear-groups {register_parent(agent)}; echo on; exec cat")
    shell.await_out("on")

    refused = "the process that started this one is gone or another user's: register one of your own."
    assert shell.err == f"drom: refused: {refused}\n"
    agent.await_tasks()
