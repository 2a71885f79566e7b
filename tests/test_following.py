# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from agent import census
from agent.following import Following, first_process
from agent.jobs import Arrival, Task
from tests.children import UID, Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.node import Node
    from agent.processes import Identity


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
        node = cast("Node", SimpleNamespace(tasks=self.tasks))
        self.following = Following(Turns(), node, self._ended)
        self.lives = True
        self.asked: list[int] = []

    def _ended(self, task: Task, who: Identity) -> None:
        assert who == first_process(task)
        self.asked.append(task.slot)
        self.lives = self.following.follow_a_survivor(task)


@pytest.fixture
def stage(child: Child) -> Iterator[Stage]:
    """Return a stage for the task of a program."""
    there = Stage(child.identity)
    yield there
    there.following.close()


class TestSurvivors:
    """What a task leaves behind keeps it alive."""

    def test_a_survivor_is_watched(self, child: Child, stage: Stage) -> None:
        """One is enough."""
        child.ask("orphan")
        child.popen.kill()
        child.popen.wait()

        assert stage.following.follow_a_survivor(stage.task)
        assert (stage.following.has_any(stage.task), stage.following.next_look()) == (True, None)

    def test_without_survivors_it_is_over(self, child: Child, stage: Stage) -> None:
        """Nobody is left on its CPUs."""
        child.popen.kill()
        child.popen.wait()

        assert not stage.following.follow_a_survivor(stage.task)
        assert stage.following.next_look() is None

    def test_is_asked_for_again_while_that_is_not_known(
        self, child: Child, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where its user has more processes than a look takes, the task lives until all have been looked at."""
        child.ask("orphan")
        child.popen.kill()
        child.popen.wait()
        with monkeypatch.context() as patch:
            patch.setattr(census, "BUDGET", 0)
            assert stage.following.follow_a_survivor(stage.task)
            due = stage.following.next_look()
            assert due is not None
            stage.following.look(due)
            assert stage.lives
            assert not stage.following.has_any(stage.task)
            assert stage.following.next_look() is not None

        stage.following.look(time.monotonic() + 1)
        assert (stage.lives, stage.following.has_any(stage.task), stage.following.next_look()) == (True, True, None)

    def test_one_task_is_asked_about_at_a_time(
        self, child: Child, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whose tasks end all at once does not hold up the others: their turns come one after the other."""
        child.ask("orphan")
        monkeypatch.setattr(census, "BUDGET", 0)
        for slot in (1, 2):
            stage.tasks[slot] = Task(slot, "b", 0, Arrival(1 << 30, child.identity.start_time, UID, "b"), 0)
        assert all(stage.following.follow_a_survivor(stage.tasks[slot]) for slot in (1, 2))
        for _ in range(3):
            stage.following.look(time.monotonic() + 1)

        assert stage.asked == [1, 2, 1]
