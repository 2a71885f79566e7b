# SPDX-License-Identifier: Apache-2.0
"""The state machine of a node: events in, actions out. No clock, no file, no socket.

Every public event method takes the time (`now`, seconds of CLOCK_MONOTONIC) where it matters and returns the actions
that the shell has to carry out in order. `Refused` leaves the state as it was. `agent.invariants` says what is true
after every event.
"""

from __future__ import annotations

import copy
import heapq
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from agent import layouts
from agent.cores import Cores
from agent.jobs import (
    Action,
    Arrival,
    Bind,
    Done,
    Event,
    Forget,
    Grant,
    Job,
    Publish,
    Refused,
    Start,
    Task,
    action_name,
)
from agent.plan import Plan
from agent.rules import Rules, refuse_memory
from agent.steps import Standing, next_step
from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.placement import Place


RULES = Rules()
"""What holds where a site sets no rules."""
RETRY = 0.1
"""Least seconds between two attempts to bind a task."""


class Node:
    """The tasks and jobs of one node and the plan for its cores.

    `cores` are what is handed out, or CPU masks in one socket; `place` is the distribution kernel.
    `grace` is how long a program may take to apply a grant before the agent binds it; `complete_within` how long
    places are kept for ranks of a job that have not arrived (seconds). `memory` is the node's (bytes, 0: unknown).
    `layout` is that of jobs that ask for none.
    """

    def __init__(
        self,
        cores: Cores | Sequence[int],
        place: Place,
        *,
        rules: Rules = RULES,
        memory: int = 0,
        grace: float = 1.0,
        complete_within: float = 2.0,
        capacity: int = 1024,
        layout: layouts.Layout = layouts.ANY,
    ) -> None:
        self.cores = cores if isinstance(cores, Cores) else Cores(tuple(cores))
        self.plan = Plan(self.cores, place, rules, memory)
        self.layout = layout
        self.grace = grace
        self.complete_within = complete_within
        self.tasks: dict[int, Task] = {}
        self.arrivals = 0
        self.frozen_since: float | None = None
        self.frozen_by = ""
        self.held = 0
        """Every CPU that any task holds, as a mask."""
        self._free_slots = list(range(capacity))
        self._epochs: dict[int, int] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self._unmet: set[int] = set()
        """The slots of all tasks whose newest grant is not their target, and perhaps of others."""
        self._unsaved: set[int] = set()

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs by name, in the order of arrival."""
        return self.plan.jobs

    # --- arrivals -------------------------------------------------------------------------------------------------

    def arrive(self, arrival: Arrival, now: float) -> tuple[Task, list[Action]]:
        """Take in a task: a new job, or one more rank of a job that is arriving. The same process may ask again.

        A launch from within a task that would have to wait becomes part of that task, which is returned: it may be that
        very task that it waits for. Raises `Refused` when this node can never run it.
        """
        known = self.find(arrival.pid, arrival.start_time)
        if known:
            return known, []
        if arrival.layout == layouts.ANY:
            arrival = replace(arrival, layout=self.layout)
        if arrival.attached:
            self._refuse_when_frozen()
        slot = self.next_slot
        job = self._joins(arrival) or self._open(arrival, now)
        task = self._sit(slot, job, arrival)
        self.plan.event = Event("arrival", job.name, now)
        self.plan.admit_waiting(now)
        host = self.find(*arrival.within) if arrival.within else None
        if host and host.started and host.arrival.uid == arrival.uid and not job.cores:
            self._leave(task, Event("end", job.name, now))
            self._epochs[slot] = task.epoch  # it never had the slot of the registry, whose count goes on from here
            return host, self._step(now)
        return task, self._step(now)

    @property
    def next_slot(self) -> int:
        """The slot the next arrival gets. Raises `Refused` when the registry is full."""
        if not self._free_slots:
            msg = f"the registry is full ({len(self.tasks)} tasks): start the agent with a larger --capacity."
            raise Refused(msg)
        return self._free_slots[0]

    def find(self, pid: int, start_time: int) -> Task | None:
        """Return the task whose first process is this one."""
        slot = self._slots.get((pid, start_time))
        return None if slot is None else self.tasks[slot]

    def _joins(self, arrival: Arrival) -> Job | None:
        """Return the arriving job of which this task is a further rank."""
        for job in self.jobs.values() if arrival.session else ():
            same = (job.session, job.user, job.asked) == (arrival.session, arrival.uid, arrival.job)
            if same and job.ranks.get(arrival.rank, ...) is None:
                return job
        return None

    def _open(self, arrival: Arrival, now: float) -> Job:
        size = max(1, arrival.size)
        task_min, task_max = self._bounds(arrival, size)
        self.arrivals += 1
        job = Job(
            name=self.plan.free_name(arrival.job),
            asked=arrival.job,
            user=arrival.uid,
            session=arrival.session,
            job_class=arrival.job_class,
            arrived=self.arrivals,
            task_min=task_min,
            task_max=task_max,
            ranks=dict.fromkeys(range(size)),
            layout=arrival.layout,
            memory=arrival.memory,
            complete_by=now + self.complete_within if size > 1 else None,
        )
        self.jobs[job.name] = job
        return job

    def _bounds(self, arrival: Arrival, size: int) -> tuple[int, int]:
        """Return the least and most cores of each task of a job, or raise `Refused`."""
        total, wide, rules = len(self.cores), self.cores.widest, self.plan.rules
        can = rules.most(arrival.job_class, self.cores, layouts.most(arrival.layout, self.cores.sizes))
        now = min(can, self.cores.count(self.plan.usable) or can)
        if not 0 <= arrival.rank < size:
            msg = f"local rank {arrival.rank} is outside a job of {size} tasks: check the launcher's variables."
            raise Refused(msg)
        if arrival.max_cpus and arrival.min_cpus > arrival.max_cpus:
            msg = f"--min {arrival.min_cpus} is above --cpus {arrival.max_cpus}: ask for at least the minimum."
            raise Refused(msg)
        least = max(1, self.cores.needed_for(arrival.min_cpus))
        most = self.cores.needed_for(arrival.max_cpus) or -(-total // size)
        if arrival.job_class == "rigid":
            least = most = self.cores.needed_for(arrival.max_cpus) or max(least, now // size)
        if least * size > total:
            msg = (
                f"{size} task(s) of at least {_cpus(least * wide)} need {least * size * wide}, this node has "
                f"{self.cores.all.bit_count()}: ask for fewer."
            )
            raise Refused(msg)
        if arrival.layout.strict and least * size > can:
            msg = (
                f"{arrival.layout} gives a job at most {_cpus(self.cores.cpus(can))} here and {size} task(s) of at "
                f"least {_cpus(least * wide)} need {least * size * wide}: ask for more on each socket."
            )
            raise Refused(msg)
        rules.refuse(arrival, least * size, self.cores)
        refuse_memory(arrival.memory * size, self.plan.memory)
        return least, max(least, min(most, can))

    def _sit(self, slot: int, job: Job, arrival: Arrival) -> Task:
        heapq.heappop(self._free_slots)
        task = Task(slot, job.name, arrival.rank, arrival, self._epochs.get(slot, 0))
        self._enter(task)
        job.ranks[arrival.rank] = task
        self.plan.touch(job)
        if None not in job.ranks.values():
            job.complete_by = None
        return task

    def _enter(self, task: Task) -> None:
        self.tasks[task.slot] = task
        self._slots[task.arrival.pid, task.arrival.start_time] = task.slot
        self.held |= task.held
        self._unsaved.add(task.slot)

    # --- what programs and the kernel say -------------------------------------------------------------------------

    def applied(self, slot: int, epoch: int, now: float) -> list[Action]:
        """Take in that the grant `epoch` is in force. Epochs that are old or were never published change nothing."""
        return self.in_force({slot: epoch}, "applied", now)

    def bound(self, slot: int, epoch: int, now: float) -> list[Action]:
        """Take in that the agent has bound every thread of the task to the grant `epoch`."""
        return self.in_force({slot: epoch}, "bound", now)

    def in_force(self, epochs: Mapping[int, int], how: str, now: float) -> list[Action]:
        """Take in, by slot, which grants the programs have `applied`, or to which their threads were `bound`."""
        done = [self._supersede(self.tasks[s], epoch, how, now) for s, epoch in epochs.items() if s in self.tasks]
        actions: list[Action] = [one for one in done if one]
        return [*actions, *self._step(now)] if actions else []

    def _supersede(self, task: Task, epoch: int, how: str, now: float) -> Done | None:
        if how == "bound" and task.epoch == epoch and len(task.grants) == 1:  # again, to what was in force
            task.deadline, task.denied = None, False
            self._unsaved.add(task.slot)
        at = next((i for i, g in enumerate(task.grants) if g.epoch == epoch), 0)
        if at == 0:
            return None
        old, grant = task.grants[0].mask, task.grants[at]
        self.held &= ~task.held
        task.grants = task.grants[at:]
        self.held |= task.held
        self._unsaved.add(task.slot)
        if len(task.grants) == 1:
            task.deadline = None
        task.enforced = how == "bound" and task.responder is not None
        task.denied = False
        outcome = "enforced" if task.enforced else how
        return Done(task, epoch, old, grant.mask, action_name(old, grant.mask), outcome, grant.at, now)

    def bind_failed(self, slot: int, now: float) -> None:
        """Take in that the agent may not bind the task: it is tried again after the grace time."""
        task = self.tasks[slot]
        task.denied = True
        task.deadline = now + max(self.grace, RETRY)
        self._unsaved.add(slot)

    def seat(self, slot: int, pid: int, start_time: int) -> bool:
        """Give the responder's seat to a process; False when another sits there."""
        task = self.tasks[slot]
        if task.responder not in (None, (pid, start_time)):
            return False
        task.responder = (pid, start_time)
        self._unsaved.add(slot)
        return True

    def unseat(self, slot: int, now: float) -> list[Action]:
        """Take in that the responder has gone: the whole task is bound to what it was granted, whatever it left."""
        task = self.tasks[slot]
        task.responder = None
        self._unsaved.add(slot)
        if not task.started:
            return []
        if self.frozen:
            task.deadline = now
            return []
        return [Bind(task, task.epoch, task.granted)]

    def ended(self, slot: int, now: float) -> list[Action]:
        """Take in that a task has ended: its cores go to their owners, waiting arrivals, then to who can use them."""
        return self._let_go(self.tasks[slot], Event("end", self.tasks[slot].job, now))

    def _let_go(self, task: Task, event: Event) -> list[Action]:
        self._leave(task, event)
        return [Forget(task), *self._step(event.at)]

    def _leave(self, task: Task, event: Event) -> None:
        self.plan.event = event
        del self.tasks[task.slot], self._slots[task.arrival.pid, task.arrival.start_time]
        self.held &= ~task.held
        heapq.heappush(self._free_slots, task.slot)
        self._epochs[task.slot] = task.epoch + 1
        self.plan.drop_rank(self.jobs[task.job], task.rank)
        self.plan.hand_out(event.at)

    def tick(self, now: float) -> list[Action]:
        """Do what was to be done by now.

        Bind the tasks whose grace time is over, give up waiting for ranks that did not come, end orders, and let those
        grow who have rested.
        """
        actions: list[Action] = []
        for task in [] if self.frozen else self.tasks.values():
            if task.deadline is not None and task.deadline <= now:
                task.deadline = now + max(self.grace, RETRY)
                self._unsaved.add(task.slot)
                actions.append(Bind(task, task.epoch, task.granted))
        late = [job for job in self.jobs.values() if job.complete_by is not None and job.complete_by <= now]
        for job in late:
            job.complete_by = None
            self.plan.event = Event("end", job.name, now)
            for rank in [rank for rank, task in job.ranks.items() if task is None]:
                self.plan.drop_rank(job, rank)
        ordered = [job.name for job in self.jobs.values() if job.hold_until is not None and job.hold_until <= now]
        for name in ordered:
            self.plan.event = Event("expiry", name, now)
            self.plan.let_go(name, now)
        rested = any(job.rest_until is not None and job.rest_until <= now for job in self.jobs.values())
        if rested and not late:
            self.plan.event = Event("rest", "", now)
        if late or rested:
            self.plan.hand_out(now)
        return [*actions, *self._step(now)] if late or ordered or rested else actions

    def next_deadline(self) -> float | None:
        """Return when `tick` has something to do next, or None."""
        times = [t.deadline for t in self.tasks.values() if t.deadline is not None and not self.frozen]
        for job in self.jobs.values():
            times += [at for at in (job.complete_by, job.hold_until, job.rest_until) if at is not None]
        return min(times, default=None)

    # --- the kill switch ------------------------------------------------------------------------------------------

    @property
    def frozen(self) -> bool:
        """Whether nothing is published and nobody is bound."""
        return self.frozen_since is not None

    def freeze(self, now: float, file: str = "the freeze file") -> None:
        """Publish no grant and bind nobody until `thaw`. Ends are taken in, arrivals wait, orders are refused.

        `file` names what people are to remove.
        """
        if self.frozen_since is None:
            self.frozen_since, self.frozen_by = now, file

    def thaw(self, now: float) -> list[Action]:
        """Go on where `freeze` stopped: programs get their whole grace time again for what they have not applied."""
        if not self.frozen:
            return []
        self.frozen_since = None
        for task in self.tasks.values():
            if task.deadline is not None:
                task.deadline = now + self.grace if task.responder else now
                self._unsaved.add(task.slot)
        return [*self.tick(now), *self._step(now)]

    def _refuse_when_frozen(self) -> None:
        if self.frozen:
            raise Refused(f"the node is frozen: remove {self.frozen_by} first.")

    # --- orders ---------------------------------------------------------------------------------------------------

    def resize(
        self, name: str, cpus: int | None, now: float, until: float | None = None, by: int | None = None
    ) -> list[Action]:
        """Fix a job at `cpus` hardware threads (whole cores, rounded up) until told otherwise; None lets it go.

        With `until` (seconds of CLOCK_MONOTONIC) `tick` lets it go at that time. `by` is the user who says so. Raises
        `Refused` when the job or its neighbours cannot do that.
        """
        self._refuse_when_frozen()
        self.plan.event = Event("order", name, now, by)
        if cpus is None:
            self.plan.let_go(name, now)
        else:
            self.plan.hold(name, cpus, now, until)
        return self._step(now)

    def pin(self, slot: int, mask: int, now: float, by: int | None = None) -> list[Action]:
        """Give a task exactly these CPUs until told otherwise. Raises `Refused` when they cannot be had."""
        self._refuse_when_frozen()
        task = self.tasks[slot]
        self.plan.event = Event("order", task.job, now, by)
        self.plan.pin(task, mask, now)
        return self._step(now)

    def check_release(self, tasks: Iterable[Task]) -> None:
        """Raise `Refused` while frozen, and if a task was launched and has not started: its launcher waits for us."""
        self._refuse_when_frozen()
        for task in tasks:
            if not task.started and not task.arrival.attached:
                msg = f"job {task.job} still waits for its first cores: it can be released once it runs."
                raise Refused(msg)

    def release(self, slot: int, now: float, by: int | None = None) -> list[Action]:
        """Manage a task no longer, although it goes on running: its cores are handed out at once."""
        task = self.tasks[slot]
        return self._let_go(task, Event("release", task.job, now, by))

    def use(self, mask: int, now: float) -> list[Action]:
        """Hand out only the CPUs in `mask` from now on, by whole cores; jobs leave the others where they can.

        Rigid and pinned jobs keep theirs, and so do those whose minimum has no place elsewhere: see `Plan.why_stays`.
        """
        self.plan.event = Event("use", "", now)
        self.plan.use(mask, now)
        return self._step(now)

    # --- publishing -----------------------------------------------------------------------------------------------

    def _step(self, now: float) -> list[Action]:
        """Publish every grant that keeps held sets disjoint; none while frozen."""
        if self.frozen:
            return []
        self._take_touched()
        standings, inside = {}, 0
        for task in [task for task in self.tasks.values() if task.slot in self._unmet]:
            target = self.plan.target(task)
            if target != task.granted:
                held = task.held
                inside |= held
                standings[task.slot] = Standing(held, task.granted, target, self.plan.floor(self.jobs[task.job]))
        actions: list[Action] = []
        for slot, mask in next_step(standings, self.held & ~inside).items():
            actions += self._publish(self.tasks[slot], mask, now)
        self._unmet = {slot for slot, standing in standings.items() if self.tasks[slot].granted != standing.target}
        return actions

    def _take_touched(self) -> None:
        self._unmet |= self.plan.touched
        self._unsaved |= self.plan.touched
        self.plan.touched = set()

    def take_unsaved(self) -> list[Task]:
        """Return the tasks of which something has changed, that a registry keeps, since the last call."""
        self._take_touched()
        unsaved, self._unsaved = self._unsaved, set()
        return [self.tasks[slot] for slot in sorted(unsaved) if slot in self.tasks]

    def _publish(self, task: Task, mask: int, now: float) -> list[Action]:
        first = not task.started
        task.epoch += 1
        task.grants.append(Grant(task.epoch, mask, now))
        self.held |= mask
        self._unsaved.add(task.slot)
        publish = Publish(task, task.epoch, mask, task.reason)
        if first:
            return [publish, Start(task)]
        task.deadline = now + self.grace
        return [publish] if task.responder else [publish, Bind(task, task.epoch, mask)]

    # --- restart --------------------------------------------------------------------------------------------------

    def remember(self, epochs: dict[int, int], capacity: int | None = None) -> None:
        """Take in the epoch of every slot, so that its next tenant goes on counting, and how many slots there are."""
        self._epochs = dict(epochs)
        if capacity is not None:
            self._free_slots = list(range(capacity))

    def adopt(
        self, tasks: Iterable[tuple[Task, Job]], owned: dict[str, int], arrivals: int, now: float
    ) -> list[Action]:
        """Take over the tasks of an agent that died, in the order of arrival, each with a job that describes it.

        Tasks that have a grant keep it; plans of the old agent that were not published yet are made anew, and so are
        orders that were still on their way, as far as they can be had.
        """
        self.arrivals = arrivals
        self.plan.event = Event("start", "", now)
        pins = {}
        for task, described in tasks:
            self._free_slots.remove(task.slot)
            heapq.heapify(self._free_slots)
            job = self.jobs.setdefault(described.name, described)
            job.ranks[task.rank] = task
            self._enter(task)
            if task.pin not in (0, task.granted):
                pins[task.slot], task.pin = task.pin, 0
            if task.started:
                job.targets[task.rank] = task.granted
                job.cores = sum(self.cores.count(mask) for mask in job.targets.values())
        self.plan.adopt([next((name for name, mask in owned.items() if mask & core), None) for core in self.cores])
        for job in list(self.jobs.values()):
            self.plan.adopt_late_ranks(job, now)
            if job.cores and self.plan.rules.residence:
                job.rest_until = now + self.plan.rules.residence  # a new agent is no reason to resize anybody
        self.plan.hand_out(now)
        actions = self._step(now)
        for slot, mask in pins.items():
            with suppress(Refused):
                self.plan.pin(self.tasks[slot], mask, now)
        for job in [job for job in self.jobs.values() if job.cores and job.hold not in (None, job.cores)]:
            cpus = (job.hold or 0) * self.cores.widest
            job.hold = job.cores  # where the order cannot be carried out any more, the job keeps what it has
            self.plan.touch(job)
            with suppress(Refused):
                self.plan.hold(job.name, cpus, now, job.hold_until)
        return [*actions, *self._step(now)]

    def fork(self) -> Node:
        """Return a copy on which anything may be tried: nothing that happens to it changes this node."""
        shared = (self.cores, self.plan.place)
        return copy.deepcopy(self, {id(one): one for one in shared})

    # --- looking --------------------------------------------------------------------------------------------------

    def state(self, task: Task) -> str:
        """Return waiting, running, shrinking, growing, moving or enforced."""
        if not task.started:
            return "waiting"
        goal = self.plan.target(task)
        if len(task.grants) > 1 or goal != task.granted:
            name = action_name(task.applied, goal if goal != task.applied else task.granted)
            return {"shrink": "shrinking", "grow": "growing"}.get(name, "moving")
        return "enforced" if task.enforced else "running"

    def why_waiting(self, task: Task) -> str:
        """Return a sentence: what a task that has no grant yet waits for."""
        job = self.jobs[task.job]
        if self.frozen:
            return f"the node is frozen: it waits until {self.frozen_by} is removed."
        if job.waits_for:
            return job.waits_for
        target = self.plan.target(task)
        holders = sorted({t.job for t in self.tasks.values() if t.held & target})
        return f"CPUs {format_cpulist(target)} are being given up by {', '.join(holders)}."


def _cpus(count: int) -> str:
    return f"{count} CPU{'' if count == 1 else 's'}"
