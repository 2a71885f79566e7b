# SPDX-License-Identifier: Apache-2.0
"""Masks rewritten from outside, as by `taskset`, under a real agent."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.support.agents import Programs, affinity, start_agent, wait_until

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]


def rebind(pid: int, cpus: set[int]) -> None:
    """Bind every thread of a process, as `taskset --all-tasks` does."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cpus)


@pytest.mark.parametrize("where", ["everywhere", "on the other's CPU"])
def test_a_mask_rewritten_from_outside_is_repaired(tmp_path: Path, start: Programs, program: Path, where: str) -> None:
    """Threads of a program that follows its grants, and of one that is bound, are brought back; the first is told."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        follows = start.start(*agent.run("--job", "f", "--cpus", "1", "--", program, "--threads", "4"))
        follows.await_out("^applied .* cpus 1$")
        bound = start.start(*agent.run("--job", "b", "--cpus", "1", "--", "sleep", "1000"))
        agent.await_tasks(f="1", b="0")
        for pid, mine in ((follows.pid, "1"), (bound.pid, "0")):
            rebind(pid, {0, 1} if where == "everywhere" else {0, 1} - {int(mine)})
        for pid, mine in ((follows.pid, "1"), (bound.pid, "0")):
            wait_until(partial(lambda p, m: affinity(p) == m, pid, mine), agent.log_file.read_text)
        agent.await_log(f"event=repaired job=f task=0 pid={follows.pid} threads=")
        agent.assert_clean()
