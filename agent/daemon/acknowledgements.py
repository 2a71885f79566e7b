# SPDX-License-Identifier: Apache-2.0
"""What programs report in their mailboxes, and the checks it has to pass before the agent acts on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drom.agent.enforcement import affinity
from drom.agent.model.jobs import Demand

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drom.agent.daemon.actuator import Actuator
    from drom.agent.ipc.mailboxes import Mailboxes, MailboxState
    from drom.agent.model.jobs import Grant, Task


PAUSE = 0.5
"""Seconds for which acknowledgements cause no second check of threads: of a program that applied a grant too late,
which repair rounds confine as well, and of one whose threads kept moving, which is bound after the grace time."""


class AckProcessor:
    """Reads the mailboxes; `responder_left` is called with each task that its responder has left."""

    def __init__(self, mailboxes: Mailboxes, actuator: Actuator, responder_left: Callable[[Task], None]) -> None:
        self._mailboxes = mailboxes
        self._actuator = actuator
        self._node = actuator.node
        self._responder_left = responder_left
        self._late: dict[int, float] = {}
        self._restless: dict[int, float] = {}
        """When threads were last checked, by slot."""
        self.missed = False
        """Whether mail has come that could not be handled: `read_all` reads it again."""

    def read(self) -> None:
        """Read the mailboxes that have changed since the last call."""
        self.missed = True
        numbers = self._mailboxes.changed_mailboxes()
        tasks = self._node.tasks.values()
        self._read_one([task for task in tasks if numbers is None or task.mailbox in numbers])
        self.missed = False

    def read_all(self) -> None:
        """Read every mailbox."""
        self._read_one(list(self._node.tasks.values()))
        self.missed = False

    def _read_one(self, tasks: Iterable[Task]) -> None:
        if self._node.grants.frozen:
            return  # all mailboxes are read when the node thaws: an acknowledgement may require threads to be bound
        said: dict[int, Grant] = {}
        wishes: dict[int, Demand] = {}
        late: list[Task] = []
        for task in tasks:
            mail = self._mailboxes.read(task.mailbox)
            if mail is None or task.responder is None or self._node.tasks.get(task.slot) is not task:
                continue
            if mail.applied == layout.EPOCH_RETIRED:
                self._actuator.report.user_event(
                    task.arrival.uid, "responder_left", job=task.job, pid=task.responder[0]
                )
                self._responder_left(task)
                self._actuator.save()
                continue
            if (wish := demand_in(mail)) != task.said:
                wishes[task.slot] = wish
            grant = next((grant for grant in task.grants[1:] if grant.epoch == mail.applied), None)
            if grant:
                said[task.slot] = grant
            elif task.grants and 0 < mail.applied < task.grants[0].epoch:
                late.append(task)
        if self._actuator.binds:
            self._confine_late(late)
        # Actions for other tasks may have superseded a grant, or the task.
        valid = {slot: g for slot, g in said.items() if slot in self._node.tasks and g in self._node.tasks[slot].grants}
        believed = self._verify_threads(valid) if self._actuator.binds else valid
        epochs = {slot: grant.epoch for slot, grant in believed.items()}
        self._actuator.execute(self._node.grants.in_force(epochs, "applied", time.monotonic()))
        wishes = {slot: wish for slot, wish in wishes.items() if slot in self._node.tasks}
        self._actuator.execute(self._node.demands_reported(wishes, time.monotonic()))

    def _confine_late(self, late: Iterable[Task]) -> None:
        """Confine programs that applied a grant after the agent had enforced a newer one."""
        tasks, now = self._node.tasks, time.monotonic()
        self._late = _recent(self._late, now)
        due = [task for task in late if tasks.get(task.slot) is task and task.slot not in self._late]
        rules = {task.slot: affinity.within(task.held) for task in due}
        self._late |= dict.fromkeys(rules, now)
        find = self._actuator.watcher.processes_of_all
        for slot, result in affinity.apply_rules(
            rules, find, most=affinity.FEW_PASSES, part=self._actuator.narrowed.part
        ).items():
            if result.changed:
                self._actuator.report.confined(tasks[slot], result.changed)

    def _verify_threads(self, said: dict[int, Grant]) -> dict[int, Grant]:
        """Return the grants that the threads have applied: cores are passed on only after no thread may run on them."""
        tasks = self._node.tasks
        leaving = {slot: grant.mask for slot, grant in said.items() if tasks[slot].held & ~grant.mask}
        for slot in said.keys() - leaving:
            task = tasks[slot]
            responder = task.responder[0] if task.responder else 0
            self._actuator.widening.task_grew(task, task.applied, time.monotonic(), responder=responder)
        self._restless = _recent(self._restless, time.monotonic())
        believed = {slot: grant for slot, grant in said.items() if slot not in leaving.keys() & self._restless}
        rests = self._node.grants.where_it_rests
        masks = {slot: mask or rests(tasks[slot]) for slot, mask in leaving.items() if slot in believed}
        rules = {slot: affinity.within(mask) for slot, mask in masks.items()}
        find = self._actuator.watcher.processes_of_all
        for slot, result in affinity.apply_rules(rules, find, part=self._actuator.narrowed.part).items():
            if result.changed:
                self._actuator.report.confined(tasks[slot], result.changed)
            if result.failed:
                self._node.grants.bind_failed(slot, time.monotonic())
                del believed[slot]
            if not result.settled:
                self._restless[slot] = time.monotonic()
        return believed


def _recent(times: dict[int, float], now: float) -> dict[int, float]:
    return {slot: at for slot, at in times.items() if now - at < PAUSE}


def demand_in(mail: MailboxState) -> Demand:
    """Return the number of CPUs that the program reports it can use, and whether its task may rest."""
    return Demand(mail.wanted_min, mail.wanted_max, mail.min_tasks, mail.max_tasks)
