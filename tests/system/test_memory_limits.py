# SPDX-License-Identifier: Apache-2.0
"""The memory of a scheduler's jobs is limited: real agents and control groups, and a stand-in scheduler."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.enforcement import memory_limits
from drom.agent.enforcement.memory_limits import MemoryLimits
from drom.agent.errors import ControlError
from drom.agent.execution.protocol import Ended, Forget, Hello, Post, Signal, Started

from tests.support.agents import Agent, lives, start_agent, wait_until
from tests.support.fake_scheduler import FakeScheduler, start, start_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
NOTE = "it needed more than its 50 MiB of memory: ask for more with --mem."
TAKES_MUCH = (sys.executable, "-c", f"bytearray(200 * {MIB})")


def _why_not() -> str:
    try:
        base = memory_limits.find(Path("/nowhere"), confined=False).base
        memory_limits.make(base / "drom-test", MIB)
    except (ControlError, OSError) as error:
        return str(error)
    memory_limits.remove(base / "drom-test")
    return ""


@pytest.fixture(scope="module", autouse=True)
def _limits() -> None:
    if reason := _why_not():
        pytest.skip(f"memory cannot be limited here: {reason}")


pytestmark = pytest.mark.system


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[FakeScheduler]:
    """Return a scheduler that knows nothing yet."""
    with start_scheduler(tmp_path) as standing:
        yield standing


@contextmanager
def agent_of(folder: Path, scheduler: FakeScheduler, *options: str, stop: bool = True) -> Iterator[Agent]:
    """Run the agent of node n1 that `scheduler` has welcomed within a block."""
    emulated = ("--emulate", "pack:1 core:4 pu:1")
    with start_agent(folder, "--scheduler", scheduler.address, "--node", "n1", *emulated, *options, stop=stop) as agent:
        yield agent


def groups(agent: Agent) -> list[Path]:
    """Return the control groups of an agent's jobs."""
    limits = memory_limits.find(agent.dir.absolute(), confined=False)
    return [path for path in limits.base.iterdir() if path.name.startswith(limits.group(1, 1).name[:-3])]


def forget(scheduler: FakeScheduler, agent: Agent, *jobs: int) -> None:
    """Have attempts forgotten, and wait until nothing is left of them."""
    for job in jobs:
        scheduler.say("n1", Forget(job, 1))
    spool = agent.dir / "steward"
    wait_until(lambda: not list(spool.iterdir()), lambda: list(spool.iterdir()))
    assert groups(agent) == []


def limited(job: int, *argv: str, **more: Any) -> Any:
    """Return the start of a job that may have 50 MiB."""
    return start(job, *argv, **{"memory": 50 * MIB, **more})


def test_a_job_that_needs_more_than_its_memory_says_so(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """The kernel ends it; another job with enough memory is not affected, and one without a limit may have all."""
    with agent_of(tmp_path, scheduler) as agent:
        assert scheduler.hear(Hello).limits_memory
        scheduler.say("n1", limited(1, *TAKES_MUCH))
        scheduler.say("n1", limited(2, *TAKES_MUCH, memory=400 * MIB))
        scheduler.say("n1", limited(3, *TAKES_MUCH, memory=0))
        over = scheduler.hear(Ended, job=1)
        assert (over.status, over.note, over.over_memory) == (-signal.SIGKILL, NOTE, True)
        for job in (2, 3):
            assert scheduler.hear(Ended, job=job).status == 0
        forget(scheduler, agent, 1, 2, 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another user")
@pytest.mark.parametrize("uid", [0, 65534])
def test_no_process_of_a_job_escapes(tmp_path: Path, scheduler: FakeScheduler, uid: int) -> None:
    """A daemon that it starts is in its group too, whoever its user is; the job is told though it returned 0."""
    much = "setsid tail /dev/zero; exit 0"
    with agent_of(tmp_path, scheduler) as agent:
        scheduler.hear(Hello)
        scheduler.say("n1", limited(1, "sh", "-c", much, mode="launch", uid=uid, gid=uid))
        over = scheduler.hear(Ended, job=1)
        assert (over.status, over.note) == (0, NOTE)
        forget(scheduler, agent, 1)


def test_commands_from_another_node_are_in_the_group_of_their_job(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """They share the memory of the job, which is here until it is ended."""
    number, command = "0" * 32, f"{sys.executable} -c 'bytearray(200 << 20)'"
    with agent_of(tmp_path, scheduler) as agent:
        scheduler.hear(Hello)
        scheduler.say("n1", limited(1, mode="hold", nodes=("n2", "n1")))
        scheduler.hear(Started, job=1)
        scheduler.say("n1", Post(1, 1, "n2", "n1", {"step": number, "command": command, "folder": "/"}))
        assert scheduler.hear(Post, to="n2").body["answer"] in {"137", "-9"}
        scheduler.say("n1", Signal(1, 1, signal.SIGTERM, 60.0))
        over = scheduler.hear(Ended, job=1)
        assert (over.status, over.note) == (-signal.SIGTERM, NOTE)
        forget(scheduler, agent, 1)


def test_the_next_agent_knows_the_groups_of_jobs(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """A job is limited on, what has ended meanwhile is told, and a group without a job is removed."""
    with agent_of(tmp_path, scheduler, stop=False) as agent:
        scheduler.hear(Hello)
        wait = f"until test -e {tmp_path}/go; do sleep 0.01; done; "
        scheduler.say("n1", limited(1, "sh", "-c", wait + " ".join((*TAKES_MUCH[:2], f"'{TAKES_MUCH[2]}'"))))
        scheduler.say("n1", limited(2, "sleep", "inf"))
        for job in (1, 2):
            scheduler.hear(Started, job=job)
        # A launcher that has no grant yet waits for the next agent.
        wait_until(lambda: agent.tasks().keys() == {"drom-1", "drom-2"}, agent.tasks)
        (one, two) = sorted(groups(agent))
        agent.kill()
        left = MemoryLimits(one.parent, agent.dir.absolute()).group(9, 1)
        left.mkdir()
        (tmp_path / "go").touch()
        wait_until(lambda: not memory_limits.processes(one), lambda: memory_limits.processes(one))
    with agent_of(tmp_path, scheduler, "--memory-limits", "off", stop=False) as agent:
        assert not scheduler.hear(Hello).limits_memory
        assert scheduler.hear(Ended, job=1).note == NOTE
        agent.kill()
    with agent_of(tmp_path, scheduler) as agent:
        assert scheduler.hear(Hello).limits_memory
        assert scheduler.hear(Ended, job=1).note == NOTE
        assert sorted(groups(agent)) == [one, two]
        scheduler.say("n1", Signal(2, 1, signal.SIGKILL))
        assert scheduler.hear(Ended, job=2).note == ""
        forget(scheduler, agent, 1, 2)


def test_a_process_that_hides_is_found_by_its_group(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """A process without its environment whose keeper was killed is still of the job, which has not ended before it."""
    hides = f"env -i setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep inf' & wait"
    with agent_of(tmp_path, scheduler) as agent:
        scheduler.hear(Hello)
        scheduler.say("n1", limited(1, "sh", "-c", hides))
        scheduler.hear(Started, job=1)
        file = tmp_path / "pid"
        pid = int(wait_until(lambda: file.read_text() if file.exists() else "", lambda: "no pid"))
        keeper = int((agent.dir / "steward" / "1.1" / "pid").read_text().split()[0])
        os.kill(keeper, signal.SIGKILL)
        assert scheduler.hear(Ended, job=1).note.startswith("its supervisor on the node was killed")
        assert not lives(pid)
        forget(scheduler, agent, 1)


def test_limits_can_be_turned_off(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """A job then uses what it wants."""
    with agent_of(tmp_path, scheduler, "--memory-limits", "off") as agent:
        assert not scheduler.hear(Hello).limits_memory
        scheduler.say("n1", limited(1, *TAKES_MUCH))
        assert scheduler.hear(Ended, job=1).status == 0
        forget(scheduler, agent, 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a mount namespace")
def test_an_agent_without_control_groups_says_why(tmp_path: Path, scheduler: FakeScheduler) -> None:
    """The agent starts jobs without limits, and says so to its scheduler."""
    hidden = ("unshare", "-m", "sh", "-c", 'umount -a -t cgroup,cgroup2; exec "$@"', "sh")
    options = ("--scheduler", scheduler.address, "--node", "n1", "--emulate", "pack:1 core:4 pu:1")
    with start_agent(tmp_path, *options, within=hidden) as agent:
        assert not scheduler.hear(Hello).limits_memory
        reason = (
            r"jobs may use more memory than they ask for \(--mem\): no control groups of version 2 are mounted here"
        )
        agent.await_log(rf'event=memory_not_limited reason="{reason}: start drom-tasks\.service\."')
        scheduler.say("n1", limited(1, *TAKES_MUCH))
        assert scheduler.hear(Ended, job=1).status == 0
        scheduler.say("n1", Forget(1, 1))
        wait_until(lambda: not list((agent.dir / "steward").iterdir()), lambda: "still there")
