# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from drom.agent.daemon import task_processes
from drom.agent.daemon.process_watch import ProcessWatcher, first_process
from drom.agent.model.jobs import Arrival, Task
from drom.agent.system import proc
from drom.agent.system.proc import Identity

from tests.support.child_processes import UID, Child, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.agent.node.node import Node


class Turns:
    """A loop that watches nothing."""

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Watch a descriptor."""

    def unwatch(self, fd: int) -> None:
        """Stop watching it."""


class Stage:
    """A task, and what follows its processes and decides as the agent does."""

    def __init__(self, first: Identity) -> None:
        self.task = Task(0, "a", 0, Arrival(first.pid, first.start_time, UID, "a"), 0)
        self.tasks = {0: self.task}
        node = cast("Node", SimpleNamespace(tasks=self.tasks, grants=SimpleNamespace(find=self._find)))
        self.watcher = ProcessWatcher(Turns(), node, self._ended)
        self.lives = True
        self.asked: list[int] = []

    def _find(self, pid: int, start_time: int) -> Task | None:
        return next((task for task in self.tasks.values() if first_process(task) == (pid, start_time)), None)

    def _ended(self, task: Task, who: Identity) -> None:
        assert who == first_process(task)
        self.asked.append(task.slot)
        self.lives = self.watcher.watch_survivor(task)


@pytest.fixture
def stage(child: Child) -> Iterator[Stage]:
    """Return a stage for the task of a program."""
    there = Stage(child.identity)
    yield there
    there.watcher.close()


class TestSurvivors:
    """What a task leaves behind keeps it alive."""

    def test_a_survivor_is_watched(self, child: Child, stage: Stage) -> None:
        """One is enough."""
        child.ask("orphan")
        child.popen.kill()
        child.popen.wait()

        assert stage.watcher.watch_survivor(stage.task)
        assert (stage.watcher.is_watched(stage.task), stage.watcher.next_due()) == (True, None)

    def test_without_survivors_it_is_over(self, child: Child, stage: Stage) -> None:
        """Nobody is left on its CPUs."""
        child.popen.kill()
        child.popen.wait()

        assert not stage.watcher.watch_survivor(stage.task)
        assert stage.watcher.next_due() is None

    def test_is_asked_for_again_while_that_is_not_known(
        self, child: Child, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where its user has more processes than a look takes, the task lives until all have been looked at."""
        child.ask("orphan")
        child.popen.kill()
        child.popen.wait()
        with monkeypatch.context() as patch:
            patch.setattr(task_processes, "BUDGET", 0)
            assert stage.watcher.watch_survivor(stage.task)
            due = stage.watcher.next_due()
            assert due is not None
            stage.watcher.run(due)
            assert stage.lives
            assert not stage.watcher.is_watched(stage.task)
            assert stage.watcher.next_due() is not None

        stage.watcher.run(time.monotonic() + 1)
        assert (stage.lives, stage.watcher.is_watched(stage.task), stage.watcher.next_due()) == (True, True, None)

    def test_one_task_is_asked_about_at_a_time(
        self, child: Child, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whose tasks end all at once does not hold up the others: their turns come one after the other."""
        child.ask("orphan")
        monkeypatch.setattr(task_processes, "BUDGET", 0)
        for slot in (1, 2):
            stage.tasks[slot] = Task(slot, "b", 0, Arrival(1 << 30, child.identity.start_time, UID, "b"), 0)
        assert all(stage.watcher.watch_survivor(stage.tasks[slot]) for slot in (1, 2))
        for _ in range(3):
            stage.watcher.run(time.monotonic() + 1)

        assert stage.asked == [1, 2, 1]


class TestDescent:
    """Whoever descends from a task is part of it, of whatever user."""

    def test_the_nearest_ancestor_counts(self, child: Child, stage: Stage) -> None:
        """A process below two first processes belongs to the task of the nearer one, and so does that itself."""
        below = int(child.ask("fork"))
        assert stage.watcher.task_above(below) is stage.task
        start = proc.start_time(below)
        assert start is not None
        stage.tasks[1] = inner = Task(1, "b", 0, Arrival(below, start, UID + 1, "b"), 0)

        assert stage.watcher.task_above(below) is inner
        assert stage.watcher.task_above(child.pid) is stage.task
        assert stage.watcher.task_above(os.getpid()) is None

    def test_an_orphan_stays_where_it_was_seen(self, child: Child, stage: Stage) -> None:
        """A process of another user's task is still part of it when its parents have ended, if it was seen before."""
        stage.tasks[0] = task = Task(0, "a", 0, Arrival(child.pid, child.identity.start_time, UID + 1, "a"), 0)
        below = int(child.ask("fork"))
        seen = stage.watcher.processes_of_all([0])[0]
        child.popen.kill()
        child.popen.wait()
        until(lambda: proc.ancestry(below)[1].pid != child.pid, "the fork has another parent")

        assert seen == {child.pid, below}
        assert stage.watcher.processes_of_all([0])[0] == {below}
        assert stage.watcher.task_above(below) is task
        assert stage.watcher.watch_survivor(task)

    def test_an_orphan_that_was_never_seen_is_nobodys(self, child: Child, stage: Stage) -> None:
        """The environment alone makes no process part of another user's task."""
        stage.tasks[0] = task = Task(0, "a", 0, Arrival(child.pid, child.identity.start_time, UID + 1, "a"), 0)
        orphan = int(child.ask("orphan"))

        assert stage.watcher.task_above(orphan, task) is None
        assert stage.watcher.processes_of_all([0])[0] == {child.pid}
        assert not any(orphan in found for found in stage.watcher.processes_of_all([0]).values())

    def test_an_ancestor_that_names_a_task_of_its_user_counts(self, child: Child, stage: Stage) -> None:
        """A process whose parent is an orphan of a task is part of that, though no look has found the orphan yet."""
        orphan = int(child.ask("orphan"))
        below = SimpleNamespace(lineage=lambda *_, **__: [Identity(os.getpid(), 1 << 40), identity(orphan)])

        assert stage.watcher.task_above(orphan, stage.task) is None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proc, "ancestry", below.lineage)
            assert stage.watcher.task_above(os.getpid(), stage.task) is stage.task


def identity(pid: int) -> Identity:
    """Return a living process as a value."""
    start = proc.start_time(pid)
    assert start is not None
    return Identity(pid, start)
