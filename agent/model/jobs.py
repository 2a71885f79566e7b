# SPDX-License-Identifier: Apache-2.0
"""Plain values of the node's state machine: tasks, jobs, arrivals, and the actions it asks for.

Masks are sets of OS CPU numbers as Python integers; times are seconds of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from drom.agent.model.copies import State, Value
from drom.agent.model.layouts import ANY, Layout


@dataclass(frozen=True, slots=True)
class Demand(Value):
    """The least and the most CPUs that a program reports it can use; 0: not reported.

    While `min_tasks` tasks of its job have CPUs its task may have none (it rests); 0: it must always have some. No more
    than `max_tasks` tasks can use CPUs; 0: all can.
    """

    least: int = 0
    most: int = 0
    min_tasks: int = 0
    max_tasks: int = 0

    @property
    def is_contradictory(self) -> bool:
        """Whether no number of CPUs satisfies both bounds."""
        return 0 < self.most < self.least

    def is_met_by_more_than(self, other: Demand) -> bool:
        """Return whether the program could use more CPUs with this wish than with `other`."""
        return bool(other.most) and (not self.most or self.most > other.most)


NO_DEMAND = Demand()


@dataclass(frozen=True, slots=True)
class Arrival(Value):
    """A task that requests registration. `min_cpus`, `max_cpus` and `memory` (bytes) are per task.

    Their 0 means one core, all cores of the node, and not declared. `attached`: the process ran before an order put it
    under management. `within`: pid and start time of the first process of the task that launched it, as it reports.
    `cpuset`: the OS CPUs to which the kernel confines it, 0 if these are all that are managed. `batch_job`: the job of
    a batch system that it is part of (empty: none), and `batch_cpuset` the CPUs of that whole job, 0 if they are
    `cpuset`.
    """

    pid: int
    start_time: int
    uid: int
    job: str
    job_class: str = "malleable"
    session: int = 0
    min_cpus: int = 0
    max_cpus: int = 0
    rank: int = 0
    size: int = 1
    restore: int = 0
    layout: Layout = ANY
    memory: int = 0
    attached: bool = False
    within: tuple[int, int] | None = None
    cpuset: int = 0
    batch_job: str = ""
    batch_cpuset: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a scheduler reserves for its job here: `cores` for `tasks` of user `uid`, from now until it is dismissed.

    An order may change the cores up to `most`. `memory` is that of all tasks together (bytes, 0: not declared). With
    `rests` the cores may be fewer than the tasks, or none: the other tasks rest.
    """

    name: str
    uid: int
    cores: int
    most: int
    tasks: int = 1
    job_class: str = "malleable"
    memory: int = 0
    rests: bool = False


_SCHEDULED = re.compile(r"drom-[1-9][0-9]*")


def is_scheduler_job(name: str) -> bool:
    """Return whether a job's name has the form that only schedulers assign."""
    return _SCHEDULED.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Grant(Value):
    """A published grant that is not superseded yet."""

    epoch: int
    mask: int
    at: float


@dataclass(slots=True)
class Task(State):
    """A launched process with its descendants. `grants` runs from the last acknowledged to the newest.

    `said` is the newest wish that its program reported, `wish` the one in effect; the next one can take effect from
    `heeds_from` on (seconds of CLOCK_MONOTONIC).
    """

    slot: int
    job: str
    rank: int
    arrival: Arrival
    epoch: int
    grants: list[Grant] = field(default_factory=list)
    mailbox: int = 0
    responder: tuple[int, int] | None = None
    deadline: float | None = None
    enforced: bool = False
    denied: bool = False
    pin: int = 0
    reason: str = "arrival"
    told_waiting: bool = False
    said: Demand = NO_DEMAND
    wish: Demand = NO_DEMAND
    heeds_from: float = 0.0

    @property
    def started(self) -> bool:
        """Whether the first grant has been published."""
        return bool(self.grants)

    @property
    def granted(self) -> int:
        """The CPUs of the newest grant."""
        return self.grants[-1].mask if self.grants else 0

    @property
    def applied(self) -> int:
        """The CPUs of the grant in force."""
        return self.grants[0].mask if self.grants else 0

    @property
    def held(self) -> int:
        """Every CPU of every grant that no acknowledgement has superseded."""
        mask = 0
        for grant in self.grants:
            mask |= grant.mask
        return mask

    @property
    def mode(self) -> str:
        """cooperative, bind-only (no responder) or unmanaged (the agent may not bind it)."""
        if self.denied:
            return "unmanaged"
        return "cooperative" if self.responder else "bind-only"


@dataclass(frozen=True, slots=True)
class Event(Value):
    """Something that happened to job `job` at `at` (seconds of CLOCK_MONOTONIC).

    Kinds: arrival, admission (after it had waited), end (of one of its tasks), order, expiry (of an order's time),
    release (one of its tasks is no longer managed), rest (a job has finished resting), use (the CPUs that may be handed
    out have changed), load (unmanaged programs keep other CPUs busy), foreign (other CPUs are left to jobs of a batch
    system), wish (what its programs can use), start (of the agent), rules (the site has changed its rules).
    `by` is the uid of the user that gave the order, `lost` the CPUs that are no longer handed out since, if any (use,
    load, foreign).
    """

    kind: str
    job: str
    at: float
    by: int | None = None
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Change(Value):
    """A change of a job's CPUs: the reason (a word of REASON), the event, and the CPUs planned for it before."""

    reason: str
    event: Event
    before: int


@dataclass(slots=True)
class Job(State):
    """The tasks of one launch. Counts are cores; `task_min`, `task_max` and `memory` (bytes) hold for each rank.

    `asked` is the requested name, `name` the assigned one. `ranks` has an entry for each task of the job on this node:
    None until the task arrives. `cores` is 0 while the job waits, or while all its ranks rest. `hold` is the size at
    which an order has fixed it, until `hold_until` (seconds of CLOCK_MONOTONIC) if that is not None; `hold_by` is the
    user who gave that order, or the order for exact CPUs. Until `rest_until` it does not grow again; then any gain is
    worth a resize. `last` is the last change of its CPUs, None if that was before this agent started. `reserved` is the
    most cores that may be ordered for a job of a scheduler, 0 for other jobs; a scheduler's job exists, and keeps its
    cores, whether its tasks are present or not. If it `rests`, all its ranks here may be at rest. The ranks of the
    tasks of its newest launch are numbered from `first` on. `cpuset` are the CPUs, by whole cores, to which the kernel
    confines it, 0 if it may have any; `cpusets` are those of ranks that may be confined to fewer. `batch_job` is the
    job of a batch system whose launches are its tasks, empty if there is none.
    """

    name: str
    asked: str
    user: int
    session: int
    job_class: str
    arrived: int
    task_min: int
    task_max: int
    ranks: dict[int, Task | None]
    targets: dict[int, int] = field(default_factory=dict)
    cores: int = 0
    hold: int | None = None
    hold_until: float | None = None
    hold_by: int | None = None
    last: Change | None = None
    rest_until: float | None = None
    layout: Layout = ANY
    memory: int = 0
    complete_by: float | None = None
    waits_for: str = ""
    reserved: int = 0
    rests: bool = False
    first: int = 0
    cpuset: int = 0
    cpusets: dict[int, int] = field(default_factory=dict)
    batch_job: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no cores, and none of an order either."""
        return not self.cores and self.hold is None

    @property
    def present(self) -> list[Task]:
        """The tasks that have arrived."""
        return [task for task in self.ranks.values() if task]

    @property
    def times(self) -> list[float]:
        """The times at which the job needs attention."""
        return [at for at in (self.complete_by, self.hold_until, self.rest_until) if at is not None]

    @property
    def planned(self) -> int:
        """The mask of all CPUs that the plan assigns to its ranks."""
        mask = 0
        for target in self.targets.values():
            mask |= target
        return mask

    @property
    def declared(self) -> int:
        """The memory declared for all its ranks together (bytes)."""
        return self.memory * len(self.ranks)

    @property
    def granted(self) -> int:
        """The CPUs of the newest grants of its tasks."""
        mask = 0
        for task in self.present:
            mask |= task.granted
        return mask

    @property
    def least_ranks(self) -> int:
        """The fewest ranks that must have cores: the others rest while there are not enough for all.

        A job is adaptive if all its programs accept that. Once one does not, only the ranks that rest may do without.
        Of a scheduler's job that `rests` the other ranks may be on other nodes.
        """
        if self.rests:
            return 0
        said = [task.wish.min_tasks if task else 0 for task in self.ranks.values()]
        if all(said) and not self.cpusets:
            return min(max(said), len(said))
        return len(said) - sum(1 for target in self.targets.values() if not target)

    @property
    def most_ranks(self) -> int:
        """The most ranks that can use cores, as all programs of an adaptive job report."""
        said = [task.wish.max_tasks if task else 0 for task in self.ranks.values()]
        return min(max(said), len(said)) if all(said) else len(said)

    @property
    def least(self) -> int:
        """The cores below which the job does not go."""
        return self.task_min * self.least_ranks

    @property
    def started(self) -> bool:
        """Whether any of its tasks has received a grant."""
        return any(task.started for task in self.present)

    @property
    def settled(self) -> bool:
        """Whether every rank is present and has exactly its target."""
        ranks = self.ranks.items()
        return all(task and len(task.grants) == 1 and task.granted == self.targets.get(rank) for rank, task in ranks)

    @property
    def pinned(self) -> bool:
        """Whether an order has set the exact CPUs of a task."""
        return any(task.pin for task in self.present)

    @property
    def frozen(self) -> bool:
        """Whether the job keeps exactly its current cores, as a rigid or moldable job does once it runs."""
        return self.job_class != "malleable" and self.started


@dataclass(frozen=True, slots=True)
class Publish:
    """Write this grant into the task's slot."""

    task: Task
    epoch: int
    mask: int
    reason: str


@dataclass(frozen=True, slots=True)
class Start:
    """Answer the waiting launcher: the first grant is published."""

    task: Task


@dataclass(frozen=True, slots=True)
class Bind:
    """Set the affinity of every thread of the task, then call `Grants.bound` or `Grants.bind_failed`."""

    task: Task
    epoch: int
    mask: int


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Free the task's slot and mailbox."""

    task: Task


@dataclass(frozen=True, slots=True)
class Settled:
    """The grant `epoch` is in force. `outcome` is applied (by the program), bound (no responder) or enforced."""

    task: Task
    epoch: int
    old: int
    new: int
    action: str
    outcome: str
    asked: float
    at: float


Action = Publish | Start | Bind | FreeSlot | Settled


def action_name(old: int, new: int) -> str:
    """Return the name of the change from CPUs `old` to `new`: start, shrink, grow, move, or keep."""
    if not old:
        return "start"
    if not new:
        return "rest"
    if old == new:
        return "keep"
    if not new & ~old:
        return "shrink"
    return "grow" if not old & ~new else "move"
