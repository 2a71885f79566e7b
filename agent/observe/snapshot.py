# SPDX-License-Identifier: Apache-2.0
"""The state of a node at one moment, as immutable values: for `drom ps`, metrics and pictures."""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import TYPE_CHECKING

from drom.agent.model.layouts import layout_name
from drom.agent.observe.view import CoreView, JobView, NodeSummary, Snapshot, TaskView

from dromlib import layout
from dromlib.cpulist import cpus as cpus_of
from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from drom.agent.observe.view import AgentView


def snapshot(agent: AgentView) -> Snapshot:
    """Return the present state of the tasks of a daemon's node."""
    node, now = agent.node, time.monotonic()
    listed = functools.cache(format_cpulist)
    tasks = sorted(node.tasks.values(), key=lambda t: (node.jobs[t.job].arrived, t.rank))
    views = []
    for task in tasks:
        job = node.jobs[task.job]
        mail = agent.mailboxes.read(task.mailbox)
        waits = not task.started
        views.append(
            TaskView(
                pid=task.arrival.pid,
                job=task.job,
                task=task.rank,
                uid=task.arrival.uid,
                job_class=job.job_class,
                state=node.grants.state(task),
                mode="unmanaged" if agent.settings.observe else task.mode,
                reason=task.reason,
                detail=node.grants.why_waiting(task) if waits else node.grants.why_short(task),
                min=node.cores.cpus(job.task_min),
                max=node.cores.cpus(job.task_max),
                owned=listed(node.plan.owned(task)),
                target=listed(node.plan.target(task)),
                granted=listed(task.granted),
                applied=listed(task.applied),
                held=listed(task.held),
                points=_points(mail.points) if mail and task.responder else "",
                polls=mail.polls if mail else 0,
                progress=mail.progress if mail else 0,
                wanted_min=task.said.least,
                wanted_max=task.said.most,
                min_tasks=task.said.min_tasks,
                max_tasks=task.said.max_tasks,
                lent=listed(node.plan.owned(task) & node.plan.ledger.planned & ~node.cores.whole(job.planned)),
                borrowed=listed(node.plan.target(task) & ~node.plan.ledger.owned.get(job.name, 0)),
                layout=layout_name(job.layout),
                memory=job.memory,
                hold=None if job.hold is None else node.cores.cpus(job.hold),
                pin=listed(task.pin),
                left=None if job.hold_until is None else round(max(0.0, job.hold_until - now), 3),
                attached=task.arrival.attached,
            )
        )
    since = None if node.grants.frozen_since is None else time.time() - (time.monotonic() - node.grants.frozen_since)
    unavailable = node.cores.all & ~agent.usable.availability.available.managed
    avoided = node.plan.avoided & ~unavailable
    foreign = node.plan.foreign
    return Snapshot(tuple(views), agent.settings.observe, since, avoided, unavailable, foreign, _load(agent))


@functools.lru_cache(maxsize=256)
def _points(bits: int) -> str:
    names = [name for bit, name in enumerate(layout.ENUMS["POINTS"]) if bits >> bit & 1 and name != "pinned"]
    for other, instead in (("other_libomp", "the first libomp"), ("other_tool", "libomp of another tool")):
        if other in names:
            names.remove(other)
            names = [instead if name == "libomp" else name for name in names]
    return " and ".join(names)


def overview(agent: AgentView) -> NodeSummary:
    """Return the present state of a daemon's node, all tasks together."""
    node = agent.node
    states = Counter(node.grants.state(task) for task in node.tasks.values())
    return NodeSummary(_jobs(agent), _cores(agent), states, node.grants.frozen, _load(agent))


def _load(agent: AgentView) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(agent.usable.load.items()))


def _jobs(agent: AgentView) -> tuple[JobView, ...]:
    node = agent.node
    packages: dict[int, int] = {}
    for package, _, cpus in agent.rows:
        packages[package] = packages.get(package, 0) | cpus
    views = []
    for job in node.jobs.values():
        held = 0
        for task in job.present:
            held |= task.held
        views.append(
            JobView(
                job.name,
                {package: (cpus & held).bit_count() for package, cpus in packages.items() if cpus & held},
                job.planned.bit_count(),
                node.cores.cpus(job.least),
                node.cores.cpus(node.plan.most(job)),
            )
        )
    return tuple(views)


def _cores(agent: AgentView) -> tuple[CoreView, ...]:
    holder = {cpu: task.job for task in agent.node.tasks.values() for cpu in cpus_of(task.held)}
    usable = agent.node.plan.usable
    return tuple(
        CoreView(package, mask, mask & usable, next((holder[cpu] for cpu in cpus_of(mask) if cpu in holder), None))
        for package, _, mask in agent.rows
    )
