# SPDX-License-Identifier: Apache-2.0
"""Ranks that a job gets later: those of further launches in its batch job, and those that were given up. Pure.

The steps of a job of a batch system, and the programs of its script, are ranks of one job. A launch continues a job if
its user gave both the same name, class, bounds and layout. Otherwise, and if it declares memory, it becomes a job of
its own, beside the other one in the same batch job.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.node.bounds import bounds
from drom.agent.node.sharing import compete, hand_out

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.agent.model.jobs import Arrival, Job, Task
    from drom.agent.node.plan import Plan
    from drom.agent.node.transaction import Transaction


def job_continued_by(arrival: Arrival, plan: Plan) -> Job | None:
    """Return the job that a launch continues; None if it is to be a job of its own."""
    if not arrival.batch_job or arrival.memory:
        return None
    return next((job for job in plan.jobs.values() if _is_continued(job, arrival)), None)


def _is_continued(job: Job, arrival: Arrival) -> bool:
    if (job.batch_job, job.user, job.asked) != (arrival.batch_job, arrival.uid, arrival.job) or job.reserved:
        return False
    return all(_options(task.arrival) == _options(arrival) for task in job.present)


def _options(arrival: Arrival) -> tuple[object, ...]:
    return arrival.job_class, arrival.min_cpus, arrival.max_cpus, arrival.layout, arrival.memory


def add_ranks(transaction: Transaction, job: Job, arrival: Arrival, complete_by: float) -> Arrival | None:
    """Add the ranks of a launch to a job; return the arrival with its rank in the job, None if there is no room.

    The ranks share the job's cores. A job that has too few competes for its equal share. Ranks that have not arrived at
    `complete_by` (seconds of CLOCK_MONOTONIC) are dropped. Raises `Refused` if this node could never run the launch.
    """
    size, first = max(1, arrival.size), max(job.ranks, default=-1) + 1
    if not _add(transaction, job, arrival, range(first, first + size)):
        return None
    job.first, job.session = first, arrival.session
    if size > 1:
        job.complete_by = complete_by
    return replace(arrival, rank=first + arrival.rank, size=len(job.ranks))


def job_that_gave_up(arrival: Arrival, plan: Plan) -> Job | None:
    """Return the job with other ranks of an arrival's launch, which no longer has this one; None if there is none."""
    if not arrival.session or arrival.memory:
        return None
    return next(
        (
            job
            for job in plan.jobs.values()
            if (job.session, job.user, job.asked) == (arrival.session, arrival.uid, arrival.job)
            and not job.reserved
            and job.first + arrival.rank not in job.ranks
        ),
        None,
    )


def add_late_rank(transaction: Transaction, job: Job, arrival: Arrival) -> Arrival | None:
    """Add a rank that has come late; return the arrival with its rank in the job, None if there is no room."""
    rank = job.first + arrival.rank
    return replace(arrival, rank=rank) if _add(transaction, job, arrival, [rank]) else None


def _add(transaction: Transaction, job: Job, arrival: Arrival, ranks: Iterable[int]) -> bool:
    """Add ranks to a job, which may then be able to use more; return False, and change nothing, if there is no room."""
    plan = transaction.plan
    _, most = bounds(arrival, plan)
    new = dict.fromkeys(ranks)
    before = (job.ranks, job.cpusets, job.cpuset, job.task_max)
    job.ranks = dict(sorted((job.ranks | new).items()))
    job.cpuset = job.cpuset and arrival.batch_cpuset and job.cpuset | arrival.batch_cpuset
    if arrival.cpuset != job.cpuset:
        job.cpusets = job.cpusets | dict.fromkeys(new, arrival.cpuset)
    job.task_max = max(job.task_max, most)
    plan.touch(job)
    if not _is_placed(transaction, job):
        job.ranks, job.cpusets, job.cpuset, job.task_max = before
        plan.touch(job)
        return False
    hand_out(transaction, "arrival")
    return True


def _is_placed(transaction: Transaction, job: Job) -> bool:
    """Return whether every rank of a job has a place, for which the plan may have changed, or may wait for one."""
    plan, needs = transaction.plan, job.least
    if needs > plan.cores.count(plan.cpuset(job)):
        return False
    if not job.cores:
        return True
    if job.frozen or job.pinned or (job.hold is not None and needs > job.cores):
        return False
    if needs > job.cores:
        compete(transaction, job, "arrival")
    else:
        with suppress(Refused):
            transaction.optimise_layout(job, job.ranks)
    return job.targets.keys() == job.ranks.keys()


def task_to_join(arrival: Arrival, tasks: Iterable[Task]) -> Task | None:
    """Return a running task of an arrival's batch job on CPUs that the arrival may use; None if there is none."""
    if not arrival.batch_job:
        return None
    theirs = (arrival.batch_job, arrival.uid)
    return next((task for task in tasks if task.started and _is_beside(task, theirs, arrival.cpuset)), None)


def _is_beside(task: Task, theirs: tuple[str, int], cpuset: int) -> bool:
    same = (task.arrival.batch_job, task.arrival.uid) == theirs
    return same and not (cpuset and task.granted & ~cpuset)
