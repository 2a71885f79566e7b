# SPDX-License-Identifier: Apache-2.0
"""Machines as values: groups of equal nodes with counted resources, and queues with waiting times; read from TOML."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.workloads.errors import short

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

SHIPPED = Path(__file__).with_name("platforms")
MOST_NODES = 100_000
MOST = 10**9
"""The most of a resource on a node, and the most seconds of a waiting time."""


class Group(NamedTuple):
    """Equal nodes: their number, and the amounts of each resource of a node, in the platform's order."""

    name: str
    nodes: int
    capacity: tuple[int, ...]


class Queue(NamedTuple):
    """A queue: the expected wait of its jobs, and the wait beyond which they are late, in seconds."""

    name: str
    expected_wait_s: int
    maximum_wait_s: int


class Platform(NamedTuple):
    """A machine. Nodes are numbered from 0, group by group; so are queues and resources."""

    name: str
    resources: tuple[str, ...]
    groups: tuple[Group, ...]
    queues: tuple[Queue, ...]

    @property
    def capacity(self) -> Ints:
        """The amounts of resources of each node, of shape ``(nodes, resources)``."""
        return np.repeat(
            np.array([group.capacity for group in self.groups], np.int64),
            [group.nodes for group in self.groups],
            axis=0,
        )


def load_platform(name: str) -> Platform:
    """Return a platform of drom by name, or the platform in a file with the suffix ``.toml``. Raises SchedulerError."""
    path = Path(name)
    if path.suffix != ".toml":
        path = SHIPPED / f"{name}.toml"
        if name not in shipped():
            msg = f"{short(name)} is not a platform: choose {', '.join(shipped())}, or name a file that ends in .toml."
            raise SchedulerError(msg)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8 text: convert it."
        raise SchedulerError(msg) from error
    except OSError as error:
        msg = f"The platform {path} cannot be read: {error.strerror}: name another file."
        raise SchedulerError(msg) from error
    return parse_platform(text, path.name)


def shipped() -> list[str]:
    """Return the names of the platforms that are included in drom."""
    return sorted(file.stem for file in SHIPPED.glob("*.toml"))


def parse_platform(text: str, where: str) -> Platform:
    """Return the platform in a TOML text. Raises SchedulerError, which names `where`."""
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        msg = f"{where} is not TOML: {error}."
        raise SchedulerError(msg) from error
    except RecursionError as error:
        msg = f"{where} has brackets that are nested too deep."
        raise SchedulerError(msg) from error
    _known(told, {"name", "resources", "group", "queue"}, where)
    resources = _resources(told.get("resources"), where)
    groups = tuple(_group(table, resources, place) for place, table in _tables(told, "group", where))
    queues = tuple(_queue(table, place) for place, table in _tables(told, "queue", where))
    for what, names in (("group", [g.name for g in groups]), ("queue", [q.name for q in queues])):
        _unique(names, what, where)
    if sum(group.nodes for group in groups) > MOST_NODES:
        _refuse(where, f"there are more than {MOST_NODES:,} nodes: write fewer")
    return Platform(str(told.get("name", Path(where).stem)), resources, groups, queues)


def _resources(value: Any, where: str) -> tuple[str, ...]:  # noqa: ANN401 - what a file may hold
    if not (isinstance(value, list) and value and all(isinstance(name, str) and name for name in value)):
        _refuse(where, 'resources is a list of names: write for example resources = ["cores", "memory"]')
    _unique(value, "resource", where)
    for name in value:
        if name in {"name", "nodes"}:
            _refuse(where, f"a resource cannot be called {name!r}: choose another name")
    return tuple(value)


def _tables(told: dict[str, Any], name: str, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the tables of a kind, each with a description of its place."""
    tables = told.get(name)
    if not (isinstance(tables, list) and tables and all(isinstance(table, dict) for table in tables)):
        _refuse(where, f"there is no {name}: write at least one table [[{name}]]")
    return [(f"{where}, {name} {table.get('name', number)}", table) for number, table in enumerate(tables, 1)]


def _group(table: dict[str, Any], resources: tuple[str, ...], where: str) -> Group:
    for key in table:
        if key not in {"name", "nodes", *resources}:
            _refuse(where, f"there is no resource {key!r}: choose {', '.join(resources)}, or add it to resources")
    nodes = _whole(table, "nodes", 1, where)
    capacity = tuple(_whole(table, name, 0, where) if name in table else 0 for name in resources)
    if not any(capacity):
        _refuse(where, f"its nodes have no resources: set amounts of {', '.join(resources)}")
    return Group(_name(table, where), nodes, capacity)


def _queue(table: dict[str, Any], where: str) -> Queue:
    _known(table, set(Queue._fields), where)
    expected, most = (_whole(table, key, 1, where) for key in ("expected_wait_s", "maximum_wait_s"))
    if expected > most:
        _refuse(where, f"it expects a wait of {expected} s, and allows {most} s: write no more than is allowed")
    return Queue(_name(table, where), expected, most)


def _name(table: dict[str, Any], where: str) -> str:
    name = table.get("name")
    if not isinstance(name, str) or not name:
        _refuse(where, "it has no name: write name = and a text")
    return str(name)


def _whole(table: dict[str, Any], key: str, least: int, where: str) -> int:
    if key not in table:
        _refuse(where, f"it has no {key}: write {key} = and a whole number of at least {least}")
    value = table[key]
    if type(value) is not int or not least <= value <= MOST:
        _refuse(where, f"{key} is {short(str(value))}: write a whole number from {least} to {MOST}")
    return int(value)


def _known(table: dict[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            _refuse(where, f"there is no {key!r}: choose {', '.join(sorted(known))}")


def _unique(names: list[str], what: str, where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            _refuse(where, f"the {what} {name!r} is defined twice: give each its own name")


def _refuse(where: str, what: str) -> NoReturn:
    msg = f"{where}: {what}."
    raise SchedulerError(msg)
