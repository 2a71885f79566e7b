# SPDX-License-Identifier: Apache-2.0
"""Programs in other namespaces, as in containers: managed under the pid that the agent knows, or refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.agents import Agent, Program, Programs, affinity, launch_agent, start_agent, start_time, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1", "--grace", "0.2")
WHOLE = ("--pid", "--fork", "--kill-child", "--mount-proc")
WITHOUT_PROC = ("--pid", "--fork", "--kill-child")
ROOTLESS = ("--user", "--map-root-user", *WHOLE)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """Return an agent of two cores."""
    with start_agent(tmp_path, *TWO) as agent:
        yield agent


def container(*flags: str) -> list[str]:
    """Return the words that run a command in other namespaces; skip the test where this machine does not let us."""
    words = [shutil.which("unshare") or pytest.skip("needs unshare"), *flags]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"this machine does not let us unshare {' '.join(flags)}")
    return words


def child_of(program: Program) -> int:
    """Return the pid, as we see it, of the process that runs in the namespaces made by a program."""
    return wait_until(psutil.Process(program.pid).children, program.show)[0].pid


@pytest.mark.parametrize("flags", [WHOLE, ROOTLESS, WITHOUT_PROC], ids=["container", "rootless", "without proc"])
@pytest.mark.parametrize("way", ["launched", "attached"])
def test_a_program_in_a_container_is_managed_under_the_pid_outside(
    agent: Agent, start: Programs, program: Path, flags: tuple[str, ...], way: str
) -> None:
    """Whatever it takes its own pid for: it shrinks, its masks are those granted, and its end is seen."""
    command = agent.run("--job", "inside", "--", program) if way == "launched" else [str(program)]
    inside = start.start(*container(*flags), *command, DROM_RUNTIME_DIR=str(agent.dir))
    pid = child_of(inside)
    agent.await_log("event=responder_set")
    (job,) = agent.tasks()
    row = agent.await_tasks(**{job: "0-1"})[job]
    outside = start.start(*agent.run("--job", "outside", "sleep", "1000"))
    rows = agent.await_tasks(**{job: "0", "outside": "1"})
    wait_until(lambda: affinity(pid) == "0", lambda: affinity(pid))

    assert row["pid"] == rows[job]["pid"] == pid != inside.pid
    assert rows["outside"]["pid"] == outside.pid
    assert f"pid={pid} " in agent.log
    os.kill(pid, signal.SIGKILL)
    agent.await_tasks(outside="0-1")


def test_what_a_task_in_a_container_starts_belongs_to_it(agent: Agent, start: Programs, program: Path) -> None:
    """DROM_TASK names the pid outside, so that a second process finds its task though it has no such pid."""
    shell = f"echo task $DROM_TASK $$; exec 3<&0; {program} <&3 & {program} --help >/dev/null; wait"
    inside = start.start(*container(*WHOLE), *agent.run("--job", "inside", "--", "sh", "-c", shell))
    agent.await_log("event=responder_set job=inside")
    pid = child_of(inside)

    assert inside.await_out(r"^task (\d+):(\d+) 1$").groups() == (str(pid), str(start_time(pid)))
    assert agent.tasks().keys() == {"inside"}
    os.kill(pid, signal.SIGKILL)
    agent.await_tasks()


def test_an_agent_in_a_container_refuses_whom_it_cannot_see(start: Programs) -> None:
    """A program outside of the agent's pid namespace has no pid there: one sentence says so, and it is not managed."""
    words = container(*WHOLE)
    with tempfile.TemporaryDirectory(prefix="drom-box-") as folder:
        agent = launch_agent(Path(folder) / "run", *TWO, within=words)
        try:
            outside = start.start(*agent.run("sleep", "0"))
            assert outside.wait() == 1
            reason = "the agent cannot see this process: run it in the agent's pid namespace."
            assert outside.err == f"drom: refused: {reason}\n"
        finally:
            agent.discard()
