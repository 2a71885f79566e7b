# SPDX-License-Identifier: Apache-2.0
"""The partitions in the file of `drom scheduler`: a table ``[partition.NAME]`` for each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from drom.agent.config.sources import toml, unknown_key
from drom.agent.system.users import DIRECTORY, SilentDirectoryError, group_number, user_number
from drom.agent.text import FEATURE
from drom.scheduler.live.cluster.node_lists import MOST_NODES, parse_nodes
from drom.scheduler.live.cluster.partitions import Partition
from drom.scheduler.live.cluster.spec import MOST, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PARTITIONS = 64
NAME = "[A-Za-z0-9][A-Za-z0-9_-]{0,31}"


def partitions_of(tables: object, where: Callable[[str], str]) -> tuple[tuple[Partition, ...], list[str]]:
    """Return the partitions in a file, and a sentence for each fault; `where` returns the line of a key."""
    if not isinstance(tables, dict) or not all(isinstance(values, dict) for values in tables.values()):
        return (), [f"{where('partition')}: partition: write a table [partition.NAME] for each partition."]
    if len(tables) > MOST_PARTITIONS:
        return (), [f"{where('partition')}: {len(tables)} partitions are too many: {MOST_PARTITIONS} are possible."]
    found: list[Partition] = []
    faults: list[str] = []
    for name, values in tables.items():
        about: dict[str, Any] = {}
        for key, value in values.items():
            path = f"partition.{name}.{key}"
            try:
                about[key] = _value(key, value)
            except ValueError as error:
                faults.append(f"{where(path)}: {path}: {error}")
        if not re.fullmatch(NAME, name):
            faults.append(
                f"{where('partition')}: {name[:40]!r} is no name of a partition: use letters, digits, _ and -."
            )
        found.append(Partition(name, **{key: value for key, value in about.items() if key in _PARSERS}))
    if sum(one.default for one in found) > 1:
        faults.append(f"{where('partition')}: several partitions have default = true: leave one.")
    return tuple(found), faults


def _value(key: str, value: object) -> object:
    """Return the value of a key of a partition. Raises ValueError with a sentence."""
    if key not in _PARSERS:
        raise ValueError(unknown_key(key, list(_PARSERS), "docs/cluster.md"))
    return _PARSERS[key](value)


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(type(one) is str for one in value):
        msg = f"{toml(value)[:40]} is not a list of texts."
        raise ValueError(msg)
    return value


def _nodes(value: object) -> frozenset[str]:
    names: set[str] = set()
    for text in _texts(value):
        names.update(parse_nodes(text))
        if len(names) > MOST_NODES:
            msg = f"it names over {MOST_NODES} nodes: give them a feature, and name that in features."
            raise ValueError(msg)
    return frozenset(names)


def _features(value: object) -> frozenset[str]:
    for text in _texts(value):
        if not re.fullmatch(FEATURE, text):
            msg = f"{text[:40]!r} is no feature: nodes have features of at most 32 letters, such as bigmem."
            raise ValueError(msg)
    return frozenset(_texts(value))


def _time(value: object) -> int:
    if type(value) not in (str, int):
        msg = f'{toml(value)[:40]} is not a time: write for example "2h".'
        raise ValueError(msg)
    return parse_time(str(value))


def _whole(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if type(value) is not int or not least <= value <= MOST:
            msg = f"{toml(value)[:40]} is not a whole number from {least} to {MOST}."
            raise ValueError(msg)
        return value

    return read


def _switch(value: object) -> bool:
    if type(value) is not bool:
        msg = f"{toml(value)[:40]} is not true or false."
        raise ValueError(msg)
    return value


def _numbers(kind: str, number_of: Callable[[str], int | None]) -> Callable[[object], frozenset[int]]:
    """Return a parser of names of users or groups to their numbers."""

    def read(value: object) -> frozenset[int]:
        found = set()
        for name in _texts(value):
            try:
                number = DIRECTORY.ask(number_of, name)
            except SilentDirectoryError as error:
                raise ValueError(str(error)) from error
            if number is None:
                msg = f"there is no {kind} {name[:40]} here: check its name."
                raise ValueError(msg)
            found.add(number)
        return frozenset(found)

    return read


_PARSERS: dict[str, Callable[[object], object]] = {
    "nodes": _nodes,
    "features": _features,
    "max_time": _time,
    "default_time": _time,
    "expected_wait": _time,
    "max_nodes": _whole(1),
    "priority": _whole(-MOST),
    "users": _numbers("user", user_number),
    "groups": _numbers("group", group_number),
    "default": _switch,
}
