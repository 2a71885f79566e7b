# SPDX-License-Identifier: Apache-2.0
"""The waiting jobs of a node: their order, which of them get cores now, and what the others wait for."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.node.areas import area_of, areas
from drom.agent.node.transaction import PlacementRefused
from drom.agent.policy import fair_share
from drom.agent.policy.fair_share import Wait
from drom.agent.text import in_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.agent.model.jobs import Job, Task
    from drom.agent.node.areas import Area
    from drom.agent.node.plan import Plan
    from drom.agent.node.transaction import Transaction
    from drom.agent.policy.fair_share import JobCores

MANY_OF_ONE_USER = 2
"""Number of running jobs of a user from which on its next job leaves CPUs to users without jobs."""


def waiting_jobs(area: Area) -> list[Job]:
    """Return the waiting jobs of an area in the order of admission, computed as if each were admitted with its minimum.

    The next job is always the first one of the user whose jobs have the fewest cores. The jobs of one user are in
    the order of arrival, which also decides between users with equally many cores.
    """
    jobs = [job for job in area.jobs() if job.waits]
    if len(jobs) < 2:
        return jobs
    has: Counter[int] = Counter()
    for view in area.running():
        has[view.user] += view.cores
    waiting: dict[int, deque[tuple[int, Job]]] = {}
    for place, job in enumerate(jobs):
        waiting.setdefault(job.user, deque()).append((place, job))
    heap = [(has[user], theirs[0][0], user) for user, theirs in waiting.items()]
    heapq.heapify(heap)
    found: list[Job] = []
    while heap:
        had, _, user = heapq.heappop(heap)
        job = waiting[user].popleft()[1]
        found.append(job)
        if waiting[user]:
            heapq.heappush(heap, (had + job.least, waiting[user][0][0], user))
    return found


def admit_waiting(transaction: Transaction) -> None:
    """Admit waiting jobs of the transaction's area in order.

    A job never overtakes another one that waits for a resource that both need.
    """
    plan, area = transaction.plan, transaction.area
    ahead: list[tuple[Job, Wait]] = []
    tried: set[str] = set()
    queue = deque(waiting_jobs(area))
    while queue:
        job = queue.popleft()
        tried.add(job.name)
        if behind := _behind(area, job, ahead):
            job.waits_for = behind
            continue
        wait = _wait_for_memory(plan, job) or _admit(transaction, job)
        job.waits_for = wait.reason if wait else ""
        if wait:
            ahead.append((job, wait))
        elif queue:
            queue = deque(job for job in waiting_jobs(area) if job.name not in tried)
    plan.reasons = None


def why_waits(plan: Plan, job: Job) -> str:
    """Return a sentence that says what a job waits for, by current numbers; empty if it has cores."""
    if plan.reasons is None:
        plan.reasons = {}
        for area in areas(plan):
            ahead: list[tuple[Job, Wait]] = []
            for one in waiting_jobs(area):
                behind = _behind(area, one, ahead)
                if not behind:
                    wait = _wait_for_memory(plan, one)
                    counts = wait or _counts_with(area, plan.view(one))
                    ahead.append((one, counts if isinstance(counts, Wait) else Wait(one.waits_for)))
                plan.reasons[one.name] = behind or ahead[-1][1].reason
    return plan.reasons.get(job.name, "")


def check_memory(plan: Plan, job: Job) -> None:
    """Raise `Refused` if running jobs leave less memory than a job declares."""
    if wait := _wait_for_memory(plan, job):
        raise Refused(f"job {job.name} {wait.reason}")


def adopt_late_ranks(transaction: Transaction, job: Job) -> None:
    """Place ranks that had not started when others of their job had; if there is no place for them, they queue.

    If their job `rests` they rest, as the scheduler's reservation says how many cores it has.
    """
    plan = transaction.plan
    late = [task for task in job.present if job.cores and task.rank not in job.targets]
    if not late:
        return
    if job.rests:
        job.targets.update((task.rank, 0) for task in late)
        plan.touch(job)
        return
    area = area_of(job, plan)
    counts = fair_share.hold(job.name, max(job.cores, job.least), area.running(), area.total())
    if not job.frozen and not plan.why_kept(job) and not isinstance(counts, Wait):
        with suppress(Refused):
            transaction.replan(counts, "arrival")
            return
    name = plan.free_name(job.asked)
    ranks: dict[int, Task | None] = {task.rank: task for task in late}
    plan.jobs[name] = replace(job, name=name, ranks=ranks, targets={}, cores=0, hold=None, hold_until=None)
    for task in late:
        del job.ranks[task.rank]
        task.job = name
    for changed in (job, plan.jobs[name]):
        plan.touch(changed)


def _behind(area: Area, job: Job, ahead: Sequence[tuple[Job, Wait]]) -> str:
    """Return a sentence that says why a job must wait behind the waiting jobs `ahead`; empty if it need not."""
    first = next((first for first, wait in ahead if _waits_behind(job, first, wait)), None)
    if first is None:
        return ""
    if first.arrived < job.arrived:
        return "others arrived before it."
    has = {user: sum(view.cores for view in area.running() if view.user == user) for user in (first.user, job.user)}
    fewer = has[first.user] < has[job.user]
    return "users who have fewer CPUs come first." if fewer else "users take turns: a job of another user is next."


def _admit(transaction: Transaction, job: Job) -> Wait | None:
    """Admit a job, with fewer cores if strict layouts leave no room for more; return why if it has to wait."""
    plan = transaction.plan
    view, why = plan.view(job), ""
    while view.maximum >= view.minimum:
        counts = _counts_with(transaction.area, view)
        if isinstance(counts, Wait):
            return counts
        try:
            transaction.replan(counts, "share")
        except PlacementRefused as misplaced:
            why = str(misplaced)
            if not misplaced.job:
                break
            view = replace(view, maximum=counts[job.name] - 1)
        else:
            return None
    return Wait(why)


def _counts_with(area: Area, new: JobCores) -> dict[str, int] | Wait:
    """Return the cores of every job of an area once the waiting job `new` runs too, or why it has to wait."""
    plan, total = area.plan, area.total()
    could, cap = total + plan.cores.count((plan.busy | plan.foreign) & area.mask), plan.cap
    if beyond := fair_share.why_never(new, could, cap, told=plan.cores):
        return beyond
    counts = fair_share.admit(new, area.running(), total, plan.rules.sharing_factor, cap, told=plan.cores)
    if not isinstance(counts, Wait) and _takes_the_last(area, new, counts):
        return Wait("the last CPUs that running jobs can lend are kept for users without running jobs.", "user")
    return counts


def _takes_the_last(area: Area, new: JobCores, counts: Mapping[str, int]) -> bool:
    """Return whether an arrival would take cores from other jobs that must be left for users without jobs.

    Free cores are never left idle for such users.
    """
    plan, running, total = area.plan, area.running(), area.total()
    rules = plan.rules
    if not rules.spare_for_newcomers or new.user in rules.free:
        return False
    if counts[new.name] <= total - sum(job.cores for job in running):
        return False
    if sum(job.user == new.user for job in running) < MANY_OF_ONE_USER:
        return False
    fixed = plan.jobs[new.name].job_class != "malleable"
    jobs = [*running, replace(new, fixed=fixed)]
    enough = plan.cores.needed_for(rules.spare_for_newcomers)
    return not fair_share.could_lend(enough, counts, jobs, total, rules.sharing_factor)


def _wait_for_memory(plan: Plan, job: Job) -> Wait | None:
    if not plan.memory or not job.declared:
        return None
    left = plan.memory - sum(other.declared for other in plan.jobs.values() if other.cores)
    if job.declared <= max(0, left):
        return None
    needs, has = in_words(job.declared), in_words(max(0, left))
    return Wait(f"needs {needs} of memory: running jobs leave {has} of {in_words(plan.memory)}.", "memory")


def _waits_behind(job: Job, first: Job, wait: Wait) -> bool:
    """Return whether a job must wait because it could take what the earlier job `first` waits for.

    A job that waits for cores holds up all others. A job that waits for memory would never start if others that declare
    memory overtook it, but those that declare none do not delay it. A cap holds up only jobs of the same user. No job
    waits behind one that waits for the rules or the machine to change.
    """
    if wait.resource == "memory":
        return job.memory > 0
    return wait.resource == "cores" or (wait.resource == "user" and job.user == first.user)
