# SPDX-License-Identifier: Apache-2.0
"""More CPUs for the processes of a task that do not handle grants, a while after the task's responder applied one.

Finding them means reading every process of the machine: milliseconds on a CPU that the program has just been granted.
Nothing waits for the result, so the program starts on its new CPUs first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.enforcement import affinity
from drom.agent.enforcement.narrowed_masks import NarrowedMasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

DELAY = 0.1
"""Seconds from the first growth until `run` is due."""


class MaskWidening:
    """Gives threads that still have an earlier mask the CPUs that their task has applied by then.

    `find` returns the pids of tasks, by slot; `narrowed` records which threads have masks of their own.
    """

    def __init__(
        self, node: Node, find: Callable[[Collection[int]], dict[int, set[int]]], narrowed: NarrowedMasks | None = None
    ) -> None:
        self._node = node
        self._find = find
        self._narrowed = narrowed or NarrowedMasks(node)
        self._masks: dict[int, tuple[Task, set[int]]] = {}
        self._due: float | None = None

    def task_grew(self, task: Task, old: int, now: float) -> None:
        """Record that a task has more CPUs than the `old` ones, at `now` on the monotonic clock."""
        known, masks = self._masks.setdefault(task.slot, (task, set()))
        self._masks[task.slot] = (task, {*masks, old} if known is task else {old})
        self._narrowed.granted(task, old)
        if self._due is None:
            self._due = now + DELAY

    def next_due(self) -> float | None:
        """Return when `run` has something to do, in seconds of CLOCK_MONOTONIC; None if never."""
        return None if self._node.grants.frozen else self._due

    def run(self, now: float) -> None:
        """Widen the masks of tasks that are due. Threads of responders are left alone: responders bind their own."""
        if self._due is None or now < self._due or self._node.grants.frozen:
            return
        tasks = [(task, masks) for task, masks in self._masks.values() if self._node.tasks.get(task.slot) is task]
        self._due = now + DELAY  # retry then if this fails
        own = self._narrowed.in_force
        rules = {task.slot: affinity.instead_of(masks | own(task), task.applied) for task, masks in tasks}
        responders = {task.slot: task.responder[0] for task, _ in tasks if task.responder}

        def others(slots: Collection[int]) -> dict[int, set[int]]:
            return {slot: pids - {responders.get(slot)} for slot, pids in self._find(slots).items()}

        affinity.apply_rules(rules, others, part=self._narrowed.part)
        self._masks, self._due = {}, None
