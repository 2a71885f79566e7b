# SPDX-License-Identifier: Apache-2.0
"""Move threads apart that share a CPU of their grant while another CPU of the grant is idle.

A thread starts, or wakes up, on a CPU that suits at that moment: beside another thread of its team, if some process
(such as the agent) runs on the granted CPU, or if the kernel searches for an idle CPU only nearby. Threads that meet at
barriers may then alternate there for a tenth of a second: two of them are never runnable at once, so the kernel has
nothing to balance.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.enforcement import affinity
from drom.agent.system import cpu_times, proc

from dromlib.cpulist import cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from drom.agent.ipc.mailboxes import MailboxState
    from drom.agent.ipc.registry import Registry
    from drom.agent.model.jobs import Settled, Task
    from drom.agent.node.node import Node
    from drom.agent.system.cpu_times import Thread

LOOKS = (0.001, 0.003, 0.01, 0.03, 0.1)
"""Seconds after a change at which its threads are checked; once they are apart only the last check remains."""
ACTIVE = 0.05
"""Part of a CPU above which a thread counts as active."""


def active_threads_by_cpu(
    before: Mapping[int, Thread], now: Mapping[int, Thread], seconds: float
) -> dict[int, list[int]]:
    """Return the ids of the active threads of each OS CPU that has any: they run, or did for some of the `seconds`.

    `before` and `now` are the threads at two moments that many seconds apart.
    """
    found = defaultdict(list)
    for tid, thread in now.items():
        used = thread.used - (before[tid].used if tid in before else 0)
        if thread.runs or used > ACTIVE * seconds * 1e9:
            found[thread.cpu].append(tid)
    return found


def planned_migrations(
    crowded: Mapping[int, list[int]], now: Mapping[int, Thread], granted: Iterable[int]
) -> dict[int, int]:
    """Return the new CPU of each thread to be moved, by thread id: one of the `granted` OS CPUs without active threads.

    Of the threads that share a CPU those that run are moved: a sleeping thread would not move until it runs.
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
        """The time of the next check, on the monotonic clock."""
        return self.at + LOOKS[self.looks] - (LOOKS[self.looks - 1] if self.looks else 0.0)


class ThreadSpreading:
    """Checks tasks for a while after they have applied a grant; at other times its methods cost nothing.

    The registry has the thread that is being moved, so that the next agent can finish the move if this one dies.
    """

    def __init__(self, node: Node, read: Callable[[int], MailboxState | None], registry: Registry) -> None:
        """Check tasks of `node`; `read` returns the contents of a mailbox."""
        self._node = node
        self._read = read
        self._registry = registry
        self._watches: dict[int, _Watch] = {}

    def watch(self, done: Settled) -> None:
        """Check a task from now on, since it has applied a grant by itself.

        Tasks whose threads bind themselves one by one are not checked: moving such a thread could undo its own binding.
        """
        task = done.task
        if done.outcome == "applied" and done.new & ~done.old and done.new.bit_count() > 1 and task.responder:
            mail = self._read(task.mailbox)
            if mail is None or mail.pinned:
                return
            now = time.monotonic()
            self._watches[task.slot] = _Watch(task, done.epoch, 0, now, cpu_times.of_threads(task.responder[0]))

    def finish(self) -> None:
        """Restore the mask of the thread that an agent was moving when it died, if there is one."""
        if not (tid := self._registry.header("moved_tid")):
            return
        for task in self._node.tasks.values():
            if task.responder and tid in proc.threads(task.responder[0]):
                affinity.replace(tid, 1 << self._registry.header("moved_cpu"), task.applied)
        self._registry.record_move(0, 0)

    def next_due(self) -> float | None:
        """Return when `run` has something to do, in seconds of CLOCK_MONOTONIC; None if never."""
        return min((watch.due for watch in self._watches.values()), default=None)

    def run(self, now: float) -> None:
        """Check the tasks that are due, and move their threads apart."""
        for watch in [watch for watch in self._watches.values() if watch.due <= now]:
            del self._watches[watch.task.slot]
            responder = watch.task.responder
            if responder and self._is_still_so(watch):
                self._see(watch, responder[0])

    def _is_still_so(self, watch: _Watch) -> bool:
        """Return whether the agent has published no grant since, so that these threads are not being bound now."""
        task = watch.task
        known = self._node.tasks.get(task.slot) is task and not self._node.grants.frozen
        return known and len(task.grants) == 1 and task.epoch == watch.epoch

    def _see(self, watch: _Watch, pid: int) -> None:
        now, threads, mask = time.monotonic(), cpu_times.of_threads(pid), watch.task.applied
        granted = cpus(mask)
        crowded = active_threads_by_cpu(watch.threads, threads, now - watch.at)
        for tid, cpu in planned_migrations(crowded, threads, granted).items():
            self._registry.record_move(tid, cpu)
            affinity.migrate_thread(tid, cpu, mask)
            self._registry.record_move(0, 0)
        apart = watch.looks > 0 and crowded.keys() >= set(granted)
        looks = len(LOOKS) - 1 if apart and watch.looks < len(LOOKS) - 1 else watch.looks + 1
        if looks < len(LOOKS):
            self._watches[watch.task.slot] = watch._replace(looks=looks, at=now, threads=threads)
