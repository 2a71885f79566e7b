# SPDX-License-Identifier: Apache-2.0
"""Orders for a number of cores or for exact CPUs: they hold until another order, whatever the policy would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.node.areas import area_of
from drom.agent.node.sharing import compete, hand_out
from drom.agent.policy import fair_share
from drom.agent.policy.fair_share import Wait
from drom.agent.text import cpus_are, span_of

if TYPE_CHECKING:
    from drom.agent.model.jobs import Job, Task
    from drom.agent.node.plan import Plan
    from drom.agent.node.transaction import Transaction


def hold(transaction: Transaction, name: str, cpus: int, until: float | None = None) -> None:
    """Fix a job at `cpus` hardware threads (whole cores, rounded up) until `end_hold`. Raises `Refused`.

    `until` is when the caller must call `end_hold` (seconds of CLOCK_MONOTONIC).
    """
    plan = transaction.plan
    job = _changeable_job(plan, name)
    cores, least, most = plan.cores.sure_of(cpus), job.least, plan.most(job)
    if not least <= cores <= most:
        can = span_of(plan.cores.cpus(least), plan.cores.cpus(most))
        msg = f"job {name} can have {can}, not {cpus}: see its min and max."
        raise Refused(msg)
    fix_size(transaction, job, cores)
    job.hold_until = until
    hand_out(transaction, "order")


def fix_size(transaction: Transaction, job: Job, cores: int) -> None:
    """Give a job exactly `cores` cores, by an order. Raises `Refused`. The caller then hands out what is left."""
    plan = transaction.plan
    area = area_of(job, plan)
    counts = fair_share.hold(job.name, cores, area.running(), area.total(job.planned), plan.cores)
    if isinstance(counts, Wait):
        raise Refused(f"job {job.name} cannot have {plan.cores.amount(cores)}: {counts.reason}")
    transaction.replan(counts, "order", {(job.name, rank): 0 for rank in job.ranks})
    job.hold, job.hold_until, job.hold_by = cores, None, transaction.event.by
    plan.touch(job)


def end_hold(transaction: Transaction, name: str) -> None:
    """End an order: the job competes for its equal share again. Raises `Refused` if it is not running."""
    plan = transaction.plan
    job = _running_job(plan, name)
    job.hold = job.hold_until = job.hold_by = None
    for task in job.present:
        task.pin = 0
    plan.touch(job)
    if not job.frozen and not plan.why_kept(job):
        compete(transaction, job, "order")
    hand_out(transaction, "order")


def pin(transaction: Transaction, task: Task, mask: int) -> None:
    """Give a task exactly the CPUs in `mask` until `end_hold`, whatever was ordered before.

    Raises `Refused` if they are not available.
    """
    plan = transaction.plan
    job = _changeable_job(plan, task.job)
    if not mask or mask & ~plan.cores.all:
        raise Refused("some of these CPUs are not managed here: see `drom topology`.")
    if beyond := mask & ~plan.cpuset(job, task.rank):
        msg = f"{cpus_are(beyond)} outside those that the kernel lets job {job.name} use: choose others."
        raise Refused(msg)
    if mask & plan.avoided:
        msg = f"{cpus_are(mask & plan.avoided)} to be left alone now: choose others."
        raise Refused(msg)
    if mask.bit_count() < plan.floor(job) or plan.cores.count(mask) > job.task_max:
        can = span_of(plan.floor(job), plan.cores.cpus(job.task_max))
        msg = f"a task of job {job.name} can have {can}, not {mask.bit_count()}: see its min and max."
        raise Refused(msg)
    if owner := _immovable_jobs(plan, plan.cores.whole(mask), task):
        msg = f"job {owner} may not be moved from CPUs among these: choose others."
        raise Refused(msg)
    rest = sum(plan.cores.count(target) for rank, target in job.targets.items() if rank != task.rank)
    area = area_of(job, plan)
    total = area.total(job.targets[task.rank])
    counts = fair_share.hold(job.name, plan.cores.count(mask) + rest, area.running(), total, plan.cores)
    if isinstance(counts, Wait):
        raise Refused(f"these CPUs are not available: {counts.reason}")
    transaction.replan(counts, "order", {(job.name, task.rank): mask})
    job.hold, job.hold_until, job.hold_by = None, None, transaction.event.by
    hand_out(transaction, "order")


def _running_job(plan: Plan, name: str) -> Job:
    """Return the job of that name if it has cores. Raises `Refused` if there is none."""
    job = plan.jobs.get(name)
    if job is None:
        msg = f"there is no job {name}: see `drom ps`."
        raise Refused(msg)
    if not job.cores:
        msg = f"job {name} still waits for its first cores: it can be resized once it runs."
        raise Refused(msg)
    return job


def _changeable_job(plan: Plan, name: str) -> Job:
    job = _running_job(plan, name)
    if job.frozen:
        msg = f"job {name} is {job.job_class}: it keeps its cores until it ends."
        raise Refused(msg)
    return job


def _immovable_jobs(plan: Plan, cores: int, asker: Task) -> str | None:
    """Return the name of a job with a task, not `asker`, that must keep some of the CPUs in `cores`, or None."""
    for job in plan.jobs.values():
        stays = plan.why_kept(job)
        for rank, target in job.targets.items():
            task = job.ranks[rank]
            still = job.frozen or stays or (task is not None and task.pin)
            if still and task is not asker and cores & plan.cores.whole(target):
                return job.name
    return None
