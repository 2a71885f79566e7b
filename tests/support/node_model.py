# SPDX-License-Identifier: Apache-2.0
"""A node with the agent's own shell around it: a real registry, what carries actions out, and deaths in between.

Nothing is bound. A book says on which CPUs each program may be: those of every grant published and not superseded.
"""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from drom.agent.daemon.actuator import Actuator
from drom.agent.ipc import registry
from drom.agent.ipc.registry import Owner, Registry
from drom.agent.model.jobs import Settled
from drom.agent.node.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.model.jobs import Action, Arrival, Job, Reservation, Task
    from drom.agent.policy.site_rules import SiteRules

CAPACITY = 64
OWNER = Owner(os.getpid(), 1, bytes(16), 0, emulated=True)


class Killed(Exception):  # noqa: N818 - it is no error
    """Raised where the agent is killed."""


class Book(Registry):
    """A registry that keeps the book, and in which the agent dies `fuse` stores from now on (None: never)."""

    node: Node
    in_use: dict[int, int]
    fuse: int | None = None

    def _burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Killed

    def save(self, task: Task, job: Job, *, target: int, owned: int) -> None:
        """Save between two chances to die."""
        self._burn()
        super().save(task, job, target=target, owned=owned)
        self._burn()

    def publish(self, task: Task, epoch: int, mask: int, reason: str) -> None:
        """Publish between two chances to die; nobody else may still be on these CPUs."""
        others = 0
        for slot, used in self.in_use.items():
            others |= used if slot != task.slot else 0
        assert not self.node.grants.frozen, "a frozen node publishes"
        assert not mask & others, "a grant meets CPUs that another program may still be on"
        self._burn()
        super().publish(task, epoch, mask, reason)
        self.in_use[task.slot] = self.in_use.get(task.slot, 0) | mask
        self._burn()

    def forget(self, task: Task) -> None:
        """Give a slot back between two chances to die; the dead are on no CPU."""
        self._burn()
        self.in_use.pop(task.slot, None)
        super().forget(task)
        self._burn()


class World:
    """The agent and the programs of a node, and what outlives an agent."""

    _first: list[Action]

    def __init__(self, folder: Path, node: Node) -> None:
        self._path = folder / "registry"
        self.dead: set[int] = set()
        self.leaving: set[int] = set()
        """First processes of waiting tasks that are found gone when they are told of their first grant."""
        self._now = 0.0
        self.reserved: dict[str, Reservation] = {}
        self.confined: dict[int, Arrival] = {}
        """The arrivals of processes, which say what confines them, by pid."""
        self._settle(node, Book.create(self._path, CAPACITY, 64, OWNER), {})

    def _settle(self, node: Node, records: Registry, in_use: dict[int, int]) -> None:
        assert isinstance(records, Book)
        self.node, self.book = node, records
        records.node, records.in_use = node, in_use
        nobody: Callable[..., None] = lambda *_, **__: None  # noqa: E731 - a word for many
        report = SimpleNamespace(started=nobody, granted=nobody, enforced=nobody, done=self._done)
        watcher, unused = cast("Any", SimpleNamespace(processes_of_all=nobody)), cast("Any", None)
        self.actuator = Actuator(node, records, watcher, unused, cast("Any", report), binds=False)
        listener = SimpleNamespace(started=self._started, forgotten=nobody)
        self.actuator.listener, self.actuator.enforced = cast("Any", listener), nobody

    def _started(self, task: Task) -> None:
        if task.arrival.pid in self.leaving:
            self.dead.add(task.arrival.pid)
            self.actuator.execute(self.node.ended(task.slot, self._now))

    def _done(self, done: Settled) -> None:
        self.book.in_use[done.task.slot] = done.task.held

    def do(self, actions: list[Action], now: float) -> bool:
        """Have actions carried out; where the agent dies of that the next one takes over. Say whether it lived."""
        self._now = now
        try:
            self.actuator.execute(actions)
        except Killed:
            self._die(now)
            return False
        return True

    def _die(self, now: float) -> None:
        """Lose an agent, and have the next one take over. What is in force is so, also if nobody was told yet."""
        for action in self.actuator._queue:
            if isinstance(action, Settled):
                self.book.in_use[action.task.slot] &= action.task.held
        self.restart(now, self.node.plan.rules)

    def arrive(self, arrival: Arrival, now: float) -> Task | None:
        """Let a task arrive as at the door; None where that killed the agent."""
        self._now = now
        self.confined[arrival.pid] = arrival
        task, actions = self.node.arrive(arrival, now)
        try:
            if task.arrival.pid != arrival.pid:  # it has joined a running task
                self.actuator.execute(actions)
                return task
            self.book.register(task, self.node.jobs[task.job])
            self.actuator.execute(actions)
        except Killed:
            self._die(now)
            return None
        return task

    def restart(self, now: float, rules: SiteRules, *, act: bool = True) -> None:
        """Have another agent adopt what the file says, as after an upgrade or a death; then it has to `go_on`."""
        old = self.node
        node = Node(
            old.cores, old.plan.place, rules=rules, memory=old.plan.memory, grace=old.grants.grace, capacity=CAPACITY
        )
        node.plan.many = old.plan.many
        node.set_usable_cpus(old.plan.usable, now, old.plan.gone, old.plan.busy, old.plan.foreign)
        if old.grants.frozen:
            node.freeze(now)
        wishes = {task.arrival.pid: task.said for task in old.tasks.values()}
        in_use = self.book.in_use
        self.close()
        self._settle(node, Book.open(self._path), in_use)
        found, owned = [], dict[str, int]()
        for record in sorted(self.book.records(), key=lambda record: record.fields["arrival"]):
            task, job = registry.restore(record)
            if known := self.confined.get(task.arrival.pid):
                task.arrival = replace(
                    task.arrival, cpuset=known.cpuset, batch_job=known.batch_job, batch_cpuset=known.batch_cpuset
                )
            if task.responder and task.arrival.pid in wishes:
                task.said = task.wish = wishes[task.arrival.pid]  # they stand in the mailbox
            found.append((task, job))
            owned[job.name] = owned.get(job.name, 0) | record.masks["owned"]
            assert not in_use.get(task.slot, 0) & ~task.held, "a program may be on CPUs that its record does not hold"
        self.book.in_use = {task.slot: task.held for task, _ in found if task.held}
        node.grants.remember(self.book.epochs(), self.book.capacity)
        self._first = node.adopt(found, owned, self.book.header("arrivals"), now, list(self.reserved.values()))
        for name, wanted in list(self.reserved.items()):
            if name in node.jobs and node.jobs[name].reserved:
                self.reserved[name] = replace(wanted, cores=node.jobs[name].cores)
            else:
                assert node.plan.avoided, f"{name} is lost although no CPU has gone"
                del self.reserved[name]
        if act:
            self.go_on(now)

    def go_on(self, now: float) -> None:
        """Have a new agent do what follows from what it has adopted, and take in who has died meanwhile."""
        self._now = now
        self.actuator.execute(self._first)
        for task in list(self.node.tasks.values()):
            if task.arrival.pid in self.dead and self.node.tasks.get(task.slot) is task:
                self.actuator.execute(self.node.ended(task.slot, now))

    def close(self) -> None:
        """Unmap the registry."""
        self.book.memory.release()

    def let_go(self, pid: int) -> None:
        """Take in that a task is nobody's any more, as far as the next agent knows."""
        self.dead.add(pid)

    def ended(self, slot: int, now: float) -> None:
        """Let all processes of a task end."""
        self.dead.add(self.node.tasks[slot].arrival.pid)
        self.do(self.node.ended(slot, now), now)

    def unsaved(self) -> list[str]:
        """Return in what the file differs from what a restart needs to know."""
        plan, found = self.node.plan, []
        records = {record.index: record for record in self.book.records()}
        if records.keys() != self.node.tasks.keys():
            return [f"slots {sorted(records)} are in use, tasks are in {sorted(self.node.tasks)}"]
        for slot, task in self.node.tasks.items():
            wanted = registry.kept(task, self.node.jobs[task.job], plan.target(task), plan.owned(task))
            there = records[slot].fields | records[slot].masks
            found += [f"{name} in slot {slot} is {there[name]}" for name, w in wanted.items() if there[name] != w]
        return found
