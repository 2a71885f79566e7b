# SPDX-License-Identifier: Apache-2.0
"""Programs in cpusets that something else than the agent has made, as batch systems and containers do."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import affinity, start_agent, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.agents import Agent, Program, Programs

CPUSETS = Path("/sys/fs/cgroup/cpuset")
"""Where control groups of version 1 with the cpuset controller are."""
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
    pytest.mark.skipif(not os.access(CPUSETS, os.W_OK), reason="makes cpusets of control groups of version 1, as root"),
]


@pytest.fixture
def cpuset() -> Iterator[Callable[[str], Path]]:
    """Return a function that makes a group with a cpuset; it is removed once its programs have ended.

    Asked for before the programs, it is torn down after them.
    """
    with contextlib.ExitStack() as stack:

        def make(cpus: str) -> Path:
            group = CPUSETS / f"drom-test-{os.getpid()}-{cpus}"
            group.mkdir()
            stack.callback(wait_until, lambda: _removed(group), (group / "cgroup.procs").read_text)
            (group / "cpuset.mems").write_text((CPUSETS / "cpuset.mems").read_text())
            (group / "cpuset.cpus").write_text(cpus)
            return group

        yield make


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def run_in(group: Path, job: str, agent: Agent, start: Programs) -> Program:
    """Start a program below `drom run` in a group."""
    inside = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    return start.start("sh", "-c", inside, "sh", *agent.run("--job", job, "--", "sleep", "1000"))


def test_each_has_the_cpu_that_it_may_use(tmp_path: Path, cpuset: Callable[[str], Path], start: Programs) -> None:
    """However often: no binding fails, nobody waits for the other, and the next agent knows it too."""
    first, second = cpuset("0"), cpuset("1")
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        a = run_in(first, "a", agent, start)
        agent.await_tasks(a="0")
        for _ in range(5):
            b = run_in(second, "b", agent, start)
            agent.await_tasks(a="0", b="1")
            assert (affinity(a.pid), affinity(b.pid)) == ("0", "1")
            b.process.kill()
            b.process.wait()
            agent.await_tasks(a="0")
        assert "bind_failed" not in agent.log


def test_those_with_the_same_cpus_share_them(tmp_path: Path, cpuset: Callable[[str], Path], start: Programs) -> None:
    """As without a cpuset; and with a program that may use all CPUs where they overlap."""
    both, one = cpuset("0-1"), cpuset("1")
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        a = run_in(both, "a", agent, start)
        agent.await_tasks(a="0-1")
        b = run_in(one, "b", agent, start)
        agent.await_tasks(a="0", b="1")
        assert (affinity(a.pid), affinity(b.pid)) == ("0", "1")
        b.process.kill()
        b.process.wait()
        agent.await_tasks(a="0-1")


def test_an_agent_that_takes_over_knows_what_programs_may_use(
    tmp_path: Path, cpuset: Callable[[str], Path], start: Programs
) -> None:
    """A program that may use more shares with the one that may not."""
    one = cpuset("1")
    with start_agent(tmp_path, "--topology", "pack:2 core:1", stop=False) as agent:
        run_in(one, "b", agent, start)
        agent.await_tasks(b="1")
        agent.kill()
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        start.start(*agent.run("--job", "c", "--", "sleep", "1000"))
        agent.await_tasks(b="1", c="0")
        assert "bind_failed" not in agent.log


def test_a_program_that_is_attached_later_gets_what_it_may_use(
    tmp_path: Path, cpuset: Callable[[str], Path], start: Programs
) -> None:
    """The preview says what the order then does."""
    group = cpuset("1")
    program = start.start("sh", "-c", f"echo $$ > {group}/cgroup.procs && exec sleep 1000")
    wait_until(lambda: affinity(program.pid) == "1", lambda: affinity(program.pid))
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        words = ("attach", program.pid, "--job", "a")
        assert "1" in agent.cli(*map(str, words), "--dry-run", "--json").stdout.partition('"to": ')[2][:4]
        assert agent.cli(*map(str, words)).returncode == 0
        agent.await_tasks(a="1")
        assert agent.cli("release", "a").returncode == 0
