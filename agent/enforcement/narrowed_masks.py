# SPDX-License-Identifier: Apache-2.0
"""Masks that programs have narrowed within what their task holds: they stay narrowed, whatever the task is granted.

As the kernel does for cpusets since Linux 6.2, the agent remembers the mask that a program has set, and a thread gets
the intersection of that mask and the task's grant. If the intersection is empty the thread gets the whole grant, and
its own part again once that part is granted. Masks set by the agent or by libdrom do not count as set by the program;
nor do those of OpenMP runtimes that bind their threads, and those of responders, which libdrom handles.

Nor does a mask that a binding finds within `SETTLED` of the grant before, as the thread may be about to restore one
that it read then: the library hwloc binds its thread to each CPU in turn when a program starts, to identify them.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from drom.agent.enforcement import affinity
from drom.agent.system import proc

from dromlib.cpulist import mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from drom.agent.enforcement.affinity import Result
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

GRANTS = 16
"""Number of grants of a task that are remembered: a thread with the mask of an older grant counts as narrowed."""
SETTLED = 1.0
"""Seconds after which a thread no longer sets a mask that it read under an earlier grant."""
MANY = 1024
"""Number of recorded threads of a task above which those that have ended are removed."""
BINDING = (b"OMP_PROC_BIND=", b"OMP_PLACES=", b"GOMP_CPU_AFFINITY=", b"KMP_AFFINITY=")
"""Variables by which OpenMP runtimes bind threads, unless their value is one of `NOT`."""
NOT = (b"", b"false", b"disabled")


@dataclass(slots=True)
class _Threads:
    """The threads of a task with masks of their own: the mask each has set, and the part it has been given, by id.

    `given` are masks that drom has set, the newest last; `bound` is the last mask to which all threads were bound.
    `changed` is when the grant was last replaced by another one, and `settled` whether the one before had lasted.
    """

    task: Task
    given: dict[int, None] = field(default_factory=dict)
    own: dict[int, tuple[int, int]] = field(default_factory=dict)
    bound: int = 0
    granted: int = 0
    changed: float = -math.inf
    settled: bool = True
    limit: int = MANY

    def give(self, mask: int) -> None:
        """Record that `mask` is set from now on."""
        if mask and mask not in self.given:
            self.given[mask] = None
            if len(self.given) > GRANTS:
                del self.given[next(iter(self.given))]

    def grant(self, mask: int) -> None:
        """Record that `mask` is granted from now on."""
        self.give(mask)
        if mask != self.granted and self.granted:
            self.settled, self.changed = self.is_settled(), time.monotonic()
        self.granted = mask

    def is_settled(self) -> bool:
        """Return whether the present grant has lasted for `SETTLED`."""
        return time.monotonic() - self.changed >= SETTLED


class NarrowedMasks:
    """The masks that programs of the tasks of `node` have narrowed. Masks are over OS CPUs."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._tasks: dict[int, _Threads] = {}
        self._fresh: set[int] = set()
        """The slots of tasks whose threads have the new mask only if a program has set it."""

    def granted(self, task: Task, mask: int) -> None:
        """Record that `mask` is granted to a task from now on: threads with it have no mask of their own."""
        self._of(task).grant(mask)

    def set_earlier(self, task: Task, mask: int) -> None:
        """Record that threads of a task may have `mask` from an earlier grant."""
        self._of(task).give(mask)

    def forget(self, task: Task) -> None:
        """Remove the record of a task that has ended."""
        if task.slot in self._tasks and self._tasks[task.slot].task is task:
            del self._tasks[task.slot]

    def in_force(self, task: Task) -> set[int]:
        """Return the masks that threads of a task have been given instead of a grant."""
        return {given for _, given in self._of(task).own.values()}

    def bind(
        self, masks: Mapping[int, int], find: Callable[[Collection[int]], Mapping[int, Collection[int]]]
    ) -> dict[int, Result]:
        """Bind every thread of the tasks in the slots to its part of these CPUs; `find` returns the pids of tasks."""
        fresh = {slot for slot, mask in masks.items() if self._is_fresh(slot, mask)}

        def look(slots: Collection[int]) -> Mapping[int, Collection[int]]:
            self._fresh = set(fresh)
            fresh.clear()  # from the second pass on children may have inherited the mask of a thread bound in the first
            return find(slots)

        rules = {slot: partial(_whatever, mask) for slot, mask in masks.items()}
        try:
            return affinity.apply_rules(rules, look, part=self.part)
        finally:
            self._fresh = set()

    def _is_fresh(self, slot: int, mask: int) -> bool:
        """Return whether a task gets a new mask, and has no responder, which would bind the task itself."""
        task = self._node.tasks.get(slot)
        if task is None:
            return False
        mine = self._of(task)
        before, mine.bound = mine.bound or task.applied, mask
        mine.grant(mask)
        return mask != before and task.responder is None

    def part(self, slot: int, pid: int, tid: int, now: int, mask: int) -> int:
        """Return the mask for a thread of the task in `slot` with the mask `now`, where other threads get `mask`."""
        known = self._tasks.get(slot)
        if known and now in known.given and tid not in known.own and (now != mask or slot not in self._fresh):
            return mask
        task = self._node.tasks.get(slot)
        if task is None:
            return mask
        mine = self._of(task)
        mine.give(mask)
        wish, got = mine.own.get(tid, (0, 0))
        if not wish or got != now:
            wish = self._wish(mine, pid, tid, now, is_new=now == mask and slot in self._fresh)
        if not wish:
            mine.own.pop(tid, None)
            return mask
        got = wish & mask or mask
        mine.own[tid] = wish, got
        if len(mine.own) > mine.limit:
            mine.own = {one: own for one, own in mine.own.items() if os.path.exists(f"/proc/{one}")}  # noqa: PTH110
            mine.limit = max(MANY, 2 * len(mine.own))
        return got

    def _of(self, task: Task) -> _Threads:
        found = self._tasks.get(task.slot)
        if found is None or found.task is not task:
            found = self._tasks[task.slot] = _Threads(task)
            for grant in task.grants:
                found.give(grant.mask)
        return found

    def _wish(self, mine: _Threads, pid: int, tid: int, now: int, *, is_new: bool) -> int:
        """Return the mask that a thread has set for itself; 0 if it has not. `is_new`: nothing else can have set it."""
        task = mine.task
        if (now in mine.given and not is_new) or now in (task.held, task.arrival.restore):
            return 0
        if not (mine.settled or mine.is_settled()) and (is_new or now not in self.in_force(task)):
            return 0
        inside = any(not now & ~mask and now != mask for mask in mine.given)
        responds = task.responder is not None and task.responder[0] == pid
        if not inside or responds or _binds_threads(pid):
            return 0
        try:  # moving a thread binds it to one CPU for a moment
            return now if mask_of(os.sched_getaffinity(tid)) == now else 0
        except OSError:
            return 0


def _whatever(mask: int, _now: int) -> int:
    """Return `mask`, whatever mask the thread has now."""
    return mask


def _binds_threads(pid: int) -> bool:
    """Return whether a process was started with a variable by which an OpenMP runtime binds its threads."""
    found = (entry.partition(b"=") for entry in proc.environment(pid) if entry.startswith(BINDING))
    return any(value.lower() not in NOT for _, _, value in found)
