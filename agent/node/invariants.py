# SPDX-License-Identifier: Apache-2.0
"""The invariants of a node, which hold after every event."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING

from drom.agent.node.areas import areas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.node.node import Node


def violations(node: Node) -> list[str]:
    """Return a sentence for every violated invariant; an empty list if all hold."""
    return [
        *_held(node),
        *_jobs(node),
        *_tasks(node),
        *_owners(node),
        *_books(node),
        *_sets(node),
        *_rules(node),
        *_idle(node),
    ]


def _held(node: Node) -> Iterator[str]:
    for a, b in combinations(node.tasks.values(), 2):
        if a.held & b.held:
            yield f"{a.job}/{a.rank} and {b.job}/{b.rank} hold the same CPUs."


def _jobs(node: Node) -> Iterator[str]:
    usable, planned = node.cores.all, 0
    for job in node.jobs.values():
        if not job.present and not job.reserved:
            yield f"job {job.name} has no task."
        if job.cores != sum(node.cores.count(target) for target in job.targets.values()):
            yield f"job {job.name} counts {job.cores} cores, its targets have another number."
        if set(job.targets) != (set() if job.waits else set(job.ranks)):
            yield f"job {job.name} has targets for ranks it has not."
        for target in job.targets.values():
            if planned & target:
                yield f"the plan gives CPUs of job {job.name} twice."
            if target & ~usable:
                yield f"the plan gives job {job.name} CPUs that are not there."
            planned |= target
        ranks = len(job.ranks)
        if job.cores and not job.least <= job.cores <= job.task_max * ranks:
            yield f"job {job.name} has {job.cores} cores, outside its minimum and maximum."


def _tasks(node: Node) -> Iterator[str]:
    usable = node.cores.all
    for task in node.tasks.values():
        job = node.jobs[task.job]
        if job.ranks.get(task.rank) is not task:
            yield f"the task in slot {task.slot} is in no job."
        less = 0 < task.granted.bit_count() < node.cores.cpus(job.task_min)
        # A grant of the remaining CPUs of a core lasts until the next grant, even if its other CPUs return before.
        part = node.plan.target(task) != task.granted and node.cores.count(task.granted) >= job.task_min
        if less and not part and not node.plan.gone and not node.grants.frozen:
            yield f"{task.job}/{task.rank} was granted less than its minimum."
        if any(target & ~node.plan.cpuset(job, rank) for rank, target in job.targets.items()):
            yield f"job {job.name} is planned outside its cpuset."
        if task.held & ~usable:
            yield f"{task.job}/{task.rank} holds CPUs that are not there."
        if len(task.grants) > 1 and task.deadline is None and (task.granted or not job.rests):
            yield f"{task.job}/{task.rank} is awaited for ever."


def _owners(node: Node) -> Iterator[str]:
    idle = node.plan.avoided & ~node.cores.whole(node.plan.ledger.planned)
    if owned := [name for name, mask in node.plan.ledger.owned.items() if mask & idle]:
        yield f"{owned[0]} owns cores that nobody is to have."
    alive = {job.name for job in node.jobs.values() if job.cores}
    for core, owner in zip(node.cores, node.plan.ledger.owners, strict=True):
        if owner is not None and owner not in alive:
            yield f"core {core:#x} belongs to {owner}, which has ended."


def _books(node: Node) -> Iterator[str]:
    """Yield where values that each event updates differ from the values computed anew."""
    held = planned = 0
    for task in node.tasks.values():
        held |= task.held
        if node.grants.find(task.arrival.pid, task.arrival.start_time) is not task:
            yield f"the task in slot {task.slot} is not found by its first process."
    for job in node.jobs.values():
        planned |= job.planned
    ledger, kept = node.plan.ledger, node.grants.held
    if (held, planned) != (kept, ledger.planned):
        yield f"held {kept:#x} and planned {ledger.planned:#x} are written down, {held:#x} and {planned:#x} are."
    holders = [next((j.name for j in node.jobs.values() if j.planned & core), None) for core in node.cores]
    if holders != ledger.holders:
        yield f"the cores' holders are written down as {ledger.holders}, and are {holders}."
    owned = {
        name: sum(core for core, owner in zip(node.cores, ledger.owners, strict=True) if owner == name)
        for name in ledger.owners
        if name is not None
    }
    if owned != ledger.owned:
        yield f"owned cores are written down as {ledger.owned}, and are {owned}."
    if node.plan.running() != [node.plan.view(job) for job in node.jobs.values() if job.cores]:
        yield "the policy's view of a job is out of date."


def _sets(node: Node) -> Iterator[str]:
    """Yield what is missing from the sets that save a search over all jobs or tasks; they may contain more."""
    plan, jobs = node.plan, node.jobs
    if any(job.cores and not job.settled and name not in plan.restless.members() for name, job in jobs.items()):
        yield "a job that is not settled is taken for one that is."
    if any(job.layout.kind != "default" and name not in plan.laid_out.members() for name, job in jobs.items()):
        yield "a job that asked for a layout is taken for one that did not."
    if any(job.times and name not in plan.timed.members() for name, job in jobs.items()):
        yield "a job that waits for a time is taken for one that does not."
    if any(task.deadline is not None and slot not in node.grants.timed.members() for slot, task in node.tasks.items()):
        yield "a task with a deadline is taken for one without."


def _rules(node: Node) -> Iterator[str]:
    plan, running = node.plan, [job for job in node.jobs.values() if job.cores]
    declared = sum(job.declared for job in running)
    if plan.memory and declared > plan.memory:
        yield f"running jobs declare {declared} bytes of memory, the node has {plan.memory}."
    for area, user in [(area, user) for area in areas(plan) for user in {job.user for job in running}]:
        jobs = [job for job in running if job.user == user and area.has(job)]
        ordered = any(job.hold is not None or job.pinned for job in jobs)
        could = any(
            job.job_class == "malleable"
            and job.cores > job.least
            and not job.planned & plan.avoided  # a job that cannot leave these stays as it is
            for job in jobs
        )
        if plan.cap and not ordered and could and sum(job.cores for job in jobs) > plan.cap:
            yield f"the jobs of user {user} have more than {plan.cap} cores."
    for view in plan.running():
        if view.cores > view.maximum and not view.fixed and not node.jobs[view.name].layout.strict:
            yield f"job {view.name} has {view.cores} cores and accepts {view.maximum}."
    for job in node.jobs.values():
        if bool(job.waits_for) != job.waits:
            yield f"job {job.name} has {job.cores} cores and waits for: {job.waits_for!r}."


def _idle(node: Node) -> Iterator[str]:
    """Yield cores that idle although a job could use them, and timers or sizes of orders that are inconsistent.

    A core may idle only while no job may use it, while the jobs that may are resting, or if a strict layout forbids.
    """
    plan = node.plan
    free = plan.usable & ~node.cores.whole(plan.ledger.planned)
    for area in areas(plan):
        idle = node.cores.count(free & area.mask) - area.reclaimable_cores(-math.inf)
        jobs = [node.jobs[name] for name in area.growable_jobs()]
        hungry = [job.name for job in jobs if not (job.layout.strict or job.cpusets) and plan.cpuset(job) == area.mask]
        if idle > 0 and hungry:
            yield f"{idle} cores idle while {hungry[0]} could use them."
    for job in node.jobs.values():
        if job.rest_until is not None and (not plan.rules.residence or not job.cores):
            yield f"job {job.name} rests for nothing."
        if job.hold_until is not None and job.hold is None:
            yield f"job {job.name} awaits the end of no order."
        if job.hold not in (None, job.cores):
            yield f"job {job.name} is held at {job.hold} cores and has {job.cores}."
