# SPDX-License-Identifier: Apache-2.0
"""Slurm's jobs, nodes, partitions, licences and reservations as values. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

GATE = "drom_gate"
"""The licence that keeps jobs from starting until the daemon releases them."""
_MALLEABLE = re.compile(r"(?:^|[\s;])drom:malleable=([0-9]{1,6}):([0-9]{1,6})(?=$|[\s;])")
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"),
        *("OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States in which a job does not run and does not wait any more."""
UNUSABLE = frozenset({"DOWN", "DRAIN", "FAIL", "FUTURE", "MAINT", "NOT_RESPONDING", "POWERED_DOWN", "UNKNOWN"})
"""States of a node on which Slurm starts nothing."""


class Reading(NamedTuple, Generic[T]):
    """What was read: the records that are whole, and a sentence for each field that is not."""

    records: tuple[T, ...]
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A job. Times are seconds since 1970, None if not known; the time limit is in minutes, None for no limit.

    Tasks of an array that have not started are one record: `number` is that of the array, `tasks_left` names them.
    """

    number: int
    array: int | None
    """The number of the array to which the job belongs, None if to none."""
    task: int | None
    tasks_left: str
    user: str
    uid: int
    account: str
    partitions: tuple[str, ...]
    states: frozenset[str]
    reason: str
    priority: int
    submitted: int | None
    eligible: int | None
    started: int | None
    """When the job started; for a waiting job when Slurm expects it to."""
    ends: int | None
    """When the job ended, or reaches its limit; None while it waits."""
    limit_min: int | None
    least_nodes: int
    most_nodes: int
    tasks: int
    cpus_per_task: int
    cpus: int
    sharing: str
    """YES: shares its cores with others; NO or OK: does not; USER: only with its user's; empty: not known."""
    licences: tuple[tuple[str, int], ...]
    dependency: str
    requested_nodes: tuple[str, ...]
    nice: int
    het: int | None
    """The number of the heterogeneous job of which this is a component."""
    nodes: tuple[str, ...]
    """The nodes that the job has."""
    memory: str
    """Per node, as ``1000M``; per CPU, as ``1000Mc``."""
    reservation: str
    restarts: int
    name: str
    comment: str
    admin_comment: str

    @property
    def identifier(self) -> str:
        """What Slurm's commands call the job: 7, or 5_3 for a task of an array."""
        return str(self.number) if self.array is None or self.task is None else f"{self.array}_{self.task}"

    @property
    def shares(self) -> bool:
        """Whether the job shares its cores with others of its partition."""
        return self.sharing == "YES"

    @property
    def waits(self) -> bool:
        """Whether the job waits to be started."""
        return "PENDING" in self.states

    @property
    def runs(self) -> bool:
        """Whether the job has nodes, also while these are being prepared or left."""
        return not self.waits and not self.states & ENDED

    def holds(self, licence: str) -> bool:
        """Return whether the job requests or has a licence."""
        return any(name == licence for name, _ in self.licences)

    @property
    def malleable(self) -> tuple[int, int] | None:
        """The least and the most CPUs of a task, where job_submit.lua has written ``drom:malleable=MIN:MAX``.

        Slurm shows options of plugins to job_submit.lua alone.
        """
        found = _MALLEABLE.search(self.admin_comment)
        return (int(found[1]), int(found[2])) if found and 0 < int(found[1]) <= int(found[2]) else None


@dataclass(frozen=True, slots=True)
class Node:
    """A node. Memory is in MiB."""

    name: str
    cpus: int
    usable_cpus: int
    """The CPUs that jobs may have: all but those reserved for the system."""
    allocated_cpus: int
    cores: int
    threads_per_core: int
    memory_mib: int
    allocated_memory_mib: int
    states: frozenset[str]
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    version: str
    reason: str

    @property
    def is_usable(self) -> bool:
        """Whether Slurm may start jobs on the node."""
        return not self.states & UNUSABLE


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition. Times are in minutes, None for no limit; memory is in MiB, None for no default."""

    name: str
    nodes: tuple[str, ...]
    is_default: bool
    oversubscribe: str
    """NO, EXCLUSIVE, YES, FORCE, the last two perhaps with the number of jobs on a core, as ``YES:2``."""
    state: str
    preempt_mode: str
    default_limit_min: int | None
    most_limit_min: int | None
    memory_per_node_mib: int | None
    memory_per_cpu_mib: int | None


@dataclass(frozen=True, slots=True)
class Licence:
    """Licences of one name."""

    name: str
    total: int
    used: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation. Times are seconds since 1970."""

    name: str
    starts: int | None
    ends: int | None
    nodes: tuple[str, ...]
    licences: tuple[tuple[str, int], ...]
    flags: frozenset[str]
    is_active: bool
