# SPDX-License-Identifier: Apache-2.0
"""Threads that share a CPU of their grant while another one of it idles, moved apart.

A thread is born, or wakes up, where it fits at that moment: beside its like, if somebody (such as the agent) is on the
CPU that was granted, or if the kernel looks for an idle one only nearby. Threads that meet at barriers may then take
turns there for a tenth of a second: never are two of them runnable at once, so the kernel has nothing to balance.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.enforcement import affinity
from drom.agent.system import cpu_times

from dromlib.cpulist import cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drom.agent.ipc.mailboxes import Mail
    from drom.agent.model.jobs import Done, Task
    from drom.agent.node.node import Node
    from drom.agent.system.cpu_times import Thread

LOOKS = (0.001, 0.003, 0.01, 0.03, 0.1)
"""Seconds after a change at which its threads are looked at; once they are apart only the last look is left."""
ACTIVE = 0.05
"""Share of a CPU from which on a thread is active."""


def crowds(before: Mapping[int, Thread], now: Mapping[int, Thread], seconds: float) -> dict[int, list[int]]:
    """Return the active threads, by id, of each OS CPU that has any: those that run, or did for some of the `seconds`.

    `before` and `now` are the threads at two moments, so many seconds apart.
    """
    found = defaultdict(list)
    for tid, thread in now.items():
        used = thread.used - (before[tid].used if tid in before else 0)
        if thread.runs or used > ACTIVE * seconds * 1e9:
            found[thread.cpu].append(tid)
    return found


def moves(crowded: Mapping[int, list[int]], now: Mapping[int, Thread], granted: Iterable[int]) -> dict[int, int]:
    """Return which threads, by id, should go on on which of the `granted` OS CPUs, none of which has a crowd.

    Of those that share a CPU the ones that run are moved: the others would not go until they do.
    """
    spare = [tid for crowd in crowded.values() for tid in sorted(crowd, key=lambda tid: now[tid].runs)[1:]]
    idle = (cpu for cpu in granted if cpu not in crowded)
    return dict(zip(sorted(spare, key=lambda tid: not now[tid].runs), idle, strict=False))


class _Watch(NamedTuple):
    task: Task
    epoch: int
    looks: int
    at: float
    threads: dict[int, Thread]

    @property
    def due(self) -> float:
        """When the next look is, on the monotonic clock."""
        return self.at + LOOKS[self.looks] - (LOOKS[self.looks - 1] if self.looks else 0.0)


class Spreading:
    """Looks at tasks for a while after they have applied a grant; what is asked of it costs nothing at other times."""

    def __init__(self, node: Node, read: Callable[[int], Mail | None]) -> None:
        """Look after tasks of `node`; `read` returns what a mailbox says."""
        self._node = node
        self._read = read
        self._watches: dict[int, _Watch] = {}

    def watch(self, done: Done) -> None:
        """Look after a task from now on: it has put a grant in force, by itself.

        Not where threads bind themselves one by one: nobody can move a thread without undoing what it does meanwhile.
        """
        task = done.task
        if done.outcome == "applied" and done.new & ~done.old and done.new.bit_count() > 1 and task.responder:
            mail = self._read(task.mailbox)
            if mail is None or mail.pinned:
                return
            now = time.monotonic()
            self._watches[task.slot] = _Watch(task, done.epoch, 0, now, cpu_times.of_threads(task.responder[0]))

    def next_look(self) -> float | None:
        """When `look` has something to do, on the monotonic clock."""
        return min((watch.due for watch in self._watches.values()), default=None)

    def look(self, now: float) -> None:
        """Move apart what is due to be looked at."""
        for watch in [watch for watch in self._watches.values() if watch.due <= now]:
            del self._watches[watch.task.slot]
            responder = watch.task.responder
            if responder and self._is_still_so(watch):
                self._see(watch, responder[0])

    def _is_still_so(self, watch: _Watch) -> bool:
        """Say whether nobody binds these threads now: the agent has published nothing since."""
        task = watch.task
        known = self._node.tasks.get(task.slot) is task and not self._node.frozen
        return known and len(task.grants) == 1 and task.epoch == watch.epoch

    def _see(self, watch: _Watch, pid: int) -> None:
        now, threads, mask = time.monotonic(), cpu_times.of_threads(pid), watch.task.applied
        granted = cpus(mask)
        crowded = crowds(watch.threads, threads, now - watch.at)
        for tid, cpu in moves(crowded, threads, granted).items():
            affinity.push(tid, cpu, mask)
        apart = watch.looks > 0 and crowded.keys() >= set(granted)
        looks = len(LOOKS) - 1 if apart and watch.looks < len(LOOKS) - 1 else watch.looks + 1
        if looks < len(LOOKS):
            self._watches[watch.task.slot] = watch._replace(looks=looks, at=now, threads=threads)
