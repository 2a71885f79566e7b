# SPDX-License-Identifier: Apache-2.0
"""Carries out the node's decisions: saves records, publishes grants, binds threads."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from drom.agent.enforcement.narrowed_masks import NarrowedMasks
from drom.agent.enforcement.repair import MaskWidening
from drom.agent.model.jobs import Action, Bind, FreeSlot, Publish, Settled, Start, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from drom.agent.daemon.process_watch import ProcessWatcher
    from drom.agent.enforcement.cpusets import TaskCpusets
    from drom.agent.enforcement.spread import ThreadSpreading
    from drom.agent.ipc.registry import Registry
    from drom.agent.node.node import Node
    from drom.agent.observe.reporter import EventReporter


class ActuatorListener(Protocol):
    """Receives the events of tasks."""

    def started(self, task: Task) -> None:
        """Handle the first grant of a task."""

    def forgotten(self, task: Task) -> None:
        """Clean up after a task that is over; this takes longer than granting the task's cores to others."""


class Actuator:
    """Carries out the actions of `node`. `binds`: threads are bound; otherwise (emulation, observation) only recorded.

    Set `listener` before the first action, and the other two before the first binding: `enforced` is called with each
    task that was bound instead of by its responder, `failed` with the name of the part that failed and its error, which
    may not recur. `torn`: an action has failed before others were carried out, which
    `drom.agent.daemon.recovery.Recovery` repairs.
    """

    listener: ActuatorListener
    enforced: Callable[[Task], None]
    failed: Callable[[str, Exception], None]

    def __init__(
        self,
        node: Node,
        registry: Registry,
        watcher: ProcessWatcher,
        spreading: ThreadSpreading,
        report: EventReporter,
        *,
        binds: bool,
        cpusets: TaskCpusets | None = None,
    ) -> None:
        self.binds = binds
        self.cpusets = cpusets
        self.node = node
        self.registry = registry
        self.watcher = watcher
        self.report = report
        self.spreading = spreading
        self.torn = False
        self.narrowed = NarrowedMasks(node)
        self.widening = MaskWidening(node, watcher.processes_of_all, self.narrowed)
        self._queue: deque[Action] = deque()
        self._binds: dict[int, Bind] = {}
        self._over: list[Task] = []

    def execute(self, actions: list[Action]) -> None:
        """Carry out actions in order, bindings after all others; actions that result from them follow."""
        try:
            self._execute(actions)
        except BaseException:
            self.torn = True
            raise

    def drop(self) -> tuple[list[Task], list[Task]]:
        """Drop the remaining actions; return the tasks that were to start, and the ended ones to be cleaned up."""
        starting = [action.task for action in self._queue if isinstance(action, Start)]
        over, self._over = self._over, []
        self._queue.clear()
        self._binds.clear()
        self.torn = False
        return starting, over

    def _execute(self, actions: list[Action]) -> None:
        self._enqueue(actions)
        while self._queue or self._binds:
            if not self._queue:
                self._bind_waiting()
                continue
            action = self._queue.popleft()
            if isinstance(action, Publish):
                self._publish(action)
            elif isinstance(action, Bind):
                self._binds[action.task.slot] = action
            elif isinstance(action, Start):
                self._start(action)
            elif isinstance(action, FreeSlot):
                self.narrowed.forget(action.task)
                self._over.append(action.task)
            elif isinstance(action, Settled):
                self.report.done(action)
                if self.binds:
                    self.spreading.watch(action)
                    self._widen_again(action)
        while self._over:
            self.listener.forgotten(self._over[-1])
            self._over.pop()

    def _widen_again(self, done: Settled) -> None:
        """Look again at the threads of a task that was bound to more CPUs: one may have restored its earlier mask.

        hwloc does so in programs that start: it binds its thread to each CPU in turn to identify it.
        """
        if done.outcome == "bound" and done.old and done.new & ~done.old:
            self.widening.task_grew(done.task, done.old, time.monotonic())

    def _start(self, action: Start) -> None:
        self.report.started(action.task)
        try:
            self.listener.started(action.task)
        except BaseException:
            self._queue.appendleft(action)
            raise

    def _enqueue(self, actions: list[Action]) -> None:
        self._queue += actions
        for task in [action.task for action in actions if isinstance(action, FreeSlot)]:
            self.registry.forget(task)
            if self.cpusets:
                self.cpusets.remove(task)
        self.save()

    def save(self) -> None:
        """Write changed records and cpusets of tasks; tasks that hold less than the file says come first."""
        node = self.node
        for task in sorted(node.grants.take_unsaved(), key=lambda t: not self.registry.held(t.slot) & ~t.held):
            self.registry.save(task, node.jobs[task.job], target=node.plan.target(task), owned=node.plan.owned(task))
            cpusets, allowed = self.cpusets, node.grants.allowed(task)
            if cpusets and (fault := cpusets.update(task, allowed, self.watcher.processes_of(task))):
                self.report.cpuset_failed(task, fault)

    def bind_threads(self, masks: Mapping[int, int]) -> set[int]:
        """Bind every thread of the tasks in the slots to these CPUs; return the slots where a binding failed."""
        failed = set()
        for slot, result in self.narrowed.bind(masks, self.watcher.processes_of_all).items():
            if result.failed:
                self.report.bind_failed(self.node.tasks[slot], result)
                failed.add(slot)
        return failed

    def _publish(self, action: Publish) -> None:
        task = action.task
        if self.node.tasks.get(task.slot) is not task:
            return
        self.registry.publish(task, action.epoch, action.mask, action.reason)
        self.narrowed.granted(task, action.mask)
        self.report.granted(action)

    def _bind_waiting(self) -> None:
        """Bind all tasks that wait for it, in joint walks over the processes."""
        node, binds = self.node, self._binds
        self._binds = {}
        due = [b for b in binds.values() if node.tasks.get(b.task.slot) is b.task and b.task.epoch == b.epoch]
        masks = {bind.task.slot: bind.mask or node.grants.where_it_rests(bind.task) for bind in due}
        failed = self._bind_all(masks) if self.binds else set()
        now = time.monotonic()
        for slot in failed:
            node.grants.bind_failed(slot, now)
        bound = [bind for bind in due if bind.task.slot not in failed]
        enforced = [bind.task for bind in bound if bind.task.responder]
        self._enqueue(node.grants.in_force({bind.task.slot: bind.epoch for bind in bound}, "bound", now))
        for task in enforced:
            self.report.enforced()
            self.enforced(task)

    def _bind_all(self, masks: Mapping[int, int]) -> set[int]:
        """Bind as `bind_threads`; if the processes cannot be read, return all slots."""
        try:
            return self.bind_threads(masks)
        except OSError as error:
            self.failed("binding", error)
            return set(masks)
