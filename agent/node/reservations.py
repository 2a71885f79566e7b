# SPDX-License-Identifier: Apache-2.0
"""Jobs of a scheduler on a node: they have their cores before their tasks arrive, and until they are dismissed. Pure.

A reserved job is held at the number of cores ordered for it, whatever the node's own policy would give, and its tasks
share them. Its ranks are those of its newest launch and the running ones of earlier launches; a task that ends leaves
its cores to the job. All other jobs share the remaining cores by the node's own policy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model.jobs import Event, Job
from drom.agent.node import admission, resizing, sharing
from drom.agent.node.transaction import Transaction
from drom.agent.text import counted

if TYPE_CHECKING:
    from drom.agent.model.jobs import Action, Arrival, Reservation, Task
    from drom.agent.node.grants import Grants
    from drom.agent.node.plan import Plan


class Reservations:
    """The part of a node that schedulers control: jobs in `plan`, and the grants of their tasks in `grants`."""

    def __init__(self, plan: Plan, grants: Grants) -> None:
        self.plan = plan
        self.grants = grants

    def reserve(self, wanted: Reservation, now: float) -> list[Action]:
        """Give a job of a scheduler its cores from now on. Raises `Refused` with nothing changed."""
        if wanted.name in self.plan.jobs:
            msg = f"{wanted.name} is already on this node: it takes one attempt of a job at a time."
            raise Refused(msg)
        self.grants.refuse_when_frozen()
        transaction = Transaction(self.plan, Event("arrival", wanted.name, now))
        self._reserve(wanted, transaction)
        sharing.hand_out(transaction, "order")
        return self.grants.publish_next(now)

    def restore(self, wanted: Reservation, transaction: Transaction) -> None:
        """Give a job of a scheduler its cores again, as far as possible, when its node has taken over its tasks.

        Raises `Refused` with nothing changed. The caller then hands out what is left to other jobs.
        """
        # orders may have left it fewer cores than tasks
        places = wanted.tasks if wanted.rests else min(wanted.tasks, wanted.cores)
        self._reserve(replace(wanted, tasks=places), transaction)

    def order(self, name: str, cores: int, now: float) -> list[Action]:
        """Hold a reserved job at `cores` cores. Raises `Refused` with nothing changed."""
        self.grants.refuse_when_frozen()
        job = self.plan.jobs[name]
        least = 0 if job.rests else len(job.present) or 1
        if job.frozen and cores != job.cores:
            msg = f"job {name} is {job.job_class}: it keeps its cores until it ends."
            raise Refused(msg)
        if not least <= cores <= job.reserved:
            msg = f"job {name} can have {least} to {job.reserved} cores, not {cores}."
            raise Refused(msg)
        transaction = Transaction(self.plan, Event("order", name, now))
        if cores < len(job.ranks) and not job.rests:
            _share_among(transaction, job, {task.rank: task for task in job.present} or {job.first: None})
        resizing.fix_size(transaction, job, cores)
        sharing.hand_out(transaction, "order")
        return self.grants.publish_next(now)

    def cancel(self, name: str, now: float) -> list[Action]:
        """Remove a reserved job that has no task left, and hand out its cores; return the actions.

        Raises `AssertionError` if it has tasks.
        """
        job = self.plan.jobs[name]
        if job.present:
            msg = f"job {name} has tasks"
            raise AssertionError(msg)
        self.plan.drop(job)
        sharing.hand_out(Transaction(self.plan, Event("end", name, now)))
        return self.grants.publish_next(now)

    def has_settled(self, name: str) -> bool:
        """Return whether every task of a reserved job holds exactly its part of the cores."""
        return all(
            len(task.grants) == 1 and task.granted == self.plan.target(task) for task in self.plan.jobs[name].present
        )

    def cores_held(self, name: str) -> int:
        """Return the number of cores that a reserved job has now, held by its tasks or kept for tasks to come."""
        job, mask = self.plan.jobs[name], 0
        for rank, task in job.ranks.items():
            mask |= task.held if task and task.started else job.targets[rank]
        return self.plan.cores.count(mask)

    def refuse_reserved(self, name: str) -> None:
        """Raise `Refused` if the job `name` belongs to a scheduler."""
        job = self.plan.jobs.get(name)
        if job and job.reserved:
            msg = f"job {name} belongs to a scheduler: only that may resize or release it."
            raise Refused(msg)

    def _reserve(self, wanted: Reservation, transaction: Transaction) -> None:
        """Reserve a job, or an adopted job again; the caller then hands out what is left to other jobs."""
        cores, job = wanted.cores, self.plan.jobs.get(wanted.name)
        enough = wanted.tasks if not wanted.rests else 0
        if not (wanted.tasks >= 1 and enough <= cores <= len(self.plan.cores)):
            needs = f"{counted(wanted.tasks, 'task')} on {counted(cores, 'core')}"
            msg = f"{needs} cannot be on this node of {len(self.plan.cores)}: a task needs a core of its own."
            raise Refused(msg)
        if job is None:
            self._open_reserved(wanted, transaction)
            return
        job.rests = wanted.rests
        if job.cores != cores or job.hold != cores:
            resizing.fix_size(transaction, job, cores if job.rests else max(cores, len(job.ranks)))
        job.reserved = max(wanted.most, job.cores, cores)
        job.memory = wanted.memory // len(job.ranks)
        job.first = min(job.ranks, default=0)
        job.task_min, job.task_max = 1, _most_each(job)
        self.plan.touch(job)

    def _open_reserved(self, wanted: Reservation, transaction: Transaction) -> None:
        job = Job(
            name=wanted.name,
            asked=wanted.name,
            user=wanted.uid,
            session=0,
            job_class=wanted.job_class,
            arrived=self.plan.arrivals + 1,
            task_min=1,
            task_max=1,
            ranks=dict.fromkeys(range(wanted.tasks)),
            layout=self.plan.layout,
            memory=wanted.memory // wanted.tasks,
            reserved=max(wanted.most, wanted.cores),
            rests=wanted.rests,
        )
        job.task_max = _most_each(job)
        self.plan.jobs[job.name] = job
        try:
            admission.check_memory(self.plan, job)
            resizing.fix_size(transaction, job, wanted.cores)
        except Refused:
            del self.plan.jobs[job.name]
            raise
        self.plan.arrivals += 1

    def job_for(self, arrival: Arrival) -> Job | None:
        """Return the reserved job that an arriving task belongs to; None if there is none.

        It is of the job's user, or of root, who keeps fillers of all users.
        """
        job = self.plan.jobs.get(arrival.job)
        theirs = job is not None and job.reserved and arrival.uid in (0, job.user) and not arrival.attached
        return job if theirs else None

    def hosting_task(self, job: Job, arrival: Arrival) -> Task | None:
        """Return the running task of the job from within which a task arrives and which it joins; None if none."""
        host = self.grants.find(*arrival.within) if arrival.within else None
        return host if host and host.job == job.name and host.started else None

    def rank_in(self, job: Job, arrival: Arrival, now: float) -> Arrival:
        """Return the arrival with its rank in a reserved job; the first task of a launch adds the ranks.

        Raises `Refused`, with nothing changed, if there is no core for each.
        """
        size = max(1, arrival.size)
        if not 0 <= arrival.rank < size:
            msg = f"local rank {arrival.rank} is outside a job of {size} tasks: check the launcher's variables."
            raise Refused(msg)
        joins = arrival.session and job.session == arrival.session
        if not joins or job.ranks.get(job.first + arrival.rank, job) is not None:
            _add_ranks(Transaction(self.plan, Event("arrival", job.name, now)), job, size)
            job.session = arrival.session
        place = job.first + arrival.rank
        return replace(
            arrival,
            rank=place,
            size=len(job.ranks),
            job_class=job.job_class,
            min_cpus=0,
            max_cpus=0,
            layout=job.layout,
            memory=job.memory,
        )


def _add_ranks(transaction: Transaction, job: Job, size: int) -> None:
    """Add ranks for a launch of `size` tasks beside the running tasks."""
    running = {task.rank: task for task in job.present}
    first = max(running, default=-1) + 1
    ranks: dict[int, Task | None] = running | dict.fromkeys(range(first, first + size))
    if len(ranks) > job.cores and not job.rests:
        has = counted(job.cores, "core")
        msg = f"job {job.name} has {has} here and would have {counted(len(ranks), 'task')}: ask for a core for each."
        raise Refused(msg)
    if ranks.keys() != job.ranks.keys():
        if job.frozen:
            msg = f"job {job.name} is {job.job_class}, and its tasks hold its cores: start more once they end."
            raise Refused(msg)
        _share_among(transaction, job, ranks)
    job.first = first


def _share_among(transaction: Transaction, job: Job, ranks: dict[int, Task | None]) -> None:
    """Give a job these ranks; its memory is divided among them, as its cores are."""
    memory = job.declared
    transaction.optimise_layout(job, ranks)
    job.memory = memory // len(ranks)
    job.task_max = _most_each(job)
    transaction.plan.touch(job)


def _most_each(job: Job) -> int:
    """Return the most cores of each task of a reserved job, the size up to which teams of threads may be launched."""
    return -(-job.reserved // len(job.ranks))
