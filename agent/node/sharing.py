# SPDX-License-Identifier: Apache-2.0
"""Share the cores of a node among its jobs after an event: which give up cores, and which get the free ones."""

from __future__ import annotations

import operator
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.node.admission import admit_waiting
from drom.agent.node.areas import area_of, areas
from drom.agent.policy import fair_share
from drom.agent.policy.fair_share import Wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.agent.model.jobs import Job
    from drom.agent.node.plan import Plan
    from drom.agent.node.transaction import Transaction
    from drom.agent.policy.site_rules import SiteRules


def hand_out(transaction: Transaction, reason: str = "death") -> None:
    """Hand out free cores: to their owners, to waiting arrivals, then to the smallest jobs that can use them.

    Before that, jobs on CPUs to be avoided are moved, and jobs of users above the cap, except by orders, give up
    what exceeds it: the cap of an earlier agent was higher, or orders have ended.
    """
    for area in areas(transaction.plan):
        _hand_out(transaction.within(area), reason)


def _hand_out(transaction: Transaction, reason: str) -> None:
    plan, area = transaction.plan, transaction.area
    if plan.avoided:
        _vacate(transaction)
    if plan.cap:
        ordered = {job.user for job in plan.jobs.values() if job.hold is not None or job.pinned}
        transaction.replan_as_far(partial(fair_share.within_cap, cap=plan.cap, but=ordered), "avoid")
    _trim(transaction)
    if owed := area.owed_to():
        total, cap = area.total(), plan.cap
        transaction.replan_as_far(lambda jobs: fair_share.return_to_owners(jobs, owed, total, cap), "return")
    admit_waiting(transaction)
    _grow(transaction, reason)


def apply_demand(transaction: Transaction, job: Job) -> None:
    """Replan after a job's wishes have changed: the job competes, once, for cores that it can use again."""
    plan = transaction.plan
    plan.touch(job)
    view = plan.view(job)
    if job.cores and not view.fixed and job.cores < equal_share(plan, job):
        compete(transaction, job, "wish")
    hand_out(transaction, "wish")


def apply_rules(transaction: Transaction, rules: SiteRules, memory: int) -> None:
    """Apply new rules and a new memory size (bytes): users above the cap give up what exceeds it."""
    plan = transaction.plan
    plan.rules, plan.memory = rules, memory
    for job in plan.jobs.values():
        job.rest_until = job.rest_until if rules.residence else None
        plan.touch(job)
    for area in areas(plan):
        transaction.within(area).replan_as_far(partial(fair_share.within_cap, cap=plan.cap), "avoid")
    hand_out(transaction, "share")


def equal_share(plan: Plan, job: Job) -> int:
    """Return a running job's equal share in cores, at least its minimum."""
    view, area = replace(plan.view(job), fixed=False), area_of(job, plan)
    others = [other for other in area.running() if other.name != job.name]
    return max(view.minimum, fair_share.equal_shares([*others, view], area.total(), plan.cap)[job.name])


def compete(transaction: Transaction, job: Job, reason: str) -> None:
    """Give a job its equal share as if it arrived, except that SharingFactor does not bound what it takes."""
    plan, area = transaction.plan, area_of(job, transaction.plan)
    others = [other for other in area.running() if other.name != job.name]
    view = replace(plan.view(job), cores=0, maximum=equal_share(plan, job))
    counts = fair_share.admit(view, others, area.total(), 1.0, plan.cap)
    if not isinstance(counts, Wait):
        with suppress(Refused):
            transaction.replan(counts, reason)


def _trim(transaction: Transaction) -> None:
    """Take from jobs the cores that their programs report they cannot use."""
    for job in [job for job in transaction.area.running() if job.cores > job.maximum and not job.fixed]:
        transaction.replan_as_far(partial(fair_share.drop_surplus, name=job.name), "wish")


def _grow(transaction: Transaction, reason: str) -> None:
    plan, area = transaction.plan, transaction.area
    rules, before = plan.rules, None
    margin = rules.margin if rules.residence else 0.0
    # A job that grows may get cores that were kept for an owner; then as many other cores lose their owner.
    while (spare := area.total() - area.reclaimable_cores(transaction.event.at)) != before:
        before = spare
        transaction.replan_as_far(partial(fair_share.grow, total=spare, cap=plan.cap, margin=margin), reason)
    if rules.residence:
        _set_to_rest(transaction, idle=spare > sum(job.cores for job in area.running()))


def _set_to_rest(transaction: Transaction, *, idle: bool) -> None:
    """End the rest of jobs that is over. If cores are left `idle`, jobs that could use some wait for more."""
    plan, now = transaction.plan, transaction.event.at
    hungry = transaction.area.growable_jobs() if idle else []
    for job in transaction.area.jobs():
        if job.rest_until is not None and job.rest_until <= now:
            job.rest_until = None
    for name in hungry:
        plan.jobs[name].rest_until = now + plan.rules.residence
        plan.touch(plan.jobs[name])


def _vacate(transaction: Transaction) -> None:
    """Move jobs off the CPUs to be avoided, shrinking jobs as needed: all together, or each one that can."""
    plan = transaction.plan
    there = [job for job in transaction.area.jobs() if job.planned & plan.avoided and plan.must_leave(job)]
    if there and not _move_off(transaction, there) and len(there) > 1:
        for job in there:
            _move_off(transaction, [job])
    plan.settle_owners()


def _move_off(transaction: Transaction, movers: Sequence[Job]) -> bool:
    plan, area = transaction.plan, transaction.area
    names = {job.name for job in movers}
    running = [replace(j, fixed=plan.is_fixed(plan.jobs[j.name])) if j.name in names else j for j in area.running()]
    leaving = reduce(operator.or_, (job.planned for job in movers))
    counts = fair_share.shrink_to(running, area.total(leaving))
    if isinstance(counts, Wait):
        return False
    try:
        transaction.replan(counts, "avoid", {(job.name, rank): 0 for job in movers for rank in job.ranks})
    except Refused:
        return False
    for job in movers:
        job.hold_by = job.hold_by if job.hold is not None else None  # exact CPUs that are gone end their order
    return True
