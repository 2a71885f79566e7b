# SPDX-License-Identifier: Apache-2.0
"""The state machine of a node: events in, actions out. No clock, no file, no socket.

Every public event method takes the time (`now`, seconds of CLOCK_MONOTONIC) where it matters and returns the actions
that the shell has to carry out in order. `Refused` leaves the state as it was. `drom.agent.node.invariants` checks what
holds after every event.
"""

from __future__ import annotations

import copy
import functools
import operator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model import layouts
from drom.agent.model.cores import Cores
from drom.agent.model.jobs import NO_DEMAND, Action, Arrival, Bind, Demand, Event, FreeSlot, Job, Reservation, Task
from drom.agent.node import admission, launches, resizing, sharing
from drom.agent.node.areas import area_of
from drom.agent.node.bounds import bounds
from drom.agent.node.changes import Changes, Index
from drom.agent.node.grants import Grants
from drom.agent.node.plan import Plan
from drom.agent.node.reservations import Reservations
from drom.agent.node.transaction import Transaction
from drom.agent.policy import demand
from drom.agent.policy.site_rules import SiteRules
from drom.agent.text import cpus_are

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from drom.agent.placement.ranks import PlacementKernel


RULES = SiteRules()
"""The rules of a site that sets none."""


class Node:
    """The tasks and jobs of one node and the plan for its cores.

    `cores` are the cores to hand out, or CPU masks in one socket; `place` is the distribution kernel.
    `grace` is how long a program may take to apply a grant before the agent binds it; `complete_within` is how long
    cores are kept for ranks of a job that have not arrived, from the last one that has (seconds). `memory` is the
    node's (bytes, 0: unknown). `layout` is the layout of jobs that request none.
    """

    def __init__(
        self,
        cores: Cores | Sequence[int],
        place: PlacementKernel,
        *,
        rules: SiteRules = RULES,
        memory: int = 0,
        grace: float = 1.0,
        complete_within: float = 2.0,
        capacity: int = 1024,
        layout: layouts.Layout = layouts.ANY,
    ) -> None:
        cores = cores if isinstance(cores, Cores) else Cores(tuple(cores))
        self.cores = cores
        self.plan = Plan(cores, place, rules, memory, layout)
        self.grants = Grants(self.plan, grace=grace, capacity=capacity)
        self.reservations = Reservations(self.plan, self.grants)
        self.jobs = self.plan.jobs
        self.tasks = self.grants.tasks
        self.complete_within = complete_within
        self._reports: Changes[int] = Changes()
        self._unheeded = Index(self._reports, self._is_unheeded)
        """The tasks whose newest wish is not in effect yet."""

    # --- arrivals -------------------------------------------------------------------------------------------------

    def arrive(self, arrival: Arrival, now: float) -> tuple[Task, list[Action]]:
        """Register a task of a new job, or a further rank of an arriving job; return it and the actions.

        A process that is registered already gets its task again. A launch from within a task that would have to wait
        becomes part of that task, which is returned: it would perhaps wait for that very task. Raises `Refused`
        if this node can never run it.
        """
        known = self.grants.find(arrival.pid, arrival.start_time)
        if known:
            return known, []
        if arrival.layout == layouts.ANY:
            arrival = replace(arrival, layout=self.plan.layout)
        if arrival.cpuset and not self.cores.inside(arrival.cpuset):
            msg = "the kernel confines it to CPUs that make up no core of this node: it can run only unmanaged."
            raise Refused(msg)
        arrival = self._confined(arrival)
        if arrival.attached:
            self.grants.refuse_when_frozen()
        slot = self.grants.next_slot
        reserved = self.reservations.job_for(arrival)
        if reserved and (host := self.reservations.hosting_task(reserved, arrival)):
            return host, []
        if reserved:
            job, arrival = reserved, self.reservations.rank_in(reserved, arrival, now)
        else:
            job, arrival = self._job_for(arrival, now)
        task = self._register(job, arrival, now)
        transaction = Transaction(self.plan, Event("arrival", job.name, now))
        admission.admit_waiting(transaction.within(area_of(job, self.plan)))
        if job.waits and (host := self._host_of(arrival)):
            self._leave(task, Event("end", job.name, now))
            self.grants.epochs[slot] = task.epoch  # it never got the registry's slot, where epochs continue from here
            return host, self.grants.publish_next(now)
        return task, self.grants.publish_next(now)

    def _job_for(self, arrival: Arrival, now: float) -> tuple[Job, Arrival]:
        """Return the job of which an arriving task is a rank, and the arrival with its rank in that."""
        if job := self._job_to_join(arrival):
            return job, replace(arrival, rank=job.first + arrival.rank)
        if gave_up := launches.job_that_gave_up(arrival, self.plan):
            transaction = Transaction(self.plan, Event("arrival", gave_up.name, now))
            if added := launches.add_late_rank(transaction, gave_up, arrival):
                return gave_up, added
        if continued := launches.job_continued_by(arrival, self.plan):
            transaction = Transaction(self.plan, Event("arrival", continued.name, now))
            if added := launches.add_ranks(transaction, continued, arrival, now + self.complete_within):
                return continued, added
        return self._new_job(arrival, now), arrival

    def _host_of(self, arrival: Arrival) -> Task | None:
        """Return the running task that an arrival joins if it would have to wait; None if it waits."""
        above = self.grants.find(*arrival.within) if arrival.within else None
        if above and above.started and above.arrival.uid == arrival.uid:
            return above
        return launches.task_to_join(arrival, self.tasks.values())

    def _job_to_join(self, arrival: Arrival) -> Job | None:
        """Return the arriving job of which this task is a further rank; None if there is none."""
        for job in [job for job in self.jobs.values() if not job.reserved] if arrival.session else ():
            same = (job.session, job.user, job.asked) == (arrival.session, arrival.uid, arrival.job)
            place = job.first + arrival.rank
            if same and job.cpusets.get(place, job.cpuset) == arrival.cpuset and job.ranks.get(place, ...) is None:
                return job
        return None

    def _confined(self, arrival: Arrival) -> Arrival:
        """Return the arrival with its cpusets by whole cores. Its layout becomes best effort if cores are outside."""
        if not arrival.cpuset:
            return arrival
        cpuset = self._whole_cpuset(arrival.cpuset)
        whole = self._whole_cpuset(arrival.cpuset | arrival.batch_cpuset)
        layout = replace(arrival.layout, strict=False) if cpuset else arrival.layout
        return replace(arrival, cpuset=cpuset, batch_cpuset=whole, layout=layout)

    def _whole_cpuset(self, cpus: int) -> int:
        """Return the whole cores among these CPUs; 0 if these are all cores, or there is none."""
        inside = self.cores.inside(cpus) if cpus else 0
        return 0 if inside == self.cores.all else inside

    def _new_job(self, arrival: Arrival, now: float) -> Job:
        size = max(1, arrival.size)
        task_min, task_max = bounds(arrival, self.plan)
        self.plan.arrivals += 1
        job = Job(
            name=self.plan.free_name(arrival.job),
            asked=arrival.job,
            user=arrival.uid,
            session=arrival.session,
            job_class=arrival.job_class,
            arrived=self.plan.arrivals,
            task_min=task_min,
            task_max=task_max,
            ranks=dict.fromkeys(range(size)),
            layout=arrival.layout,
            memory=arrival.memory,
            complete_by=now + self.complete_within if size > 1 else None,
            cpuset=arrival.batch_cpuset,
            cpusets=dict.fromkeys(range(size), arrival.cpuset) if arrival.cpuset != arrival.batch_cpuset else {},
            batch_job=arrival.batch_job,
        )
        self.jobs[job.name] = job
        return job

    def _register(self, job: Job, arrival: Arrival, now: float) -> Task:
        task = self.grants.take_slot(job, arrival)
        job.ranks[arrival.rank] = task
        self.plan.touch(job)
        if None not in job.ranks.values():
            job.complete_by = None
        elif job.complete_by is not None:
            job.complete_by = now + self.complete_within
        return task

    def ended(self, slot: int, now: float) -> list[Action]:
        """Record that a task has ended; return the actions.

        Its cores go to their owners, then to waiting arrivals, then to jobs that can use them.
        """
        return self._end_task(self.tasks[slot], Event("end", self.tasks[slot].job, now))

    def _end_task(self, task: Task, event: Event) -> list[Action]:
        self._leave(task, event)
        return [FreeSlot(task), *self.grants.publish_next(event.at)]

    def _leave(self, task: Task, event: Event) -> None:
        transaction = Transaction(self.plan, event)
        self.grants.free_slot(task)
        transaction.drop_rank(self.jobs[task.job], task.rank)
        sharing.hand_out(transaction)

    def tick(self, now: float) -> list[Action]:
        """Do everything that is due at `now`; return the actions.

        Bind the tasks whose grace time is over, stop waiting for ranks that did not arrive, end orders, grow jobs that
        have rested, and apply the wishes that are due.
        """
        due = self.next_deadline()
        if due is None or due > now:
            return []
        overdue = self.grants.take_overdue(now)
        timed = sorted((self.jobs[name] for name in self.plan.timed.members()), key=lambda job: (job.arrived, job.name))
        late = [job for job in timed if job.complete_by is not None and job.complete_by <= now]
        rest = newest = Transaction(self.plan, Event("rest", "", now))
        for job in late:
            job.complete_by = None
            newest = Transaction(self.plan, Event("end", job.name, now))
            for rank in [rank for rank, task in job.ranks.items() if task is None]:
                newest.drop_rank(job, rank)
        ordered = [job.name for job in timed if job.hold_until is not None and job.hold_until <= now]
        for name in ordered:
            newest = Transaction(self.plan, Event("expiry", name, now))
            resizing.end_hold(newest, name)
        rested = any(job.rest_until is not None and job.rest_until <= now for job in timed)
        if late or rested:
            sharing.hand_out(newest if late else rest)
        heeded = self._apply_demand(now)
        published = self.grants.publish_next(now) if late or ordered or rested or heeded else []
        return [*published, *(Bind(task, task.epoch, task.granted) for task in overdue)]

    def next_deadline(self) -> float | None:
        """Return when `tick` is next due, or None if nothing is pending."""
        times = [at for name in self.plan.timed.members() for at in self.jobs[name].times]
        times += self.grants.deadlines().values()
        times += [self._due(self.tasks[slot]) for slot in self._unheeded.members()]
        return min(times, default=None)

    # --- wishes ---------------------------------------------------------------------------------------------------

    def demands_reported(self, said: Mapping[int, Demand], now: float) -> list[Action]:
        """Record the numbers of CPUs that programs report they can use (`drom.agent.policy.demand`), by slot."""
        for slot, wish in said.items():
            self.tasks[slot].said = wish
            self._reports.mark(slot)
        return self.grants.publish_next(now) if self._apply_demand(now) else []

    def responder_left(self, slot: int, now: float) -> list[Action]:
        """Record that the responder has gone: the whole task is bound to its newest grant, and its wish is cleared."""
        return [*self.grants.clear_responder(slot, now), *self.demands_reported({slot: NO_DEMAND}, now)]

    def _apply_demand(self, now: float) -> bool:
        """Apply the wishes that are due; return whether there were any."""
        waiting = [self.tasks[slot] for slot in sorted(self._unheeded.members())]
        heeded = [task for task in waiting if self._due(task) <= now]
        for task in heeded:
            job = self.jobs[task.job]
            before = self.plan.view(job)
            task.wish, task.heeds_from = task.said, now + demand.PATIENCE
            if self.plan.view(job) != before:
                sharing.apply_demand(Transaction(self.plan, Event("wish", job.name, now)), job)
        return bool(heeded)

    def _is_unheeded(self, slot: int) -> bool:
        return slot in self.tasks and self.tasks[slot].said != self.tasks[slot].wish

    def _due(self, task: Task) -> float:
        return demand.applies_at(task, self.jobs[task.job])

    # --- the kill switch ------------------------------------------------------------------------------------------

    def freeze(self, now: float, file: str = "the freeze file") -> None:
        """Publish no grant and bind no task until `thaw`. Ends are recorded, arrivals wait, orders are refused.

        `file` names the file that users must remove; a further call may name another one, without a new freeze time.
        """
        self.grants.freeze(now, file)

    def thaw(self, now: float) -> list[Action]:
        """Continue after `freeze`; return the actions.

        Programs get their whole grace time again for grants that they have not applied.
        """
        if not self.grants.frozen:
            return []
        self.grants.thaw(now)
        return [*self.tick(now), *self.grants.publish_next(now)]

    # --- orders ---------------------------------------------------------------------------------------------------

    def resize(
        self, name: str, cpus: int | None, now: float, until: float | None = None, by: int | None = None
    ) -> list[Action]:
        """Fix a job at `cpus` hardware threads (whole cores, rounded up) until another order; None ends that.

        With `until` (seconds of CLOCK_MONOTONIC) `tick` ends it at that time. `by` is the user who gives the order.
        Raises `Refused` if the job or its neighbours cannot do that.
        """
        self.grants.refuse_when_frozen()
        self.reservations.refuse_reserved(name)
        transaction = Transaction(self.plan, Event("order", name, now, by))
        if cpus is None:
            resizing.end_hold(transaction, name)
        else:
            resizing.hold(transaction, name, cpus, until)
        return self.grants.publish_next(now)

    def pin(self, slot: int, mask: int, now: float, by: int | None = None) -> list[Action]:
        """Give a task exactly the CPUs in `mask` until another order. Raises `Refused` if they are not available."""
        self.grants.refuse_when_frozen()
        task = self.tasks[slot]
        self.reservations.refuse_reserved(task.job)
        if missing := mask & self.plan.gone:
            msg = f"{cpus_are(missing)} not there now: choose others."
            raise Refused(msg)
        resizing.pin(Transaction(self.plan, Event("order", task.job, now, by)), task, mask)
        return self.grants.publish_next(now)

    def check_release(self, tasks: Iterable[Task]) -> None:
        """Raise `Refused` while frozen, or if a launched task has not started: its launcher waits for the agent."""
        self.grants.refuse_when_frozen()
        for task in tasks:
            self.reservations.refuse_reserved(task.job)
            if not task.started and not task.arrival.attached:
                msg = f"job {task.job} still waits for its first cores: it can be released once it runs."
                raise Refused(msg)

    def release(self, slot: int, now: float, by: int | None = None) -> list[Action]:
        """Stop managing a task, which continues to run: its cores are handed out at once."""
        task = self.tasks[slot]
        return self._end_task(task, Event("release", task.job, now, by))

    def set_usable_cpus(self, mask: int, now: float, gone: int = 0, busy: int = 0, foreign: int = 0) -> list[Action]:
        """Hand out only the CPUs in `mask` from now on, by whole cores; jobs leave the others where they can.

        Rigid and pinned jobs keep theirs, and so do jobs whose minimum has no place elsewhere: see `Plan.why_kept`.
        `gone` are CPUs that do not exist any more: grants leave them out, and any job whose cores are gone moves if
        there is a place, whatever its class. `busy` are CPUs that `mask` lacks only because unmanaged programs keep
        them busy, `foreign` those that it lacks only because they are left to jobs of a batch system.
        """
        kind = "foreign" if foreign != self.plan.foreign else "load" if busy != self.plan.busy else "use"
        event = Event(kind, "", now, lost=self.plan.usable & (~mask | gone))
        self.plan.set_usable_cpus(mask, gone & self.cores.all, busy, foreign)
        sharing.hand_out(Transaction(self.plan, event), "avoid")
        return self.grants.publish_next(now)

    def configure(
        self, rules: SiteRules, memory: int, grace: float, layout: layouts.Layout, now: float
    ) -> list[Action]:
        """Apply changed settings of the site, as in the parameters of the node. No job falls below its minimum."""
        self.grants.grace, self.plan.layout = grace, layout
        sharing.apply_rules(Transaction(self.plan, Event("rules", "", now)), rules, memory)
        return self.grants.publish_next(now)

    # --- restart --------------------------------------------------------------------------------------------------

    def adopt(
        self,
        tasks: Iterable[tuple[Task, Job]],
        owned: dict[str, int],
        arrivals: int,
        now: float,
        reserved: Iterable[Reservation] = (),
    ) -> list[Action]:
        """Take over the tasks of an agent that died, in the order of arrival, each with a job that describes it.

        Tasks that have a grant keep it. Plans of the old agent that were not published yet are made anew, and orders
        that were in progress are carried out again as far as possible. Jobs of a scheduler are `reserved` again first.
        """
        self.plan.arrivals = arrivals
        tasks, wanted = list(tasks), {reservation.name: reservation for reservation in reserved}
        transaction = Transaction(self.plan, Event("start", "", now))
        pins = {}
        for task, described in tasks:
            job = self.jobs.setdefault(described.name, described)
            task.arrival = self._confined(task.arrival)
            job.batch_job, job.rests = task.arrival.batch_job, job.name in wanted and wanted[job.name].rests
            job.ranks[task.rank] = task
            self.grants.adopt(task)
            self._reports.mark(task.slot)
            if task.pin not in (0, task.granted):
                pins[task.slot], task.pin = task.pin, 0
            if task.started:
                job.targets[task.rank] = task.granted if task.pin else self.cores.whole(task.granted)
                job.cores = sum(self.cores.count(mask) for mask in job.targets.values())
        self.plan.adopt([next((name for name, mask in owned.items() if mask & core), None) for core in self.cores])
        for job in list(self.jobs.values()):
            self._adopt_cpusets(job)
            if any(target & ~self.plan.cpuset(job, rank) for rank, target in job.targets.items()):
                job.cpuset, job.cpusets = 0, {}  # the kernel has confined it to others since: it stays where it is
            if job.cores:  # CPUs may have gone, and no job made room for the loss
                job.task_min = min(job.task_min, *(self.cores.count(mask) for mask in job.targets.values() if mask))
            admission.adopt_late_ranks(transaction, job)
            if job.name in wanted:  # its tasks may have come when it had other ranks
                job.memory = wanted[job.name].memory // len(job.ranks)
            if job.cores and self.plan.rules.residence:
                job.rest_until = now + self.plan.rules.residence  # a new agent is no reason to resize a job
        for reservation in wanted.values():
            kind = "order" if reservation.name in self.jobs else "arrival"
            transaction = Transaction(self.plan, Event(kind, reservation.name, now))
            with suppress(Refused):
                self.reservations.restore(reservation, transaction)
        sharing.hand_out(transaction)
        actions = self.grants.publish_next(now)
        self._order_again(pins, transaction)
        sharing.hand_out(transaction)
        return [*actions, *self.grants.publish_next(now)]

    def _adopt_cpusets(self, job: Job) -> None:
        """Set the cpusets of a job of an earlier agent as its tasks are confined now."""
        cpusets = {rank: task.arrival.cpuset for rank, task in job.ranks.items() if task}
        whole = [task.arrival.batch_cpuset for task in job.present]
        job.cpuset = functools.reduce(operator.or_, whole) if all(whole) else 0
        job.cpusets = {rank: cpuset for rank, cpuset in cpusets.items() if cpuset != job.cpuset}

    def _order_again(self, pins: dict[int, int], transaction: Transaction) -> None:
        """Carry out the orders that an earlier agent left in progress, on behalf of the users that gave them."""
        ordered_by = {name: job.hold_by for name, job in self.jobs.items()}
        for slot, mask in pins.items():
            with suppress(Refused):
                resizing.pin(transaction, self.tasks[slot], mask)
        for job in [job for job in self.jobs.values() if job.hold not in (None, job.cores)]:
            cpus, until = (job.hold or 0) * self.cores.widest, job.hold_until
            # Where the order cannot be carried out any more, the job keeps what it has.
            job.hold, job.hold_until = (job.cores, until) if job.cores else (None, None)
            self.plan.touch(job)
            with suppress(Refused):
                resizing.hold(transaction, job.name, cpus, until)
        for job in self.jobs.values():
            job.hold_by = ordered_by[job.name] if job.hold is not None or job.pinned else None

    def begin_anew(self) -> None:
        """Reset to a node without tasks and jobs, with the same rules; a frozen node stays frozen."""
        since, by, plan = self.grants.frozen_since, self.grants.frozen_by, self.plan
        Node.__init__(
            self,
            self.cores,
            plan.place,
            rules=plan.rules,
            memory=plan.memory,
            grace=self.grants.grace,
            complete_within=self.complete_within,
            layout=plan.layout,
        )
        self.grants.frozen_since, self.grants.frozen_by = since, by

    def copy(self) -> Node:
        """Return an independent copy to try events on: no event on it changes this node."""
        shared = (self.cores, self.plan.place)
        return copy.deepcopy(self, {id(one): one for one in shared})
