# SPDX-License-Identifier: Apache-2.0
"""A machine as described by ``/sys`` and ``/proc`` below a root.

A machine with odd files is described as well as possible, with a warning; nothing here fails because of the contents of
files. The rules are those of hwloc's Linux discovery: sets of siblings define packages and cores, because ids repeat
and may be -1. Intended differences, where hwloc fails or reports less: packages with a repeated id are renumbered, a
machine without topology files is described from ``/proc/cpuinfo`` or as cores of one CPU, every CPU is in some package,
and a memory node without CPUs gets none of its neighbours'. hwloc itself is a C library that many machines lack, and
its bindings for Python are unmaintained; the tests use its own recordings.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.system.cgroups import Limits, read_limits
from drom.agent.system.files import FileTree
from drom.agent.topology.machine import Core, Node, Topology, TopologyLevel, groups

from dromlib.cpulist import MAX_CPUS, cpus, first_cpu, format_cpulist, mask_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_CPU = "sys/devices/system/cpu"
_NODE = "sys/devices/system/node"
_PACKAGE_FILES = ("package_cpus_list", "core_siblings_list", "package_cpus", "core_siblings")
_CORE_FILES = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
_PART_FILES = {
    "die": ("die_cpus_list", "die_cpus"),
    "cluster": ("cluster_cpus_list", "cluster_cpus"),
    "book": ("book_siblings_list", "book_siblings"),
    "drawer": ("drawer_siblings_list", "drawer_siblings"),
}
_KIND_SETS = {"performance": "cpu_core", "efficiency": "cpu_atom", "low-power": "cpu_lowpower"}
_SPEED_FILES = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")
_KB = 1024


@dataclass(frozen=True, slots=True)
class _Cpu:
    """The data of one OS CPU: -1 for an unknown number, 0 for an unknown set."""

    cpu: int
    folder: str
    package: int
    die: int
    core: int
    siblings: int


def read_topology(root: str = "/") -> Topology:
    """Return the machine recorded below `root`; "/" is the one we run on.

    `allowed` are the CPUs that are online, in this thread's affinity ("/" only) and in this process's cpuset, without
    isolated CPUs unless they were chosen. Below another root the result is `emulated`. Missing or odd data become
    warnings. Raises OSError only for lack of descriptors or memory.
    """
    files = FileTree(Path(root))
    live = os.path.realpath(root) == "/"
    affinity = mask_of(os.sched_getaffinity(0)) if live else 0
    seen = files.numbered(_CPU, "cpu")
    online = _online(files, seen, affinity)
    limits = read_limits(files)
    found = _read_cpus(files, online, seen)
    packages = _packages(files, found)
    nodes = _nodes(files, online)
    cores = _cores(files, _core_masks(files, found, packages), packages, nodes)
    present = files.mask(f"{_CPU}/present") or mask_of(seen)
    return Topology(
        packages=groups((core.package, core.cpus) for core in cores),
        numa=nodes,
        cores=cores,
        online=online,
        allowed=_allowed(files, online, affinity, limits),
        emulated=not live,
        parts=_parts(files, cores, found, online),
        isolated=files.mask(f"{_CPU}/isolated") & online,
        nohz_full=files.mask(f"{_CPU}/nohz_full") & online,
        present=present | online,
        possible=files.mask(f"{_CPU}/possible") | present | online,
        quota=limits.quota,
        memory=_memory(files, nodes, limits),
        warnings=files.warnings,
    )


def parse_cpuinfo(text: str) -> dict[int, tuple[int, int]]:
    """Return (package id, core id) of each OS CPU in ``/proc/cpuinfo``; -1 for an id that is not given."""
    found: dict[int, tuple[int, int]] = {}
    for block in re.split(r"^(?=processor[\t ]*:?[\t ]*[0-9]|cpu number[\t ]*:)", text, flags=re.MULTILINE):
        match = re.match(r"(?:processor|cpu number)[\t ]*:?[\t ]*([0-9]{1,5})\b", block, re.ASCII)
        if match and int(match[1]) < MAX_CPUS:
            found[int(match[1])] = (_cpuinfo_id(block, "physical id"), _cpuinfo_id(block, "core id"))
    return found


def _cpuinfo_id(block: str, name: str) -> int:
    match = re.search(rf"^{name}[\t ]*:[\t ]*([0-9]{{1,9}})\b", block, re.ASCII | re.MULTILINE)
    return int(match[1]) if match else -1


def kinds_by_speed(speed: dict[int, int]) -> dict[int, str]:
    """Return the kind of each OS CPU in `speed` (in any unit); empty if speeds do not differ much.

    A new kind begins where the next slower CPUs are slower by more than a fifth: smaller differences are those of
    favoured cores of one design. All kinds between the fastest and the slowest are "medium".
    """
    values = sorted(set(speed.values()), reverse=True)
    tier_of, tier = dict.fromkeys(values[:1], 0), 0
    for faster, slower in pairwise(values):
        tier += slower * 5 < faster * 4
        tier_of[slower] = tier
    names = {0: "performance", tier: "efficiency"}
    return {cpu: names.get(tier_of[value], "medium") for cpu, value in speed.items()} if tier else {}


def _online(files: FileTree, seen: list[int], affinity: int) -> int:
    """Return the OS CPUs that are online, including those in this thread's affinity, even if /sys is masked."""
    if not (online := files.mask(f"{_CPU}/online")):
        described = [cpu for cpu in seen if files.has_folder(f"{_CPU}/cpu{cpu}/topology")]
        guess = described or sorted({*seen, *parse_cpuinfo(files.long_text("proc/cpuinfo"))})
        online = mask_of(cpu for cpu in guess if files.text(f"{_CPU}/cpu{cpu}/online") != "0") | affinity or 1
        gaps = mask_of(range(online.bit_length())) & ~online & ~mask_of(seen)
        cut = f", and CPUs {format_cpulist(gaps)} are not: a part of /sys may be missing" if gaps else ""
        files.notes.append(f"No list of online CPUs: {format_cpulist(online)} is assumed from what is described{cut}.")
    off = files.mask(f"{_CPU}/offline") | mask_of(c for c in seen if files.text(f"{_CPU}/cpu{c}/online") == "0")
    if both := online & off & ~affinity:
        _note(files, both, "are said to be online and offline: they are left alone.")
        online = online & ~both or online
    if hidden := affinity & ~online:
        _note(files, hidden, "are hidden by /sys and yet in our affinity: they are taken to be online.")
    return online | affinity


def _read_cpus(files: FileTree, online: int, seen: list[int]) -> list[_Cpu]:
    described = set(seen)
    found = [_read_cpu(files, cpu) if cpu in described else _Cpu(cpu, "", -1, -1, -1, 0) for cpu in cpus(online)]
    if any(row.package >= 0 or row.core >= 0 or row.siblings for row in found):
        return _without_compute_units(files, found)
    said = parse_cpuinfo(files.long_text("proc/cpuinfo"))
    if any(core >= 0 for _, core in said.values()):
        files.notes.append("No topology in /sys: packages and cores are those of /proc/cpuinfo.")
    return [_Cpu(row.cpu, row.folder, (ids := said.get(row.cpu, (-1, -1)))[0], -1, ids[1], 0) for row in found]


def _read_cpu(files: FileTree, cpu: int) -> _Cpu:
    folder = f"{_CPU}/cpu{cpu}/topology"
    package, die, core = (files.number(f"{folder}/{name}") for name in ("physical_package_id", "die_id", "core_id"))
    return _Cpu(cpu, folder, package, die, core, files.first_mask(folder, *_CORE_FILES))


def _without_compute_units(files: FileTree, found: list[_Cpu]) -> list[_Cpu]:
    """Return the CPUs, each as a core of its own if siblings are AMD's compute units of two cores (family 21)."""
    core_of = {row.cpu: row.core for row in found}
    pair = next((row for row in found if row.siblings & (row.siblings - 1)), None)
    if pair is None or len({core_of.get(cpu, pair.core) for cpu in cpus(pair.siblings)}) == 1:
        return found
    text = files.long_text("proc/cpuinfo")
    if not ("AuthenticAMD" in text and re.search(r"^cpu family[\t ]*: 21$", text, re.MULTILINE)):
        return found
    return [_Cpu(row.cpu, row.folder, row.package, row.die, row.core, 1 << row.cpu) for row in found]


def _packages(files: FileTree, found: list[_Cpu]) -> dict[int, int]:
    """Return the package of each OS CPU: its set of siblings, by id; without a set, the CPUs with the same id."""
    package_of: dict[int, int] = {}
    made_up = max((row.package for row in found), default=-1)
    by_id: dict[int, int] = {}
    for row in found:
        by_id[row.package] = by_id.get(row.package, 0) | 1 << row.cpu
    left = mask_of(row.cpu for row in found)
    taken: set[int] = set()
    nameless = repeated = crossing = 0
    for row in found:
        if not left >> row.cpu & 1:
            continue
        shared = files.first_mask(row.folder, *_PACKAGE_FILES) if row.folder else 0
        members = (shared or by_id[row.package]) & left | 1 << row.cpu
        left &= ~members
        name = row.package
        nameless |= members if name < 0 else 0
        repeated |= members if shared and name in taken else 0
        if members & (nameless | repeated):
            name = made_up = made_up + 1
        taken.add(name)
        crossing |= members & ~by_id[row.package]
        package_of.update(dict.fromkeys(_each(members), name))
    _note(files, nameless, "name no package: they are grouped by the sets they share and numbered by us.")
    _note(files, repeated, "name a package whose id repeats: theirs is numbered by us.")
    _note(files, crossing, "name another package than the CPUs they share one with: the shared sets count.")
    return package_of


def _core_masks(files: FileTree, found: list[_Cpu], package_of: dict[int, int]) -> list[int]:
    """Return disjoint cores, by first CPU, from the sibling lists, because core_id repeats inside packages."""
    online = left = mask_of(row.cpu for row in found)
    package_cpus = {group.os: group.cpus for group in groups((package_of[row.cpu], 1 << row.cpu) for row in found)}
    by_id: dict[tuple[int, int, int], int] = {}
    for row in found:
        key = (package_of[row.cpu], row.die, row.core)
        by_id[key] = by_id.get(key, 0) | 1 << row.cpu
    core_of: dict[int, int] = {}
    odd, alone = 0, 0
    for row in found:
        bit, package = 1 << row.cpu, package_of[row.cpu]
        if row.cpu in core_of:
            odd |= bit if row.siblings and (row.siblings & online) | bit != core_of[row.cpu] else 0
            continue
        named = row.siblings or (by_id[package, row.die, row.core] if row.core >= 0 else 0)
        claimed = (named & online) | bit
        core = claimed & left & package_cpus[package]
        odd |= bit if core != claimed else 0
        alone |= 0 if row.siblings or row.core >= 0 else bit
        left &= ~core
        core_of |= dict.fromkeys(cpus(core), core)
    _note(files, odd, "share a core with CPUs of another core or package: the first core named keeps them.")
    _note(files, alone, "name no core: each is taken for a core.")
    return list(dict.fromkeys(core_of.values()))


def _nodes(files: FileTree, online: int) -> tuple[Node, ...]:
    if not files.has_folder(_NODE):
        files.notes.append("No NUMA nodes are described: memory is taken to be equally far from all CPUs.")
    nodes, taken, twice = [], 0, 0
    for node in files.numbered(_NODE, "node"):
        mine = _node_cpus(files, node) & online
        nodes.append(Node(node, mine & ~taken, _memory_total(files.text(f"{_NODE}/node{node}/meminfo"))))
        twice |= mine & taken
        taken |= mine
    _note(files, twice, "are in several NUMA nodes: the first keeps them.")
    return tuple(nodes)


def _node_cpus(files: FileTree, node: int) -> int:
    folder = f"{_NODE}/node{node}"
    return files.first_mask(folder, "cpulist", "cpumap") or mask_of(files.numbered(folder, "cpu"))


def _cores(files: FileTree, masks: list[int], package_of: dict[int, int], nodes: tuple[Node, ...]) -> tuple[Core, ...]:
    numa_of = {cpu: node.os for node in nodes for cpu in cpus(node.cpus)}
    kinds = _kinds(files, [first_cpu(mask) for mask in masks])
    cores, torn, stray = [], 0, 0
    for mask in masks:
        first = first_cpu(mask)
        said = [numa_of[cpu] for cpu in cpus(mask) if cpu in numa_of]
        cores.append(Core(package_of[first], next(iter(said), -1), mask, kinds.get(first, "")))
        torn |= mask if len(set(said)) > 1 else 0
        stray |= mask_of(cpu for cpu in cpus(mask) if cpu not in numa_of)
    if nodes:
        _note(files, torn, "are cores in several NUMA nodes: each is taken to be in that of its first CPU.")
        _note(files, stray, "are in no NUMA node: their memory is taken to be that of their core, or equally far.")
    return tuple(cores)


def _kinds(files: FileTree, of: list[int]) -> dict[int, str]:
    """Return the kind of each OS CPU of a hybrid machine: by x86's event sources, or by capacity, or by speed."""
    sets = {kind: files.mask(f"sys/devices/{name}/cpus") for kind, name in _KIND_SETS.items()}
    if sum(1 for mask in sets.values() if mask) > 1:
        return {cpu: kind for kind, mask in sets.items() for cpu in cpus(mask)}
    for name in _SPEED_FILES:
        if files.number(f"{_CPU}/cpu{of[0]}/{name}") > 0:
            speed = {cpu: files.number(f"{_CPU}/cpu{cpu}/{name}") for cpu in of}
            return kinds_by_speed(speed) if min(speed.values()) > 0 else {}
    return {}


def _parts(files: FileTree, cores: tuple[Core, ...], found: list[_Cpu], online: int) -> tuple[TopologyLevel, ...]:
    """Return the dies, clusters, books and drawers that add information: not a whole package, nor within one core.

    A kernel describes a kind of part for every CPU or for none, so the first CPU shows which kinds exist.
    """
    folders = {row.cpu: row.folder for row in found if row.folder}
    known = {group.cpus for group in groups((core.package, core.cpus) for core in cores)} | {online}
    first = next(iter(folders.values()), "")
    kinds = [kind for kind, names in _PART_FILES.items() if first and files.first_mask(first, *names)]
    return tuple(part for kind in kinds for part in _parts_of(files, kind, cores, folders, known))


def _parts_of(
    files: FileTree, kind: str, cores: tuple[Core, ...], folders: dict[int, str], known: set[int]
) -> Iterator[TopologyLevel]:
    """Yield the disjoint parts of a kind, by first CPU, and add their sets to `known`."""
    left = mask_of(folders)
    for core in cores:
        cpu = first_cpu(core.cpus)
        if not left >> cpu & 1:
            continue
        mask = files.first_mask(folders[cpu], *_PART_FILES[kind]) & left
        left &= ~(mask | core.cpus)
        if mask & ~core.cpus and core.cpus & mask == core.cpus and mask not in known:
            known.add(mask)
            yield TopologyLevel(kind, files.number(f"{folders[cpu]}/{kind}_id"), mask)


def _allowed(files: FileTree, online: int, affinity: int, limits: Limits) -> int:
    allowed = online
    for limit, where in limits.cpusets:
        allowed = _narrowed(files, allowed, limit, where)
    isolated = files.mask(f"{_CPU}/isolated")
    chosen = affinity and affinity & allowed != allowed  # an affinity that is not narrower than all was not chosen
    if affinity:
        allowed = _narrowed(files, allowed, affinity, "this thread's affinity")
    if chosen:
        return allowed
    if not allowed & ~isolated:
        _note(files, allowed, "are isolated, and there are no others to use: they are managed all the same.")
    return allowed & ~isolated or allowed


def _narrowed(files: FileTree, allowed: int, limit: int, where: str) -> int:
    if not allowed & limit:
        files.notes.append(f"{where} ({format_cpulist(limit)}) holds no CPU we could use: it is left out.")
    return allowed & limit or allowed


def _memory(files: FileTree, nodes: tuple[Node, ...], limits: Limits) -> int:
    """Return the bytes of memory we may use: the machine's, on the nodes we may use, within our control groups."""
    sizes = [node.memory for node in nodes if not limits.nodes or limits.nodes >> node.os & 1]
    bounds = [_memory_total(files.text("proc/meminfo")), sum(sizes) if all(sizes) else 0, limits.memory or 0]
    return min((bound for bound in bounds if bound), default=0)


def _memory_total(text: str | None) -> int:
    match = re.search(r"\bMemTotal:[\t ]*([0-9]{1,15}) kB", text or "", re.ASCII)
    return int(match[1]) * _KB if match else 0


def _each(mask: int) -> Iterator[int]:
    """Yield the OS CPUs of a set in time that does not grow with their numbers."""
    while mask:
        yield (cpu := first_cpu(mask))
        mask ^= 1 << cpu


def _note(files: FileTree, mask: int, fault: str) -> None:
    if mask:
        files.notes.append(f"CPUs {format_cpulist(mask)} {fault}")
