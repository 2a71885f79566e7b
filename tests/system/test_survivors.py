# SPDX-License-Identifier: Apache-2.0
"""A task lasts as long as any process of it: what its first process leaves behind keeps its CPUs."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Agent, Programs, launch_agent, start_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")
LEAVES_A_CHILD = "sleep 1000 & echo child $!; read line"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Return an agent of two cores."""
    with start_agent(tmp_path, *TWO) as started:
        yield started


def child_of(agent: Agent, start: Programs, *options: str) -> tuple[int, int]:
    """Start a shell with a child under the agent; return the pids of both."""
    shell = start.start(*agent.run("--job", "w", *options, "--", "sh", "-c", LEAVES_A_CHILD))
    return shell.pid, int(shell.await_out(r"child (\d+)")[1])


def test_a_child_keeps_the_cores_of_its_killed_parent(agent: Agent, start: Programs) -> None:
    """The first process is killed; its child's CPU is granted to nobody until the child has ended too."""
    shell, child = child_of(agent, start, "--cpus", "1")
    os.kill(shell, signal.SIGKILL)
    rigid = start.start(*agent.run("--job", "r", "--class", "rigid", "--cpus", "2", "--", "sleep", "1000"))
    rigid.await_err("waiting: needs at least 2 CPUs")
    assert agent.tasks()["w"]["granted"]
    agent.assert_clean()

    os.kill(child, signal.SIGKILL)
    agent.await_tasks(r="0-1")


def test_a_child_left_behind_is_still_resized(agent: Agent, start: Programs) -> None:
    """What is left of a task shrinks for an arrival and grows at its end."""
    shell, child = child_of(agent, start)
    os.kill(shell, signal.SIGKILL)
    other = start.start(*agent.run("--job", "o", "--", "sleep", "1000"))
    agent.await_tasks(w="0", o="1")
    wait_until(lambda: os.sched_getaffinity(child) == {0}, lambda: os.sched_getaffinity(child))
    other.kill()
    agent.await_tasks(w="0-1")
    wait_until(lambda: os.sched_getaffinity(child) == {0, 1}, lambda: os.sched_getaffinity(child))
    os.kill(child, signal.SIGKILL)
    agent.await_tasks()


def test_a_new_agent_adopts_what_is_left_of_a_task(tmp_path: Path, start: Programs) -> None:
    """The first process dies while no agent runs; the child keeps the task alive for the next agent."""
    agent = launch_agent(tmp_path / "run", *TWO)
    try:
        shell, child = child_of(agent, start)
        agent.await_tasks(w="0-1")
        agent.kill()
        os.kill(shell, signal.SIGKILL)
        agent = launch_agent(tmp_path / "run", *TWO)
        agent.await_log("event=adopted tasks=1 dead=0")
        agent.await_tasks(w="0-1")
        os.kill(child, signal.SIGKILL)
        agent.await_tasks()
        agent.stop()
    finally:
        agent.discard()


def test_a_queued_launcher_outlives_a_stopped_agent(tmp_path: Path, start: Programs) -> None:
    """A launcher that waits when the agent is stopped knocks until the next agent lets it in."""
    agent = launch_agent(tmp_path / "run", *TWO)
    try:
        rigid = start.start(*agent.run("--job", "r", "--class", "rigid", "--", "sleep", "1000"))
        agent.await_tasks(r="0-1")
        waits = start.start(*agent.run("--job", "q", "--", "sleep", "1000"))
        waits.await_err("waiting: ")
        agent.stop()
        rigid.kill()
        agent = launch_agent(tmp_path / "run", *TWO)
        agent.await_tasks(q="0-1")
        waits.kill()
        agent.await_tasks()
        agent.stop()
    finally:
        agent.discard()


def test_descriptors_that_run_out_do_not_end_the_agent(tmp_path: Path, start: Programs) -> None:
    """With room for few descriptors, those who come too many are refused or wait; the agent lives and serves on."""
    agent = launch_agent(tmp_path / "run", *TWO, limit=90)
    try:
        crowd = [start.start(*agent.run("--job", f"j{number}", "--", "cat")) for number in range(70)]
        agent.await_log("event=request_refused reason=")
        agent.assert_clean()
        for one in crowd:
            one.kill()
        agent.await_tasks()
        last = start.start(*agent.run("--job", "last", "--", "cat"))
        agent.await_tasks(last="0-1")
        assert last.quit() == 0
        agent.stop()
    finally:
        agent.discard()
