# SPDX-License-Identifier: Apache-2.0
"""The processes of tasks: which of them are watched through pidfds, and which belong to a task."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from agent import processes
from agent.census import Census, Scan
from agent.processes import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from agent.jobs import Task
    from agent.node import Node
    from agent.processes import Stat


class Loop(Protocol):
    """Who tells that a descriptor is readable."""

    def watch(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""

    def unwatch(self, fd: int) -> None:
        """Stop looking at `fd`."""


class Following:
    """Watches processes of the tasks of `node`; `ended` hears of each end, after which that process is not watched."""

    def __init__(self, loop: Loop, node: Node, ended: Callable[[Task, Identity], None]) -> None:
        self._loop = loop
        self._node = node
        self._ended = ended
        self._pidfds: dict[int, dict[Identity, int]] = {}
        self._stats = Scan()

    def follow(self, task: Task, who: Identity) -> None:
        """Watch a process of a task, unless it is watched already."""
        if who in self._pidfds.get(task.slot, {}):
            return
        pidfd = processes.open_pidfd(who.pid, who.start_time)
        if pidfd is None:
            # It ended in between: the end is dealt with as an event, like any other.
            read, write = os.pipe2(os.O_CLOEXEC)
            os.close(write)
            pidfd = read
        self.watch(task, who, pidfd)

    def watch(self, task: Task, who: Identity, pidfd: int) -> None:
        """Watch a process of a task through its pidfd, which is closed when that is over."""
        self._pidfds.setdefault(task.slot, {})[who] = pidfd
        self._loop.watch(pidfd, lambda: self._notice(task, who))

    def _notice(self, task: Task, who: Identity) -> None:
        mine = self._pidfds[task.slot]
        self._close(mine.pop(who))
        if not mine:
            del self._pidfds[task.slot]
        self._ended(task, who)

    def has_any(self, task: Task) -> bool:
        """Say whether any process of the task is watched."""
        return task.slot in self._pidfds

    def follow_a_survivor(self, task: Task) -> bool:
        """Watch any process of the task that still runs; False when none does, so that nobody is on its CPUs."""
        for pid in self.processes_of(task)():
            start = processes.start_time(pid)
            pidfd = None if start is None else processes.open_pidfd(pid, start)
            if start is None or pidfd is None:
                continue
            if processes.is_alive(pidfd):
                self.watch(task, Identity(pid, start), pidfd)
                return True
            os.close(pidfd)
        return False

    def forget(self, task: Task) -> None:
        """Watch no process of the task any more."""
        for pidfd in self._pidfds.pop(task.slot, {}).values():
            self._close(pidfd)

    def processes_of(self, task: Task) -> Callable[[], set[int]]:
        """Return what finds the pids of the processes of a task, also of one that was let go, each time anew."""
        return lambda: self._census((task,)).processes(first_process(task), task.arrival.uid)

    def processes_of_all(self, slots: Collection[int], stats: dict[int, Stat] | None = None) -> dict[int, set[int]]:
        """Return the pids of each task's processes, by slot, in one look at all processes: `stats`, or a new one."""
        tasks, census = self._node.tasks, self._census(stats=stats)
        return {slot: census.processes(first_process(tasks[slot]), tasks[slot].arrival.uid) for slot in slots}

    def scan(self) -> dict[int, Stat]:
        """Return the stat of every process, by pid; state letters may be those of an earlier look."""
        return self._stats.take()

    def _census(self, more: Iterable[Task] = (), stats: dict[int, Stat] | None = None) -> Census:
        """Take a census for the tasks of the node and `more`."""
        tasks = (*self._node.tasks.values(), *more)
        return Census(map(first_process, tasks), self.scan() if stats is None else stats)

    def close(self) -> None:
        """Stop watching; the loop is about to end."""
        for mine in self._pidfds.values():
            for pidfd in mine.values():
                os.close(pidfd)

    def _close(self, pidfd: int) -> None:
        self._loop.unwatch(pidfd)
        os.close(pidfd)


def first_process(task: Task) -> Identity:
    """Return the process that a task began with."""
    return Identity(task.arrival.pid, task.arrival.start_time)
