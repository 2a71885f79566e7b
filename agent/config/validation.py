# SPDX-License-Identifier: Apache-2.0
"""Find settings that are impossible on this machine, although each option is well-formed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.config.exclusions import find_users
from drom.agent.config.sources import ConfigError, read_file
from drom.agent.system.users import group_number
from drom.agent.topology.detect import find_machine
from drom.agent.topology.machine import reserve
from drom.agent.topology.synthetic import TopologyError

from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from drom.agent.config.exclusions import Users
    from drom.agent.config.sources import Setting


def conflicts(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield a sentence, with the setting's origin, for each fault in `settings`, which has no options left unset."""
    yield from _of_machine(settings)
    yield from unknown(settings)


def _of_machine(settings: Mapping[str, Setting]) -> Iterator[str]:
    topology, emulate = settings.get("topology"), settings.get("emulate")
    if topology and emulate:
        yield f"{emulate.origin}: topology and emulate exclude each other: set one of them."
        return
    try:
        machine = find_machine(_words(topology), _words(emulate))
    except TopologyError as error:
        said = topology or emulate
        yield f"{said.origin}: {said.option.name}: {error}" if said else str(error)
        return
    if "reserved" in settings and machine.allowed:
        reserved = settings["reserved"]
        if not reserve(machine, parse_cpulist(str(reserved.value))).allowed:
            yield no_core_left(reserved)


def _words(setting: Setting | None) -> str | None:
    return str(setting.value) if setting else None


def no_core_left(reserved: Setting) -> str:
    """Return the sentence about an option `reserved` that leaves no core."""
    return f"{reserved.origin}: reserved = {reserved.value} leaves no core to manage here: reserve fewer CPUs."


def unknown(
    settings: Mapping[str, Setting],
    users_of: Callable[[tuple[str, ...]], tuple[Users, list[str]]] = find_users,
    group_of: Callable[[str], int | None] = group_number,
) -> Iterator[str]:
    """Yield a sentence for each fault in `settings` that does not concern the machine's CPUs, such as unknown users.

    `users_of` and `group_of` look names up.
    """
    if "exclude_users" in settings:
        users = settings["exclude_users"]
        assert isinstance(users.value, tuple)  # noqa: S101 - for the type checker
        for name in users_of(users.value)[1]:
            yield f"{users.origin}: {name} is not a user of this node: check exclude.users."
    if "scheduler" in settings and "observe" in settings and settings["observe"].value:
        where = settings["observe"].origin
        yield f"{where}: an agent that only observes starts no jobs: omit observe or scheduler."
    if "users_masters" in settings and group_of(str(settings["users_masters"].value)) is None:
        masters = settings["users_masters"]
        yield f"{masters.origin}: there is no group {masters.value} here: check users.masters."


def check_file(path: Path) -> None:
    """Check a file for an agent on this machine. Raises `ConfigError` with a sentence for each fault."""
    file = read_file(path)
    if faults := [*file.faults, *conflicts(file.settings)]:
        raise ConfigError("\n".join(faults))
