# SPDX-License-Identifier: Apache-2.0
"""Masks that programs narrow themselves, under a real agent that resizes them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from drom.agent.system import proc

from tests.support.agents import affinity, start_agent, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.agents import Programs

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]

THREADS = """
import os, threading, sys
def stay(cpus):
    os.sched_setaffinity(0, cpus)
    ready.release(); over.wait()
ready, over = threading.Semaphore(0), threading.Event()
for cpus in ({0}, {1}):
    threading.Thread(target=stay, args=(cpus,), daemon=True).start(); ready.acquire()
print("ready", flush=True)
sys.stdin.read()
"""


RESTORES = """
import os, sys
def until(number):
    while len(os.sched_getaffinity(0)) != number: pass
print("ready", flush=True)
until(1)
before = os.sched_getaffinity(0)
print("shrunk", flush=True)
until(2)
os.sched_setaffinity(0, before)
print("restored", flush=True)
sys.stdin.read()
"""


def masks(pid: int) -> list[set[int]]:
    """Return the mask of each thread, in the order in which they began."""
    return [os.sched_getaffinity(tid) for tid in sorted(proc.threads(pid))]


@pytest.mark.parametrize("cpu", [0, 1])
def test_a_program_under_taskset_keeps_its_cpu(tmp_path: Path, start: Programs, cpu: int) -> None:
    """The program is moved only while its task does not hold that CPU, and gets the CPU back with it."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        job = start.start(*agent.run("--job", "a", "--", "taskset", "-c", str(cpu), "sleep", "1000"))
        wait_until(lambda: affinity(job.pid) == str(cpu), lambda: affinity(job.pid))
        agent.await_tasks(a="0-1")
        for _ in range(2):
            other = start.start(*agent.run("--job", "other", "--cpus", "1", "--", "sleep", "1000"))
            wait_until(lambda: len({row["granted"] for row in agent.tasks().values()}) == 2, agent.tasks)
            mine = agent.tasks()["a"]["granted"]
            agent.await_tasks(a=mine, other=str(1 - int(mine)))
            assert affinity(job.pid) == mine
            other.process.kill()
            other.process.wait()
            agent.await_tasks(a="0-1")
            assert affinity(job.pid) == str(cpu)


def test_threads_that_narrow_themselves_keep_their_cpus(tmp_path: Path, start: Programs) -> None:
    """Each its own; one that sets the whole grant again follows the grants again."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        job = start.start(*agent.run("--job", "a", "--malleability", "bind-only", "--", sys.executable, "-c", THREADS))
        job.await_out("ready")
        agent.await_tasks(a="0-1")
        assert masks(job.pid) == [{0, 1}, {0}, {1}]
        for whole in (False, True):
            if whole:
                os.sched_setaffinity(max(proc.threads(job.pid)), {0, 1})
            other = start.start(*agent.run("--job", "other", "--cpus", "1", "--", "sleep", "1000"))
            wait_until(lambda: len({row["granted"] for row in agent.tasks().values()}) == 2, agent.tasks)
            mine = agent.tasks()["a"]["granted"]
            wait_until(lambda mine=mine: affinity(job.pid) == mine, lambda: masks(job.pid))  # type: ignore[misc]
            other.process.kill()
            other.process.wait()
            agent.await_tasks(a="0-1")
            assert masks(job.pid) == [{0, 1}, {0}, {0, 1} if whole else {1}]


def test_threads_that_a_runtime_binds_follow_grants(tmp_path: Path, start: Programs) -> None:
    """With OMP_PROC_BIND a mask within the grant is the runtime's, not the program's."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        command = agent.run("--job", "a", "--malleability", "bind-only", "--", sys.executable, "-c", THREADS)
        job = start.start(*command, OMP_PROC_BIND="close")
        job.await_out("ready")
        agent.await_tasks(a="0-1")
        other = start.start(*agent.run("--job", "other", "--cpus", "1", "--", "sleep", "1000"))
        wait_until(lambda: len({row["granted"] for row in agent.tasks().values()}) == 2, agent.tasks)
        other.process.kill()
        other.process.wait()
        agent.await_tasks(a="0-1")
        wait_until(lambda: masks(job.pid) == [{0, 1}] * 3, lambda: masks(job.pid))


def test_threads_of_a_program_that_applies_grants_keep_their_cpus(
    tmp_path: Path, start: Programs, program: Path
) -> None:
    """One that narrowed itself is moved while its CPU is another's, and is back on it afterwards; others follow."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        job = start.start(*agent.run("--job", "a", "--", program, "--threads", "4"))
        job.await_out("^applied .* cpus 0,1$")
        agent.await_tasks(a="0-1")
        tids = sorted(proc.threads(job.pid))
        os.sched_setaffinity(tids[-1], {0})
        os.sched_setaffinity(tids[-2], {1})
        for _ in range(2):
            other = start.start(*agent.run("--job", "other", "--cpus", "1", "--", "sleep", "1000"))
            wait_until(lambda: len({row["granted"] for row in agent.tasks().values()}) == 2, agent.tasks)
            mine = agent.tasks()["a"]["granted"]
            agent.await_tasks(a=mine, other=str(1 - int(mine)))
            wait_until(lambda mine=mine: affinity(job.pid) == mine, lambda: masks(job.pid))  # type: ignore[misc]
            other.process.kill()
            other.process.wait()
            agent.await_tasks(a="0-1")
            found = dict(zip(sorted(proc.threads(job.pid)), masks(job.pid), strict=True))
            assert (found[tids[-1]], found[tids[-2]]) == ({0}, {1})
            assert all(mask == {0, 1} for tid, mask in found.items() if tid not in tids[-2:])
        assert job.quit() == 0


@pytest.mark.parametrize("turns", [1, 2])
def test_a_mask_that_a_program_restores_when_it_has_grown_does_not_last(
    tmp_path: Path, start: Programs, turns: int
) -> None:
    """The library hwloc does so in programs that start, among them Open MPI's launcher and with it all its ranks."""
    with start_agent(tmp_path, "--topology", "pack:2 core:1") as agent:
        job = start.start(*agent.run("--job", "a", "--malleability", "bind-only", "--", sys.executable, "-c", RESTORES))
        job.await_out("ready")
        for _ in range(turns):
            agent.order("resize", job="a", cpus=1)
            job.await_out("shrunk")
            agent.order("resize", job="a", cpus=2)
            job.await_out("restored")
        wait_until(lambda: masks(job.pid) == [{0, 1}], lambda: masks(job.pid))
