# SPDX-License-Identifier: Apache-2.0
"""The limits that control groups set: CPUs, memory nodes, CPU time and memory (cgroup v1 and v2).

A hierarchy is found by its mount and by our path in it; a limit applies to a group and all groups below it. The formats
are those of the kernel's ``admin-guide/cgroup-v2`` and ``admin-guide/cgroup-v1``. psutil reads none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.system.files import FileTree

V2 = "cgroup2"
_CPUS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus", "cpus")
_NODES = ("cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems", "mems")
_QUOTAS = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
_USUAL_MOUNTS = (
    ((V2,), "/", "/sys/fs/cgroup"),
    *(((name,), "/", f"/sys/fs/cgroup/{name}") for name in ("cpuset", "cpu", "memory")),
)
_MAX_PATH = 4096
NO_LIMIT = ("max", "-1")
"""Contents of files that set no limit."""

Mount = tuple[tuple[str, ...], str, str]
"""Controllers ("cgroup2" for the v2 hierarchy), the mounted part of the hierarchy, and its mount point."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that this process may use.

    `cpusets`: each as OS CPUs and the file that states them; `nodes`: the OS indexes of memory nodes as a set (0: not
    stated); `quota` in CPUs and `memory` in bytes: the smallest of our group and its ancestors (None: no limit).
    """

    cpusets: tuple[tuple[int, str], ...]
    nodes: int
    quota: float | None
    memory: int | None


def read_limits(root: FileTree) -> Limits:
    """Return the limits that the control groups below `root` set for this process. Raises nothing."""
    ours = _our_chains(root)
    cpusets = [found for chain in ours["cpuset"] if (found := _nearest(root, chain, _CPUS))]
    nodes = [found[0] for chain in ours["cpuset"] if (found := _nearest(root, chain, _NODES))]
    quotas = [_quota(root, group) for chain in ours["cpu"] for group in chain]
    memory = [_memory(root, group) for chain in ours["memory"] for group in chain]
    return Limits(
        cpusets=tuple(cpusets),
        nodes=nodes[0] if nodes else 0,
        quota=min((quota for quota in quotas if quota), default=None),
        memory=min((size for size in memory if size > 0), default=None),
    )


def cpu_files(root: FileTree) -> tuple[str, ...]:
    """Return the existing files of which at least one changes whenever our control groups change our CPUs."""
    ours = _our_chains(root)
    sets = [f"{group}/{name}" for chain in ours["cpuset"] for group in chain for name in _CPUS]
    quotas = [f"{group}/{name}" for chain in ours["cpu"] for group in chain for name in _QUOTAS]
    return tuple(path for path in dict.fromkeys((*sets, *quotas)) if root.text(path) is not None)


def _our_chains(root: FileTree) -> dict[str, list[list[str]]]:
    """Return, by controller and for each of its hierarchies, the folders of our group and its ancestors."""
    own = parse_cgroups(root.text("proc/self/cgroup") or "")
    if not own and (path := root.text("proc/self/cpuset")):
        own = dict.fromkeys((V2, "cpuset"), path)
    mounted = mounts(root)
    return {kind: list(chains(mounted, own, kind)) for kind in ("cpuset", "cpu", "memory")}


def mounts(root: FileTree) -> list[Mount]:
    """Return the mounted hierarchies; those of most systems if nothing says which there are."""
    found = parse_mounts(root.long_text("proc/self/mountinfo") or root.long_text("proc/mounts"))
    return found or list(_USUAL_MOUNTS)


def parse_cgroups(text: str) -> dict[str, str]:
    """Return the path in each hierarchy of ``/proc/PID/cgroup``, by controller; "cgroup2" is the v2 hierarchy."""
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in controllers.split(",") if controllers else [V2] if number == "0" else []:
            paths[name] = path
    return paths


def parse_mounts(text: str) -> list[Mount]:
    """Return the cgroup hierarchies in ``mountinfo`` or ``/proc/mounts``; other lines are ignored."""
    found: list[Mount] = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, more = head.split(), tail.split()
        if len(fields) < 5:
            continue
        (kind, options), (top, place) = (more[::2], fields[3:5]) if len(more) == 3 else (fields[2:4], ("/", fields[1]))
        if ".." in place.split("/"):
            continue
        top, place = unescape(top), unescape(place)
        if kind == V2:
            found.append(((V2,), top, place))
        elif kind in {"cgroup", "cpuset"}:
            found.append((("cpuset",) if kind == "cpuset" else tuple(options.split(",")), top, place))
    return found


def parse_cpu_max(text: str) -> float | None:
    """Return the CPUs in a ``cpu.max`` ("200000 100000": quota and period in microseconds); None: no limit."""
    match = re.fullmatch(r"([0-9]{1,18})\s+([0-9]{1,18})", text, re.ASCII)
    return int(match[1]) / int(match[2]) if match and int(match[1]) and int(match[2]) else None


def chains(mounted: list[Mount], own: dict[str, str], controller: str) -> Iterator[list[str]]:
    """Yield, for each hierarchy with `controller`, the folders of our group and its ancestors, the nearest first."""
    for place, parts in places([mount for mount in mounted if {V2, controller} & {*mount[0]}], own):
        yield ["/".join((place, *parts[:depth])) for depth in range(len(parts), -1, -1)]


def places(mounted: list[Mount], own: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield, for each hierarchy that our paths `own` name, its mount point and the parts of our path below it."""
    for kinds, top, place in mounted:
        if kind := next((kind for kind in kinds if kind in own), ""):
            yield place, _below(own[kind], top)


def _below(path: str, top: str) -> list[str]:
    """Return the path components from the mounted part of a hierarchy to our group."""
    if len(path) > _MAX_PATH:
        return []
    parts, above = ([part for part in text.split("/") if part] for text in (path, top))
    parts = parts[len(above) :] if parts[: len(above)] == above else parts
    # A path with ".." belongs to a cgroup outside our namespace: only the mounted top can be read.
    return [] if ".." in parts else parts


def cpuset(root: FileTree, chain: list[str]) -> int:
    """Return the OS CPUs that a group and its ancestors, the nearest first, let their processes use; 0: not stated."""
    return (_nearest(root, chain, _CPUS) or (0, ""))[0]


def _nearest(root: FileTree, chain: list[str], names: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the set that applies to our group, and the file that states it; None if there is none.

    The set is that of our group or its nearest ancestor with one, narrowed by the ancestors above; an ancestor whose
    set is disjoint from it is skipped with a warning.
    """
    found: tuple[int, str] | None = None
    for group in chain:
        mask, path = next(((m, p) for name in names if (m := root.mask(p := f"{group}/{name}"))), (0, ""))
        if mask and not found:
            found = mask, path
        elif mask and found and not found[0] & mask:
            root.without(path, f"its {format_cpulist(mask)} has no CPU of {format_cpulist(found[0])} in {found[1]}.")
        elif found and (narrowed := found[0] & mask) not in (0, found[0]):
            found = narrowed, path
    return found


def _quota(root: FileTree, group: str) -> float | None:
    path = f"{group}/cpu.max"
    text = root.text(path)
    if not text:
        path = f"{group}/cpu.cfs_quota_us"
        if not (quota := root.text(path)):
            return None
        text = f"{quota} {root.text(f'{group}/cpu.cfs_period_us')}"
    cpus = parse_cpu_max(text)
    if cpus is None and text.split()[0] not in NO_LIMIT:
        root.without(path, "it does not contain a quota and a period in microseconds.")
    return cpus


def _memory(root: FileTree, group: str) -> int:
    return max(_bytes(root, f"{group}/{name}") for name in ("memory.max", "memory.limit_in_bytes"))


def _bytes(root: FileTree, path: str) -> int:
    text = root.text(path)
    if text and text not in NO_LIMIT and not (text.isascii() and text.isdigit()):
        root.without(path, "it does not contain a number of bytes.")
    return root.amount(path)


def unescape(text: str) -> str:
    """Return a path of ``mountinfo`` with its escapes decoded."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
