# SPDX-License-Identifier: Apache-2.0
"""The tasks of a node and their grants: what may be published of the plan, and what acknowledgements change.

Held sets are always pairwise disjoint. No clock, no file, no socket: times are arguments.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model.jobs import Action, Bind, Grant, Publish, Settled, Start, Task, action_name
from drom.agent.node.admission import why_waits
from drom.agent.node.changes import Changes, Index
from drom.agent.placement.transitions import TaskState, next_grants
from drom.agent.text import cpus_are

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.agent.model.jobs import Arrival, Job
    from drom.agent.node.plan import Plan

RETRY = 0.1
"""Least seconds between two attempts to bind a task."""
CHANGES = {"shrink": "shrinking", "rest": "shrinking", "grow": "growing", "start": "growing"}
"""The states of tasks during changes, by the names of these."""


class Grants:
    """The tasks of a node by slot. `plan` has the target of each.

    `grace` is how long a program may take to apply a grant before the agent binds it (seconds); `capacity` is the
    number of slots. While `frozen_since` is a time, no grant is published and no task is bound; `frozen_by` then names
    the file that users must remove.
    """

    def __init__(self, plan: Plan, *, grace: float, capacity: int) -> None:
        self.plan = plan
        self.grace = grace
        self.tasks: dict[int, Task] = {}
        self.frozen_since: float | None = None
        self.frozen_by = ""
        self.held = 0
        """The mask of all CPUs that any task holds."""
        self._free_slots = list(range(capacity))
        self.epochs: dict[int, int] = {}
        """The epoch from which the next task in each slot continues, by slot; 0 for others."""
        self._slots: dict[tuple[int, int], int] = {}
        self._changes: Changes[int] = Changes()
        self._replanned = plan.changes.reader()
        self._unsaved = self._changes.reader()
        self._unmet = Index(self._changes, self._is_unmet)
        """The tasks whose newest grant is not their target."""
        self.timed = Index(self._changes, self._has_deadline)
        """The tasks that have a deadline."""

    @property
    def frozen(self) -> bool:
        """Whether the node is frozen: no grant is published and no task is bound."""
        return self.frozen_since is not None

    # --- slots ----------------------------------------------------------------------------------------------------

    @property
    def next_slot(self) -> int:
        """The slot of the next arrival. Raises `Refused` if the registry is full."""
        if not self._free_slots:
            msg = f"the registry is full ({len(self.tasks)} tasks): start the agent with a larger --capacity."
            raise Refused(msg)
        return self._free_slots[0]

    def find(self, pid: int, start_time: int) -> Task | None:
        """Return the task with this process as its first; None if there is none."""
        slot = self._slots.get((pid, start_time))
        return None if slot is None else self.tasks[slot]

    def take_slot(self, job: Job, arrival: Arrival) -> Task:
        """Return a new task in the next free slot."""
        slot = heapq.heappop(self._free_slots)
        task = Task(slot, job.name, arrival.rank, arrival, self.epochs.get(slot, 0))
        self._enter(task)
        return task

    def _enter(self, task: Task) -> None:
        self.tasks[task.slot] = task
        self._slots[task.arrival.pid, task.arrival.start_time] = task.slot
        self.held |= task.held
        self._changes.mark(task.slot)

    def _is_unmet(self, slot: int) -> bool:
        task = self.tasks.get(slot)
        return task is not None and (self.plan.target(task) != task.granted or self._begins_at_rest(task))

    def _begins_at_rest(self, task: Task) -> bool:
        """Return whether the first grant of a task has no CPUs: it rests by plan, and does not wait."""
        job = self.plan.jobs[task.job]
        return not task.started and job.rests and job.targets.get(task.rank) == 0

    def _has_deadline(self, slot: int) -> bool:
        return slot in self.tasks and self.tasks[slot].deadline is not None

    def adopt(self, task: Task) -> None:
        """Take over a task of an earlier agent in its slot."""
        self._free_slots.remove(task.slot)
        heapq.heapify(self._free_slots)
        self._enter(task)

    def free_slot(self, task: Task) -> None:
        """Remove a task; the next task in its slot continues its epochs."""
        del self.tasks[task.slot], self._slots[task.arrival.pid, task.arrival.start_time]
        self.held &= ~task.held
        heapq.heappush(self._free_slots, task.slot)
        self.epochs[task.slot] = task.epoch + 1

    def remember(self, epochs: dict[int, int], capacity: int | None = None) -> None:
        """Record the epoch of every slot, so that its next task continues from there, and the number of slots."""
        self.epochs = dict(epochs)
        if capacity is not None:
            self._free_slots = list(range(capacity))

    # --- reports of programs and the kernel -----------------------------------------------------------------------

    def applied(self, slot: int, epoch: int, now: float) -> list[Action]:
        """Record that the program has applied the grant `epoch`; return the actions that follow.

        Epochs that are old or were never published change nothing.
        """
        return self.in_force({slot: epoch}, "applied", now)

    def bound(self, slot: int, epoch: int, now: float) -> list[Action]:
        """Record that the agent has bound every thread of the task to the grant `epoch`; return the actions."""
        return self.in_force({slot: epoch}, "bound", now)

    def in_force(self, epochs: Mapping[int, int], how: str, now: float) -> list[Action]:
        """Record the grants in force, by slot: `how` is "applied" by the programs or "bound". Return the actions."""
        done = [self._supersede(self.tasks[s], epoch, how, now) for s, epoch in epochs.items() if s in self.tasks]
        actions: list[Action] = [one for one in done if one]
        return [*actions, *self.publish_next(now)] if actions else []

    def _supersede(self, task: Task, epoch: int, how: str, now: float) -> Settled | None:
        if how == "bound" and task.epoch == epoch and len(task.grants) == 1:  # again, to the grant in force
            task.deadline, task.denied = None, False
            self._changes.mark(task.slot)
        at = next((i for i, g in enumerate(task.grants) if g.epoch == epoch), 0)
        if at == 0:
            return None
        old, grant = task.grants[0].mask, task.grants[at]
        self.held &= ~task.held
        task.grants = task.grants[at:]
        self.held |= task.held
        self._changes.mark(task.slot)
        if len(task.grants) == 1:
            task.deadline = None
        elif task.deadline is not None:
            task.deadline = max(task.deadline, task.grants[1].at + self.grace)
        task.enforced = how == "bound" and task.responder is not None
        task.denied = False
        outcome = "enforced" if task.enforced else how
        return Settled(task, epoch, old, grant.mask, action_name(old, grant.mask), outcome, grant.at, now)

    def bind_failed(self, slot: int, now: float) -> None:
        """Record that the agent was not permitted to bind the task: it tries again after the grace time."""
        task = self.tasks[slot]
        task.denied = True
        task.deadline = now + max(self.grace, RETRY)
        self._changes.mark(task.slot)

    def set_responder(self, slot: int, pid: int, start_time: int) -> bool:
        """Make a process the responder of the task; return False if it has another one."""
        task = self.tasks[slot]
        if task.responder not in (None, (pid, start_time)):
            return False
        task.responder = (pid, start_time)
        self._changes.mark(task.slot)
        return True

    def clear_responder(self, slot: int, now: float) -> list[Action]:
        """Record that the responder has gone; return the action that binds the whole task to its newest grant.

        It is bound whatever the responder has left. There is no action if the task has not started,
        or while frozen: then the deadline is set to `now`.
        """
        task = self.tasks[slot]
        task.responder = None
        self._changes.mark(task.slot)
        if not task.started:
            return []
        if self.frozen:
            task.deadline = now
            return []
        return [Bind(task, task.epoch, task.granted)]

    # --- deadlines ------------------------------------------------------------------------------------------------

    def deadlines(self) -> dict[int, float]:
        """Return the deadline of each task that has one, by slot; none while frozen."""
        if self.frozen:
            return {}
        timed = [(slot, self.tasks[slot].deadline) for slot in sorted(self.timed.members())]
        return {slot: deadline for slot, deadline in timed if deadline is not None}

    def take_overdue(self, now: float) -> list[Task]:
        """Return the tasks that must be bound because their grace time is over; their next deadline begins."""
        overdue = [self.tasks[slot] for slot, at in self.deadlines().items() if at <= now]
        for task in overdue:
            task.deadline = now + max(self.grace, RETRY)
            self._changes.mark(task.slot)
        return overdue

    def freeze(self, now: float, file: str) -> None:
        """Publish no grant and bind no task until `thaw`; a further call changes only the name of the file."""
        self.frozen_by = file
        if self.frozen_since is None:
            self.frozen_since = now

    def thaw(self, now: float) -> None:
        """Continue after `freeze`: programs get their whole grace time again for grants that they have not applied."""
        self.frozen_since = None
        for task in self.tasks.values():
            if task.deadline is not None:
                task.deadline = now + self.grace if task.responder else now
                self._changes.mark(task.slot)

    # --- publishing -----------------------------------------------------------------------------------------------

    def publish_next(self, now: float) -> list[Action]:
        """Publish every grant that keeps held sets disjoint, none while frozen; return the actions."""
        if self.frozen:
            return []
        self._mark_replanned()
        standings, inside = {}, 0
        actions: list[Action] = []
        for task in [self.tasks[slot] for slot in sorted(self._unmet.members())]:
            if self._begins_at_rest(task):
                actions += self._publish(task, 0, now)
                continue
            held, floor = task.held, self.plan.floor(self.plan.jobs[task.job])
            inside |= held
            standings[task.slot] = TaskState(held, task.granted, self.plan.target(task), floor)
        for slot, mask in next_grants(standings, self.held & ~inside).items():
            actions += self._publish(self.tasks[slot], mask, now)
        return actions

    def _mark_replanned(self) -> None:
        """Mark the tasks of jobs that the plan has changed."""
        for job in [self.plan.jobs[name] for name in self._replanned if name in self.plan.jobs]:
            for task in job.present:
                self._changes.mark(task.slot)
        self._replanned.clear()

    def take_unsaved(self) -> list[Task]:
        """Return the tasks with a change since the last call that the registry must store."""
        self._mark_replanned()
        unsaved = [self.tasks[slot] for slot in sorted(self._unsaved) if slot in self.tasks]
        self._unsaved.clear()
        return unsaved

    def _publish(self, task: Task, mask: int, now: float) -> list[Action]:
        first = not task.started
        task.epoch += 1
        task.grants.append(Grant(task.epoch, mask, now))
        self.held |= mask
        self._changes.mark(task.slot)
        publish = Publish(task, task.epoch, mask, task.reason)
        if first:  # a launcher binds itself to its CPUs, if it has some
            return [publish, Start(task), *([] if mask else [Bind(task, task.epoch, 0)])]
        if not mask and self.plan.jobs[task.job].rests:
            task.deadline = None  # the scheduler's order has one, after which the task keeps its CPUs
        elif task.deadline is None:  # a newer grant does not extend an older grant's deadline
            task.deadline = now + self.grace
        return [publish] if task.responder else [publish, Bind(task, task.epoch, mask)]

    def refuse_when_frozen(self) -> None:
        """Raise `Refused` while the node is frozen."""
        if self.frozen:
            raise Refused(f"the node is frozen: remove {self.frozen_by} first.")

    # --- queries --------------------------------------------------------------------------------------------------

    def allowed(self, task: Task) -> int:
        """Return the CPUs on which a task's threads may run: those it holds; none if it has not started."""
        return task.held or (self.where_it_rests(task) if task.started else 0)

    def where_it_rests(self, task: Task) -> int:
        """Return the CPUs on which a task's threads may run while it rests: those of the tasks of its job that run.

        If all tasks of its job rest they are those that are handed out here.
        """
        return self.plan.jobs[task.job].granted or self.plan.usable or self.plan.cores.all

    def state(self, task: Task) -> str:
        """Return the task's state: waiting, running, resting, shrinking, growing, moving or enforced."""
        if not task.started:
            return "waiting"
        goal = self.plan.target(task)
        if len(task.grants) > 1 or goal != task.granted:
            name = action_name(task.applied, goal if goal != task.applied else task.granted)
            return CHANGES.get(name, "moving")
        if not goal:
            return "resting"
        return "enforced" if task.enforced else "running"

    def why_short(self, task: Task) -> str:
        """Return a sentence that says why a task has CPUs that are gone; empty if it has none."""
        job = self.plan.jobs[task.job]
        return self.plan.why_kept(job) if job.planned & self.plan.lost else ""

    def why_waiting(self, task: Task) -> str:
        """Return a sentence that says what a task without a grant waits for."""
        job = self.plan.jobs[task.job]
        if self.frozen:
            return f"the node is frozen: it waits until {self.frozen_by} is removed."
        if job.waits_for:
            return why_waits(self.plan, job)
        target = self.plan.target(task)
        holders = sorted({t.job for t in self.tasks.values() if t.held & target})
        return f"{cpus_are(target)} being given up by {', '.join(holders)}."
