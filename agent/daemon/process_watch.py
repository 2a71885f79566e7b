# SPDX-License-Identifier: Apache-2.0
"""The processes of tasks: those watched through pidfds, and those that belong to a task."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from drom.agent.daemon.task_processes import EnvironmentTags, ProcScanner, TaskProcesses
from drom.agent.system import proc
from drom.agent.system.proc import Identity

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node
    from drom.agent.system.loop import Loop
    from drom.agent.system.proc import Stat


AGAIN = 0.1
"""Seconds until the remaining processes of a task are searched again."""
MOST_ANCESTORS = 64
"""Maximum number of ancestors that are read of a registering process, so that none can delay the agent."""


class ProcessWatcher:
    """Watches processes of the tasks of `node`; `ended` is called with each that has ended, which is then dropped."""

    def __init__(self, loop: Loop, node: Node, ended: Callable[[Task, Identity], None]) -> None:
        self._loop = loop
        self._node = node
        self._ended = ended
        self._pidfds: dict[int, dict[Identity, int]] = {}
        self._stats = ProcScanner()
        self._marks = EnvironmentTags()
        self._last: TaskProcesses | None = None
        self._unsure: dict[int, tuple[Task, Identity]] = {}
        """Tasks of which a process has ended, and that process, whose end has to be handled again."""
        self._due = 0.0

    def follow(self, task: Task, who: Identity) -> None:
        """Watch a process of a task, unless it is watched already."""
        if who in self._pidfds.get(task.slot, {}):
            return
        pidfd = proc.open_pidfd(who.pid, who.start_time)
        if pidfd is None:
            # It ended in between: its end is handled as an event, like any other.
            read, write = os.pipe2(os.O_CLOEXEC)
            os.close(write)
            pidfd = read
        self.watch(task, who, pidfd)

    def watch(self, task: Task, who: Identity, pidfd: int) -> None:
        """Watch a process of a task through its pidfd, which is closed when the watch ends."""
        self._pidfds.setdefault(task.slot, {})[who] = pidfd
        self._loop.watch(pidfd, lambda: self._notice(task, who))

    def _notice(self, task: Task, who: Identity) -> None:
        mine = self._pidfds[task.slot]
        self._close(mine.pop(who))
        if not mine:
            del self._pidfds[task.slot]
        self._tell(task, who)

    def _tell(self, task: Task, who: Identity) -> None:
        """Report the end of a process; if that fails, `run` reports it again."""
        try:
            self._ended(task, who)
        except BaseException:
            self._unsure.setdefault(task.slot, (task, who))
            self._due = time.monotonic() + AGAIN
            raise

    def is_watched(self, task: Task) -> bool:
        """Return whether any process of the task is watched."""
        return task.slot in self._pidfds

    def watch_survivor(self, task: Task) -> bool:
        """Watch any process of the task that still runs; return False if none does, so that its CPUs are free.

        Also return True if it is not yet known: then `run` searches again.
        """
        if any(other.arrival.uid == task.arrival.uid for other, _ in self._unsure.values()):
            self._unsure[task.slot] = task, first_process(task)
            return True
        census = self._census((task,))
        for pid in census.processes(first_process(task)):
            start = proc.start_time(pid)
            pidfd = None if start is None else proc.open_pidfd(pid, start)
            if start is None or pidfd is None:
                continue
            if proc.is_alive(pidfd):
                self.watch(task, Identity(pid, start), pidfd)
                return True
            os.close(pidfd)
        if task.arrival.uid not in census.unread:
            return False
        self._unsure[task.slot] = task, first_process(task)
        self._due = time.monotonic() + AGAIN
        return True

    def next_due(self) -> float | None:
        """Return when `run` has something to do, in seconds of CLOCK_MONOTONIC; None if never."""
        return self._due if self._unsure else None

    def run(self, now: float) -> None:
        """Handle again one of the ends after which the remaining processes of the task were not known."""
        if not self._unsure or now < self._due:
            return
        (slot, (task, who)), *others = self._unsure.items()
        self._unsure = {}
        try:
            if self._node.tasks.get(slot) is task and who not in self._pidfds.get(slot, {}):
                self._tell(task, who)
        finally:
            self._unsure = dict(others) | self._unsure

    def forget(self, task: Task) -> None:
        """Stop watching the processes of the task."""
        for pidfd in self._pidfds.pop(task.slot, {}).values():
            self._close(pidfd)

    def processes_of(self, task: Task) -> Callable[[], set[int]]:
        """Return a function that finds the present pids of a task, also of one that was released."""
        return lambda: self._census((task,)).processes(first_process(task))

    def processes_of_all(self, slots: Collection[int], stats: dict[int, Stat] | None = None) -> dict[int, set[int]]:
        """Return the pids of each task's processes, by slot, from one scan of all processes: `stats`, or a new one."""
        tasks, census = self._node.tasks, self._census(stats=stats)
        return {slot: census.processes(first_process(tasks[slot])) for slot in slots}

    def task_above(self, pid: int, named: Task | None = None) -> Task | None:
        """Return the task that process `pid` belongs to by descent, whichever user owns it; None if there is none.

        It is the task of the nearest ancestor, `pid` included, that is the first process of a task or was seen in one.
        An ancestor also belongs to the task `named` if it is of that task's user and has it in its environment.
        """
        find = self._node.grants.find
        oldest = min((task.arrival.start_time for task in self._node.tasks.values()), default=sys.maxsize)
        above = proc.ancestry(pid, most=MOST_ANCESTORS, since=oldest)
        for who in above:
            first = self._last and self._last.task_of(who)
            if task := find(*who) or (find(*first) if first else None):
                return task
        return named if named and any(_names(who, named) for who in above[1:]) else None

    def scan(self) -> dict[int, Stat]:
        """Return the stat of every process, by pid; state letters may be those of an earlier scan."""
        return self._stats.take()

    def _census(self, more: Iterable[Task] = (), stats: dict[int, Stat] | None = None) -> TaskProcesses:
        """Take a census for the tasks of the node and `more`."""
        tasks = {first_process(task): task.arrival.uid for task in (*self._node.tasks.values(), *more)}
        self._last = TaskProcesses(tasks, self.scan() if stats is None else stats, self._marks, self._last)
        return self._last

    def close(self) -> None:
        """Stop watching; the loop is about to end."""
        for mine in self._pidfds.values():
            for pidfd in mine.values():
                os.close(pidfd)

    def _close(self, pidfd: int) -> None:
        self._loop.unwatch(pidfd)
        os.close(pidfd)


def first_process(task: Task) -> Identity:
    """Return the first process of a task."""
    return Identity(task.arrival.pid, task.arrival.start_time)


def _names(who: Identity, task: Task) -> bool:
    """Return whether a process belongs to the user of a task and has that task in its environment."""
    if who.start_time < task.arrival.start_time or proc.owner(who.pid) != task.arrival.uid:
        return False
    return proc.named_task(who.pid) == first_process(task)
