# SPDX-License-Identifier: Apache-2.0
"""Who may be attached; the rest of it is in tests/system/test_orders.py, with a real agent."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import psutil
import pytest
from drom.agent.config.exclusions import Exclusions
from drom.agent.daemon.attach import AttachChecker
from drom.agent.daemon.process_watch import ProcessWatcher
from drom.agent.errors import ControlError
from drom.agent.model.caller import Caller
from drom.agent.model.jobs import Arrival
from drom.agent.system import proc

from tests.support.child_processes import NOW, open_descriptors
from tests.support.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.system.loop import Loop

ME = Caller(os.getpid(), os.getuid())
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")


def candidates(*arrivals: Arrival, exclude: Exclusions | None = None) -> AttachChecker:
    """Return what looks for a node with these tasks, which nobody has outlived."""
    node = make_node(MACHINES[2])
    for arrival in arrivals:
        node.arrive(arrival, 0.0)
    watcher = ProcessWatcher(cast("Loop", SimpleNamespace()), node, lambda *_: None)
    return AttachChecker(node, watcher, exclude or Exclusions(), "root")


@contextmanager
def cat(*before: str, **extra: str) -> Iterator[int]:
    """Run a program that waits for the end of its input; yield the pid of the first word started."""
    with subprocess.Popen([*before, "cat"], stdin=subprocess.PIPE, env={**os.environ, **extra}) as popen:
        yield popen.pid
        assert popen.stdin
        popen.stdin.close()


def test_who_may_be_attached_is_described() -> None:
    """Identity, user, affinity and name, with a pidfd of the very process."""
    with cat() as pid:
        found = candidates().check(pid, ME, everybody=False)
        try:
            assert (found.who.pid, found.uid, found.affinity) == (pid, os.getuid(), NOW)
            assert found.who.start_time == proc.start_time(pid)
            assert proc.is_alive(found.pidfd)
        finally:
            os.close(found.pidfd)


def test_refusals_keep_no_descriptor() -> None:
    """Who is refused leaves nothing open."""
    before = open_descriptors()
    for pid in (1, os.getpid(), os.getppid(), 2**22):
        with pytest.raises(ControlError):
            candidates().check(pid, ME, everybody=True)

    assert open_descriptors() == before


def test_below_a_task() -> None:
    """A descendant of a task is managed with it."""
    with cat() as pid:
        me = Arrival(os.getpid(), proc.start_time(os.getpid()) or 0, os.getuid(), "a")
        with pytest.raises(ControlError, match=rf"^process {pid} belongs to job a \(pid {os.getpid()}\)"):
            candidates(me).check(pid, ME, everybody=True)


def test_a_task_by_its_environment_alone_is_none() -> None:
    """Whoever claims to belong to a task that does not know it is taken for himself."""
    other = Arrival(os.getppid() + 2**23, 5, os.getuid(), "a")
    with cat(DROM_TASK=f"{other.pid}:5") as pid:
        os.close(candidates(other).check(pid, ME, everybody=True).pidfd)


def test_the_excluded() -> None:
    """Users and programs that are left alone are left alone here too."""
    with cat() as pid:
        for exclude in (Exclusions(users=((os.getuid(), "me"),)), Exclusions(programs=("c[a]t",))):
            with pytest.raises(ControlError, match=r"^the agent leaves .* alone \(exclude\."):
                candidates(exclude=exclude).check(pid, ME, everybody=True)


def test_a_caller_that_the_agent_cannot_see() -> None:
    """Whose pid means nothing here cannot mean a process by its pid."""
    with pytest.raises(ControlError, match=r"^you are in another pid namespace than the agent"):
        candidates().check(os.getpid(), Caller(0, 0), everybody=True)


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_process_of_another_pid_namespace() -> None:
    """What runs in a container is another agent's."""
    with cat("unshare", "--pid", "--fork", "--kill-child") as pid:
        try:
            children = [child.pid for child in psutil.Process(pid).children()]
            while not children:
                time.sleep(0.001)
                children = [child.pid for child in psutil.Process(pid).children()]
            with pytest.raises(ControlError, match=rf"^process {children[0]} is in another pid namespace"):
                candidates().check(children[0], ME, everybody=True)
        finally:
            os.kill(pid, 15)


@needs_root
def test_other_users() -> None:
    """A user attaches what is his alone: neither others' programs nor those with two users."""
    both = "import os, sys; os.setresuid(5, 6, 6); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", both], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as popen:
        assert popen.stdout
        popen.stdout.readline()
        for uid in (5, 6, 7):
            with pytest.raises(ControlError, match=rf"^process {popen.pid} belongs to another user: only root may"):
                candidates().check(popen.pid, Caller(os.getpid(), uid), everybody=False)
        found = candidates().check(popen.pid, ME, everybody=True)
        os.close(found.pidfd)
        assert found.uid == 6
        popen.communicate()
