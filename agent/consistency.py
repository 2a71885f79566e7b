# SPDX-License-Identifier: Apache-2.0
"""What a configuration asks for that cannot be on this machine, though each of its options is well-formed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.exclusions import find_users
from agent.synthetic import TopologyError, synthetic_topology
from agent.sysfs import read_topology
from agent.topology import without
from agent.users import group_number
from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.config import Setting


def conflicts(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a sentence, with where it was said, for each fault in settings; those that nobody said are left out."""
    words = {name: settings[name] for name in ("topology", "emulate") if name in settings}
    yield from (f"{setting.origin}: {name}: {fault}" for name, setting in words.items() for fault in _faults(setting))
    if len(words) > 1:
        yield f"{words['emulate'].origin}: topology lays words over real CPUs and emulate over none: say one of them."
    if "reserved" in settings and not words:
        reserved, real = settings["reserved"], read_topology()
        if real.allowed and not without(real, parse_cpulist(str(reserved.value))).allowed:
            yield f"{reserved.origin}: reserved = {reserved.value} leaves no core to manage here: reserve fewer CPUs."
    if "exclude_users" in settings:
        users = settings["exclude_users"]
        assert isinstance(users.value, tuple)  # noqa: S101 - for the type checker
        for name in find_users(users.value)[1]:
            yield f"{users.origin}: {name} is no user here: check exclude.users."
    if "scheduler" in settings and "observe" in settings and settings["observe"].value:
        where = settings["observe"].origin
        yield f"{where}: an agent that only observes starts no jobs: leave out observe or scheduler."
    if "users_masters" in settings and group_number(str(settings["users_masters"].value)) is None:
        masters = settings["users_masters"]
        yield f"{masters.origin}: there is no group {masters.value} here: check users.masters."


def _faults(words: Setting) -> list[str]:
    try:
        synthetic_topology(str(words.value))
    except TopologyError as error:
        return [str(error)]
    return []
