# SPDX-License-Identifier: Apache-2.0
"""What a node looks like at one moment, as frozen values: for `drom ps`, metrics and pictures."""

from __future__ import annotations

import functools
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agent.model.layouts import layout_name
from agent.text import iso
from dromlib import layout
from dromlib.cpulist import cpus as cpus_of
from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from agent.observe.view import AgentView

SCHEMA_VERSION = 1


class TaskView(NamedTuple):
    """One task. CPU sets are kernel lists of OS CPUs; `min` and `max` are CPUs of the task.

    `owned` and `lent` are of its job: the CPUs that are its own, and those of them that others have. `borrowed` are
    CPUs of others that the task has. `hold` is the
    number of CPUs an order holds its job at, `pin` the exact CPUs of one; `left` seconds until that ends by itself.
    `memory` is in bytes. `points` names the runtimes whose calls are the program's malleability points: empty where it
    has its own.
    """

    pid: int
    job: str
    task: int
    uid: int
    job_class: str
    state: str
    mode: str
    reason: str
    detail: str
    min: int
    max: int
    owned: str
    target: str
    granted: str
    applied: str
    held: str
    points: str
    polls: int
    progress: int
    wanted_min: int
    wanted_max: int
    lent: str
    borrowed: str
    layout: str
    memory: int
    hold: int | None
    pin: str
    left: float | None
    attached: bool

    def to_json(self) -> dict[str, object]:
        """Return a value for ``json.dumps``."""
        return dict(zip(_NAMES, self, strict=True))


_NAMES = tuple("class" if name == "job_class" else name for name in TaskView._fields)


@dataclass(frozen=True, slots=True)
class CoreView:
    """One core: its package (index), its CPUs, which of them may be handed out (OS CPUs), and who holds it."""

    package: int
    cpus: int
    usable: int
    holder: str | None

    def count(self, state: str) -> int:
        """Return how many of its CPUs are `assigned`, `free` or `unavailable`."""
        if self.holder is not None:
            return self.cpus.bit_count() if state == "assigned" else 0
        mask = {"free": self.usable, "unavailable": self.cpus & ~self.usable}.get(state, 0)
        return mask.bit_count()


@dataclass(frozen=True, slots=True)
class JobView:
    """One job: CPUs it holds by index of the packages where it holds any; target, minimum and maximum in CPUs."""

    name: str
    cpus: dict[int, int]
    target: int
    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Overview:
    """Jobs, cores, how many tasks are in each state, and what unmanaged programs take of each CPU, at one moment."""

    jobs: tuple[JobView, ...]
    cores: tuple[CoreView, ...]
    states: dict[str, int]
    frozen: bool
    unmanaged: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tasks at one moment; `frozen_since` is when the kill switch was seen (seconds since 1970).

    `avoided` are the OS CPUs left alone now, `unavailable` those that are gone, not allowed or reserved now,
    `unmanaged` what unmanaged programs took of each CPU (share) where that is measured.
    """

    tasks: tuple[TaskView, ...]
    observe: bool
    frozen_since: float | None = None
    avoided: int = 0
    unavailable: int = 0
    unmanaged: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the value of ``drom ps --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "observe": self.observe,
            "frozen_since": None if self.frozen_since is None else iso(self.frozen_since),
            "avoided": format_cpulist(self.avoided),
            "unavailable": format_cpulist(self.unavailable),
            "tasks": [task.to_json() for task in self.tasks],
        }


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
                state=node.state(task),
                mode="unmanaged" if agent.settings.observe else task.mode,
                reason=task.reason,
                detail=node.why_waiting(task) if waits else node.why_short(task),
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
    since = None if node.frozen_since is None else time.time() - (time.monotonic() - node.frozen_since)
    unavailable = node.cores.all & ~agent.rereading.available.managed
    avoided = node.plan.avoided & ~unavailable
    return Snapshot(tuple(views), agent.settings.observe, since, avoided, unavailable, _load(agent))


@functools.lru_cache(maxsize=256)
def _points(bits: int) -> str:
    names = [name for bit, name in enumerate(layout.ENUMS["POINTS"]) if bits >> bit & 1 and name != "pinned"]
    for other, instead in (("other_libomp", "the first libomp"), ("other_tool", "libomp of another tool")):
        if other in names:
            names.remove(other)
            names = [instead if name == "libomp" else name for name in names]
    return " and ".join(names)


def overview(agent: AgentView) -> Overview:
    """Return the present state of a daemon's node, all tasks together."""
    node = agent.node
    states = Counter(node.state(task) for task in node.tasks.values())
    return Overview(_jobs(agent), _cores(agent), states, node.frozen, _load(agent))


def _load(agent: AgentView) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(agent.watch_load.load.items()))


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
                node.cores.cpus(job.task_min * len(job.ranks)),
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
