# SPDX-License-Identifier: Apache-2.0
"""A machine as values: packages, NUMA nodes, cores and CPUs.

`drom.agent.topology.sysfs` and `drom.agent.topology.synthetic` create them. Every number is an OS index, every mask a
set of OS CPUs (`dromlib.cpulist`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drom.agent.text import counted, cpus_are

from dromlib.cpulist import cpus, first_cpu, format_cpulist, mask_of

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA_VERSION = 1
"""Version of the value that `Topology.to_json` returns."""


@dataclass(frozen=True, slots=True)
class Group:
    """A package or NUMA node: its OS index (invented if the kernel gives none) and its online OS CPUs."""

    os: int
    cpus: int


@dataclass(frozen=True, slots=True)
class Node(Group):
    """A NUMA node, with its memory in bytes (0: unknown). A node of memory alone has no CPUs."""

    memory: int = 0


@dataclass(frozen=True, slots=True)
class TopologyLevel:
    """A group of CPUs of the machine other than a package, node or core.

    `kind` is "die", "cluster", "book" or "drawer" (or "group" in synthetic words); `os` is its OS index, which may
    repeat and is -1 if the kernel gives none; `cpus` are its online OS CPUs.
    """

    kind: str
    os: int
    cpus: int


@dataclass(frozen=True, slots=True)
class Core:
    """A core: OS index of its package, OS index of its NUMA node (-1: none), and its online OS CPUs.

    `kind` is "performance", "medium", "efficiency" or "low-power" on machines whose cores differ, otherwise empty.
    """

    package: int
    numa: int
    cpus: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Topology:
    """A machine as the agent sees it.

    Packages and NUMA nodes are ordered by OS index, cores by first CPU; they contain the CPUs in `online`. `parts` are
    the dies and clusters that divide a package, and the groups of packages. `allowed` are the CPUs that may be managed.
    `emulated`: the CPUs are not this machine's, so no affinity may be set. `warnings` are sentences for users.

    `quota` is the CPU time that control groups allow us, in CPUs (None: no limit); `memory` is the bytes that we may
    use (0: unknown). `isolated` and `nohz_full` are OS CPUs set aside at boot; `present` are those plugged in and
    `possible` those that could be, as far as the kernel reports them.
    """

    packages: tuple[Group, ...]
    numa: tuple[Node, ...]
    cores: tuple[Core, ...]
    online: int
    allowed: int
    warnings: tuple[str, ...] = ()
    emulated: bool = False
    parts: tuple[TopologyLevel, ...] = ()
    quota: float | None = None
    memory: int = 0
    isolated: int = 0
    nohz_full: int = 0
    present: int = 0
    possible: int = 0

    @property
    def offline(self) -> int:
        """The OS CPUs that are plugged in but switched off."""
        return self.present & ~self.online

    @property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """The OS CPUs of each kind of core, by name; empty if all cores of the machine are of one kind."""
        sets: dict[str, int] = {}
        for core in self.cores:
            if core.kind:
                sets[core.kind] = sets.get(core.kind, 0) | core.cpus
        return tuple(sets.items())

    def to_json(self) -> dict[str, object]:
        """Return a value for ``json.dumps``; CPU sets are kernel lists of OS CPUs, memory is in bytes."""
        sets = ("online", "allowed", "offline", "present", "possible", "isolated", "nohz_full")
        return {
            "schema_version": SCHEMA_VERSION,
            "packages": [_group_json(group) for group in self.packages],
            "numa": [{**_group_json(node), "memory": node.memory} for node in self.numa],
            "dies": [_group_json(part) for part in self.parts if part.kind == "die"],
            "groups": [{"kind": part.kind, **_group_json(part)} for part in self.parts if part.kind != "die"],
            "cores": [{**_core_json(core), "kind": core.kind} for core in self.cores],
            **{name: format_cpulist(getattr(self, name)) for name in sets},
            "quota": self.quota,
            "memory": self.memory,
            "emulated": self.emulated,
            "warnings": warnings_of(self),
        }


def usable_cores(topology: Topology, unit: str = "core") -> list[tuple[int, int, int]]:
    """Return (package index, leaf domain index, allowed OS CPUs) of each unit that may be managed.

    The package index is the position in ``topology.packages``. A leaf domain is a (package, NUMA node) pair; domains
    are numbered over the whole machine in order of package and node, whether usable or not, so that neither index
    changes when `allowed` does. Sorted by package, domain and first CPU.

    A unit is a core with an allowed CPU, or with the unit "thread" one allowed CPU. Under a CPU quota the result has
    the first units in this order whose CPUs fit in the quota, and at least one.
    """
    packages = {group.os: index for index, group in enumerate(topology.packages)}
    pairs = sorted({(packages[core.package], core.numa) for core in topology.cores})
    domains = {pair: index for index, pair in enumerate(pairs)}
    rows = [
        (packages[core.package], domains[packages[core.package], core.numa], part)
        for core in topology.cores
        for part in _units(core.cpus & topology.allowed, unit)
    ]
    return _within(topology.quota, sorted(rows, key=lambda row: (row[0], row[1], first_cpu(row[2]))))


def reserve(topology: Topology, reserved: int) -> Topology:
    """Return `topology` with no allowed CPU in any core that has one of the OS CPUs `reserved`."""
    whole = sum(core.cpus for core in topology.cores if core.cpus & reserved)
    return replace(topology, allowed=topology.allowed & ~whole)


def warnings_of(topology: Topology, unit: str = "core", reserved: int = 0) -> list[str]:
    """Return warnings: oddities of a machine, or of `reserved` on it, and the CPUs unmanaged due to its CPU quota."""
    absent = reserved & ~topology.online
    warnings = [*topology.warnings, *([f"{cpus_are(absent)} reserved and not on this machine."] if absent else [])]
    managed, every = usable_cores(topology, unit), usable_cores(replace(topology, quota=None), unit)
    if topology.quota is None or len(managed) == len(every):
        return warnings
    noun = "core" if unit == "core" else "hardware thread"
    mask = sum(cpus for *_, cpus in managed)
    room = f"has room for {counted(len(managed), noun)} of {len(every)}"
    if mask.bit_count() > topology.quota:
        room = f"is less than a whole {noun}, so that programs will be throttled"
    quota = f"The CPU quota of {counted(topology.quota, 'CPU')} {room}"
    return [*warnings, f"{quota}: {cpus_are(mask)} managed of {format_cpulist(topology.allowed)}."]


def digest(topology: Topology) -> int:
    """Return a 64-bit digest of packages, NUMA nodes, cores and online CPUs, and of nothing else.

    It is the same on every machine, Python and release, as it is written to files that outlive the agent. `allowed` is
    left out, as it changes while programs run.
    """
    parts = {
        "packages": [_group_json(group) for group in topology.packages],
        "numa": [_group_json(node) for node in topology.numa],
        "cores": [_core_json(core) for core in topology.cores],
        "online": format_cpulist(topology.online),
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def split_sockets(topology: Topology) -> Topology | None:
    """Return `topology` with each half of its usable cores as a package, for a demonstration of two sockets.

    A topology whose usable cores already lie in several packages is returned unchanged; None: fewer than two cores.
    """
    rows = usable_cores(topology)
    if len({row[0] for row in rows}) > 1:
        return topology
    if len(rows) < 2:
        return None
    second = mask_of(cpu for row in rows[(len(rows) + 1) // 2 :] for cpu in cpus(row[2]))
    cores = tuple(replace(core, package=int(bool(core.cpus & second))) for core in topology.cores)
    return replace(topology, cores=cores, packages=groups((core.package, core.cpus) for core in cores))


def groups(members: Iterable[tuple[int, int]]) -> tuple[Group, ...]:
    """Return a group with the union of the CPU sets for each OS index, ordered by OS index."""
    sets: dict[int, int] = {}
    for index, mask in members:
        sets[index] = sets.get(index, 0) | mask
    return tuple(Group(index, mask) for index, mask in sorted(sets.items()))


def _group_json(group: Group | TopologyLevel) -> dict[str, object]:
    return {"os": group.os, "cpus": format_cpulist(group.cpus)}


def _core_json(core: Core) -> dict[str, object]:
    return {"package": core.package, "numa": core.numa, "cpus": format_cpulist(core.cpus)}


def _units(mask: int, unit: str) -> list[int]:
    if unit == "thread":
        return [1 << cpu for cpu in cpus(mask)]
    return [mask] if mask else []


def _within(quota: float | None, rows: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the rows, in order, with CPUs that together fit in the quota; the first row if none fits."""
    if quota is None:
        return rows
    kept, left = [], quota
    for row in rows:
        if row[2].bit_count() <= left:
            kept.append(row)
            left -= row[2].bit_count()
    return kept or rows[:1]
