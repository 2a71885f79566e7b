# SPDX-License-Identifier: Apache-2.0
"""Repair masks that other programs have rewritten so that threads may run on CPUs their task does not hold.

The kernel does not report when a mask is set, so the threads of all tasks are checked in rounds. A mask within the
CPUs that a task holds is left alone, whichever process set it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from drom.agent.enforcement import affinity
from drom.agent.enforcement.narrowed_masks import NarrowedMasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

LEAST, MOST = 0.8, 4.0
"""Seconds between two rounds."""
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
        rules = {slot: affinity.within(task.held) for slot, task in self._node.tasks.items() if task.started}
        results = affinity.apply_rules(rules, self._find, most=affinity.FEW_PASSES, part=self._narrowed.part)
        moved = {slot: result.changed for slot, result in results.items() if result.changed}
        for slot, threads in moved.items():
            self._log.repaired(self._node.tasks[slot], threads, again=slot in self._astray)
        self._astray = set(moved)
        seen = sum(result.changed + result.kept for result in results.values())
        self._due = time.monotonic() + pause(time.thread_time() - begin, seen)
