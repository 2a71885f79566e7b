# SPDX-License-Identifier: Apache-2.0
"""Repair the masks of threads: those that permit CPUs their task does not hold, and those from before it grew.

The kernel does not report when a mask is set, so the threads of all tasks are checked in rounds, whichever process set
their masks. Other masks within the CPUs that a task holds are left alone.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from drom.agent.enforcement import affinity
from drom.agent.enforcement.narrowed_masks import NarrowedMasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

LEAST, MOST = 0.8, 4.0
"""Seconds between two rounds."""
DELAY = 0.1
"""Seconds from the growth of a task until its other threads are widened; doubled up to `MOST` while some were."""
FEW = 1024
"""Number of threads up to which repairs should take no more than a second."""
SHARES = (0.05, 0.0125)
"""Parts of a CPU that rounds may use, for few threads and for more, as far as `LEAST` and `MOST` permit."""


def pause(took: float, threads: int) -> float:
    """Return the seconds until the next round, after a round that took `took` seconds of CPU time for `threads`."""
    return min(MOST, max(LEAST, took / SHARES[threads > FEW]))


class RepairLog(Protocol):
    """Records what was repaired."""

    def repaired(self, task: Task, threads: int, *, again: bool) -> None:
        """Record that the masks of `threads` threads of a task were repaired; `again`: also in the last round."""


class MaskRepair:
    """Confines the started tasks of `node` to the CPUs they hold, if the agent `binds` threads at all.

    `find` returns the pids of tasks, by slot.
    """

    def __init__(
        self,
        node: Node,
        find: Callable[[Collection[int]], dict[int, set[int]]],
        log: RepairLog,
        *,
        binds: bool,
        narrowed: NarrowedMasks | None = None,
    ) -> None:
        self._node = node
        self._find = find
        self._log = log
        self._binds = binds
        self._narrowed = narrowed or NarrowedMasks(node)
        self._due = 0.0
        self._astray: set[int] = set()

    def next_due(self) -> float | None:
        """Return when `run` has something to do, in seconds of CLOCK_MONOTONIC; None if never."""
        return self._due if self._binds and self._node.tasks and not self._node.grants.frozen else None

    def run(self, now: float) -> None:
        """Run a round, if one is due."""
        due = self.next_due()
        if due is None or now < due:
            return
        begin = time.thread_time()
        masks = {slot: self._node.grants.allowed(task) for slot, task in self._node.tasks.items()}
        rules = {slot: affinity.within(mask) for slot, mask in masks.items() if mask}
        results = affinity.apply_rules(rules, self._find, most=affinity.FEW_PASSES, part=self._narrowed.part)
        moved = {slot: result.changed for slot, result in results.items() if result.changed}
        for slot, threads in moved.items():
            self._log.repaired(self._node.tasks[slot], threads, again=slot in self._astray)
        self._astray = set(moved)
        seen = sum(result.changed + result.kept for result in results.values())
        self._due = time.monotonic() + pause(time.thread_time() - begin, seen)


@dataclass(slots=True)
class _Growth:
    """A task that grew: the masks it had before, and the process that applied the last growth itself, or 0."""

    task: Task
    earlier: set[int]
    responder: int = 0


class MaskWidening:
    """Gives threads that still have an earlier mask a while after their task grew the CPUs that it has applied by then.

    They belong to processes that do not handle grants as the task's responder does, or restored a mask that they had
    read before. Finding them means reading every process of the machine: milliseconds on a CPU that the program has
    just been granted. Nothing waits for the result, so the program starts on its new CPUs first.

    `find` returns the pids of tasks, by slot; `narrowed` records which threads have masks of their own.
    """

    def __init__(
        self, node: Node, find: Callable[[Collection[int]], dict[int, set[int]]], narrowed: NarrowedMasks | None = None
    ) -> None:
        self._node = node
        self._find = find
        self._narrowed = narrowed or NarrowedMasks(node)
        self._growths: dict[int, _Growth] = {}
        self._due: float | None = None
        self._pause = DELAY

    def task_grew(self, task: Task, old: int, now: float, *, responder: int = 0) -> None:
        """Record that a task has more CPUs than the `old` ones, at `now` on the monotonic clock.

        `responder`: the process that binds its own threads because it applied the growth itself; they are left alone.
        """
        growth = self._growths.get(task.slot)
        if growth is None or growth.task is not task:
            growth = self._growths[task.slot] = _Growth(task, set())
        growth.earlier.add(old)
        growth.responder = responder
        self._narrowed.set_earlier(task, old)
        self._pause = DELAY
        self._due = min(self._due or math.inf, now + DELAY)

    def next_due(self) -> float | None:
        """Return when `run` has something to do, in seconds of CLOCK_MONOTONIC; None if never."""
        return None if self._node.grants.frozen else self._due

    def run(self, now: float) -> None:
        """Widen the masks of tasks that are due, and look at those again of which a thread had an earlier mask."""
        if self._due is None or now < self._due or self._node.grants.frozen:
            return
        growths = {slot: one for slot, one in self._growths.items() if self._node.tasks.get(slot) is one.task}
        self._due = now + DELAY  # retry then if this fails
        own = self._narrowed.in_force
        rules = {slot: affinity.instead_of(g.earlier | own(g.task), g.task.applied) for slot, g in growths.items()}

        def others(slots: Collection[int]) -> dict[int, set[int]]:
            return {slot: pids - {growths[slot].responder} for slot, pids in self._find(slots).items()}

        results = affinity.apply_rules(rules, others, part=self._narrowed.part)
        self._pause *= 2
        again = self._pause <= MOST
        self._growths = {slot: growth for slot, growth in growths.items() if again and results[slot].changed}
        self._due = now + self._pause if self._growths else None
