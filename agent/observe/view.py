# SPDX-License-Identifier: Apache-2.0
"""The parts of a running agent that snapshots, metrics and pages read. The daemon implements `AgentView`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from drom.agent.text import iso

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    import threading

    from drom.agent.ipc.mailboxes import Mailboxes
    from drom.agent.model.cores import Core
    from drom.agent.node.node import Node
    from drom.agent.observe.guarded import Guard
    from drom.agent.observe.job_rates import RateMonitor
    from drom.agent.observe.log import Log
    from drom.agent.observe.reporter import EventReporter
    from drom.agent.topology.availability import AvailabilityMonitor


class ViewSettings(Protocol):
    """The settings of an agent that are shown."""

    @property
    def observe(self) -> bool:
        """Whether the agent only observes."""


class Explainer(Protocol):
    """Explains the state of jobs."""

    def explained(self, name: str) -> dict[str, object]:
        """Return why the job of that name has its CPUs. Raises `Refused` if there is no such job."""


class CpuSources(Protocol):
    """What determines the CPUs that an agent hands out; see `drom.agent.daemon.usable_cpus`."""

    @property
    def availability(self) -> AvailabilityMonitor:
        """The CPUs of the machine that are available."""

    @property
    def load(self) -> dict[int, float]:
        """The share of each OS CPU that unmanaged programs used."""


class AgentView(Protocol):
    """A running agent. Hold `lock` while reading anything but `settings` and `rows`."""

    lock: threading.Lock
    node: Node
    mailboxes: Mailboxes
    report: EventReporter
    guard: Guard
    log: Log
    rate_monitor: RateMonitor
    rows: list[Core]

    @property
    def usable(self) -> CpuSources:
        """What determines the CPUs that are handed out."""

    @property
    def settings(self) -> ViewSettings:
        """The settings that the agent was started with."""

    @property
    def control_handler(self) -> Explainer:
        """The handler of orders."""

    def snapshot(self) -> Snapshot:
        """Return the state of all tasks, at most a moment old."""


SCHEMA_VERSION = 1


class TaskView(NamedTuple):
    """One task. CPU sets are kernel lists of OS CPUs; `min` and `max` are CPUs of the task.

    `owned` and `lent` are of its job: the CPUs that it owns, and those of them that other jobs have. `borrowed` are
    CPUs of other jobs that the task has. `hold` is the number of CPUs an order holds its job at, `pin` the exact CPUs
    of such an order; `left` are the seconds until the order ends by itself. `memory` is in bytes. `points` names the
    runtimes whose calls are the program's malleability points: empty if it has its own.
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
    min_tasks: int
    max_tasks: int
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


@dataclass(frozen=True, slots=True)
class CoreView:
    """One core: its package (index), its CPUs, the usable ones of them (OS CPUs), and the job that holds it."""

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
class NodeSummary:
    """Jobs, cores, the number of tasks in each state, and the use of each CPU by unmanaged programs, at one moment."""

    jobs: tuple[JobView, ...]
    cores: tuple[CoreView, ...]
    states: dict[str, int]
    frozen: bool
    unmanaged: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The tasks at one moment; `frozen_since` is when the kill switch was seen (seconds since 1970).

    `avoided` are the OS CPUs left alone now, and `foreign` those of them that are left to jobs of Slurm that run no
    program under drom; `unavailable` are those that are offline, not allowed or reserved now. `unmanaged` is the
    share of each CPU that unmanaged programs used, if that is measured.
    """

    tasks: tuple[TaskView, ...]
    observe: bool
    frozen_since: float | None = None
    avoided: int = 0
    unavailable: int = 0
    foreign: int = 0
    unmanaged: tuple[tuple[int, float], ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the value of ``drom ps --json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "observe": self.observe,
            "frozen_since": None if self.frozen_since is None else iso(self.frozen_since),
            "avoided": format_cpulist(self.avoided),
            "unavailable": format_cpulist(self.unavailable),
            "foreign": format_cpulist(self.foreign),
            "tasks": [task.to_json() for task in self.tasks],
        }


_NAMES = tuple("class" if name == "job_class" else name for name in TaskView._fields)
