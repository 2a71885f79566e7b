# SPDX-License-Identifier: Apache-2.0
"""Machines described by hwloc's synthetic words, such as ``pack:2 core:4 pu:2``, emulated or mapped to real CPUs.

The words are those that ``lstopo --of synthetic`` writes. Intended differences from hwloc: the count of pu, and of
every missing level, is one; packages contain dies, dies cores and cores pu; a node cannot divide a core; of several
nodes at one place the first has the CPUs and the others are memory alone, as on Linux; memory that is not stated is
unknown instead of 1 GB. Names cannot be abbreviated freely, so that a typo is found, and ``indexes`` are refused.
hwloc is not needed, for the reason in `drom.agent.topology.sysfs`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from drom.agent.topology.machine import Core, Node, Topology, TopologyLevel, groups

from dromlib.cpulist import MAX_CPUS, mask_of
from dromlib.cpulist import cpus as cpus_of
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS = {
    **dict.fromkeys(("pack", "package", "socket"), "pack"),
    **dict.fromkeys(("numa", "numanode", "node"), "numa"),
    **dict.fromkeys(("pu", "thread"), "pu"),
    **dict.fromkeys(("group", "tile"), "group"),
    "die": "die",
    "core": "core",
}
_NESTED = ("pack", "die", "core", "pu")
_CACHE = re.compile(r"l[1-5][udi]?(cache)?")
_TOKEN = re.compile(r"\[[^]]*]?|[^\s(\[]*\([^)]*\)?|[^\s(\[]+")
_WORD = re.compile(r"([^:(]*)(?::([^(]*))?(?:\((.*)\))?")
_BYTES = re.compile(r"([0-9]{1,15})(?:([kmgt])(i?)b)?", re.IGNORECASE | re.ASCII)


class TopologyError(DromError, ValueError):
    """Raised when a synthetic topology is malformed or needs more CPUs than there are."""


@dataclass(frozen=True, slots=True)
class _Level:
    """A kind of object and its number in each object of the level outside; for nodes the bytes of each at one place."""

    kind: str
    count: int
    memory: tuple[int, ...] = ()


def synthetic_topology(words: str, cpus: int | None = None) -> Topology:
    """Return the machine that hwloc's synthetic words describe, such as ``"pack:2 core:4 pu:2"``.

    Levels go from the outermost to the innermost: pack, die, core, pu, each once; caches (l1 to l5) and groups
    anywhere, which only multiply; numa once, anywhere before core, as a level or in brackets beside the level before
    it: ``"pack:2 [numa(memory=4GB)] core:4"``. CPUs are numbered depth first. Without the set `cpus` the machine is
    emulated; with it the i-th synthetic CPU is the i-th OS CPU of the set. Raises TopologyError, which names the
    faulty word, or both numbers if `cpus` are too few.
    """
    levels = _parse(words)
    total = math.prod(level.count for level in levels)
    if total > MAX_CPUS:
        raise TopologyError(f"the topology '{words}' has {total} CPUs: use at most {MAX_CPUS}.")
    places = _places(words, total, cpus)
    online = mask_of(places)
    per_package, per_node, per_core = (_cpus_in_each(levels, kind, total) for kind in ("pack", "numa", "core"))
    memory = next((level.memory for level in levels if level.memory), (0,))
    cores = tuple(
        Core(i // per_package, i // per_node * len(memory), mask_of(places[i : i + per_core]))
        for i in range(0, total, per_core)
    )
    numa = tuple(
        Node(i * len(memory) + j, 0 if j else mask_of(places[i * per_node : (i + 1) * per_node]), size)
        for i in range(total // per_node)
        for j, size in enumerate(memory)
    )
    return Topology(
        packages=groups((core.package, core.cpus) for core in cores),
        numa=numa,
        cores=cores,
        online=online,
        allowed=online,
        emulated=cpus is None,
        parts=tuple(_parts(levels, places, {per_package, per_core, total})),
        memory=sum(node.memory for node in numa),
        present=online,
        possible=online,
    )


def _parse(words: str) -> list[_Level]:
    """Return the levels from the outermost to the innermost."""
    levels: list[_Level] = []
    beside = False
    for word in _TOKEN.findall(words):
        level = _level(word)
        if beside and word.startswith("["):
            levels[-1] = replace(levels[-1], memory=levels[-1].memory + level.memory)
            continue
        beside = word.startswith("[")
        inside = ("numa", "core", "pu") if level.kind == "numa" else _from(level.kind)
        if any(before.kind in inside for before in levels):
            order = ", ".join(_NESTED)
            raise TopologyError(
                f"{word!r} is out of place: write each level once, in the order {order}, and numa before core."
            )
        levels.append(level)
    if not levels:
        raise TopologyError("the topology is empty: write words such as 'pack:2 core:4 pu:2'.")
    return levels


def _from(kind: str) -> tuple[str, ...]:
    """Return the nested levels that must not come before `kind`."""
    return _NESTED[_NESTED.index(kind) :] if kind in _NESTED else ()


def _level(word: str) -> _Level:
    attached = word.startswith("[")
    match = _WORD.fullmatch(word.strip("[]") if attached else word)
    kind = _kind(match[1].lower()) if match else None
    if match is None or kind is None or (attached and (kind != "numa" or not word.endswith("]"))):
        raise TopologyError(f"{word!r} is not a level of a topology: write words such as 'pack:2 core:4 pu:2'.")
    if not (attached and match[2] is None) and not re.fullmatch(r"0*[1-9][0-9]{0,5}", match[2] or "", re.ASCII):
        raise TopologyError(f"{word!r} does not give a count from 1 to 999999: write for example '{match[1]}:2'.")
    memory = _memory(word, (match[3] or "").split())
    return _Level(kind, 1 if attached else int(match[2]), (memory,) if kind == "numa" else ())


def _kind(name: str) -> str | None:
    """Return the kind that a name stands for; names of groups may end in their depth, as in ``group0``."""
    if _CACHE.fullmatch(name):
        return "cache"
    return _KINDS.get(re.sub(r"(?<=^group)[0-9]+$", "", name))


def _memory(word: str, attributes: list[str]) -> int:
    """Return the bytes of memory among the attributes of a word; sizes of caches are parsed and ignored."""
    memory = 0
    for attribute in attributes:
        name, _, value = attribute.partition("=")
        if name == "indexes":
            raise TopologyError(f"{word!r} gives indexes of its own, which cannot be used here: leave them out.")
        match = _BYTES.fullmatch(value)
        if name not in {"memory", "size"} or match is None:
            raise TopologyError(f"{word!r} has an attribute that means nothing here: write for example (memory=4GiB).")
        if name == "memory":
            power = "kmgt".index(match[2].lower()) + 1 if match[2] else 0
            memory = int(match[1]) * (1024 if match[3] else 1000) ** power
    return memory


def _cpus_in_each(levels: list[_Level], kind: str, total: int) -> int:
    kinds = [level.kind for level in levels]
    if kind in kinds:
        return math.prod(level.count for level in levels[kinds.index(kind) + 1 :])
    # A machine without a core level has a core around each pu level.
    return total if kind != "core" else levels[-1].count if kinds[-1] == "pu" else 1


def _parts(levels: list[_Level], places: list[int], known: set[int]) -> Iterator[TopologyLevel]:
    """Yield the dies and groups with a number of CPUs that is not in `known` yet, and add it there."""
    for depth, level in enumerate(levels):
        width = math.prod(inner.count for inner in levels[depth + 1 :])
        if level.kind in {"die", "group"} and width not in known:
            known.add(width)
            starts = range(0, len(places), width)
            yield from (
                TopologyLevel(level.kind, i, mask_of(places[start : start + width])) for i, start in enumerate(starts)
            )


def _places(words: str, total: int, mask: int | None) -> list[int]:
    places = list(range(total)) if mask is None else cpus_of(mask)
    if len(places) < total:
        raise TopologyError(
            f"the topology '{words}' needs {total} CPUs and {len(places)} may be used here: "
            "describe a smaller machine, or give the description with --emulate instead."
        )
    return places[:total]
