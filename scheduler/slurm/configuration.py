# SPDX-License-Identifier: Apache-2.0
"""Slurm's configuration as a value, from what ``scontrol show config`` prints or from slurm.conf. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.agent.model import slurm_values as values
from drom.agent.text import WordError
from drom.scheduler.slurm.records import Partition
from drom.scheduler.slurm.text_records import parse_partitions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SHOWN = re.compile(r"^([A-Za-z_]+(?:\[[0-9]+\])?)\s*= ?(.*)$")
_WRITTEN = re.compile(r"""([A-Za-z_]+)\s*=\s*("[^"]*"|[^\s"]+)""")
PER_LINE = frozenset({"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "switchname"})
"""Keys of slurm.conf that begin a line with several settings."""
GENERAL = frozenset({"clustername", "slurmctldhost", "controlmachine", "selecttype", "slurmuser", "authtype"})
"""Settings of which every slurm.conf has one."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a site has configured. Keys are in lower case; a setting without a value is not there.

    None stands for what could not be read: `partitions` in a saved ``scontrol show config``, `cgroup` (cgroup.conf),
    `plugstack` (the text of plugstack.conf with all that it includes), `lua_script` and `lua_plugin` (whether
    job_submit.lua and Slurm's plugin for it are there).
    """

    settings: Mapping[str, str]
    is_running: bool = True
    """Whether slurmctld printed it, with its defaults and its version."""
    partitions: tuple[Partition, ...] | None = None
    cgroup: Mapping[str, str] | None = None
    plugstack: str | None = None
    lua_script: bool | None = None
    lua_plugin: bool | None = None
    faults: tuple[str, ...] = field(default=())
    """Sentences about lines that could not be read."""

    def get(self, name: str) -> str:
        """Return a setting; empty if it is not set."""
        return self.settings.get(name.lower(), "")

    def words(self, name: str) -> list[str]:
        """Return the parts of a setting that is a list with commas."""
        return [part.strip() for part in self.get(name).split(",") if part.strip()]

    @property
    def folder(self) -> str:
        """The folder of slurm.conf on the machines of the cluster."""
        return (self.get("SLURM_CONF") or "/etc/slurm/slurm.conf").rpartition("/")[0]


def parse(text: str) -> Configuration:
    """Return the configuration in a saved ``scontrol show config``, or in slurm.conf.

    The former may be followed by the output of ``scontrol show partition -o``. Raises SlurmError for other texts.
    """
    if "Configuration data as of" in text:
        return _shown(text)
    found = _written(text)
    if not GENERAL & found.settings.keys():
        raise SlurmError("this is neither a slurm.conf nor what 'scontrol show config' prints: give one of them.")
    return found


def _shown(text: str) -> Configuration:
    general, _, rest = text.partition("Configuration data as of")[2].partition("Cgroup Support Configuration:")
    lines = [line for line in text.splitlines() if line.startswith("PartitionName=")]
    partitions = parse_partitions("\n".join(lines))
    return Configuration(
        settings=_settings(general),
        partitions=partitions.records if lines else None,
        cgroup=_settings(rest.split("\n\n")[0]) if rest else None,
        faults=partitions.faults,
    )


def _settings(text: str) -> dict[str, str]:
    """Return the lines ``Name = value``, without those that have none."""
    found = [_SHOWN.match(line) for line in text.splitlines()]
    pairs = {one[1].lower().partition("[")[0]: one[2].strip() for one in reversed(found) if one}
    return {name: value for name, value in pairs.items() if value not in values.NOTHING}


def parse_cgroup(text: str) -> dict[str, str]:
    """Return the settings of cgroup.conf by name in lower case."""
    return {name.lower(): value.strip('"') for line in _lines(text) for name, value in _WRITTEN.findall(line)}


def _written(text: str) -> Configuration:
    settings: dict[str, str] = {}
    default: dict[str, str] = {}
    partitions: list[Partition] = []
    faults: list[str] = []
    for line in _lines(text):
        pairs = {name.lower(): value.strip('"') for name, value in _WRITTEN.findall(line)}
        first = next(iter(pairs), "")
        if first not in PER_LINE:
            settings |= pairs
        elif pairs.get("partitionname", "").upper() == "DEFAULT":
            default |= pairs
        elif first == "partitionname":
            try:
                partitions.append(_partition(default | pairs))
            except WordError as error:
                faults.append(f"partition {pairs['partitionname']} is left out: one of its values {error}.")
    return Configuration(settings, is_running=False, partitions=tuple(partitions), faults=tuple(faults))


def includes(text: str) -> list[str]:
    """Return the files that a slurm.conf or plugstack.conf includes, as they are written."""
    found = (re.match(r"(?i)include\s+(\S+)", line) for line in _lines(text))
    return [one[1].strip('"') for one in found if one]


def _lines(text: str) -> Iterator[str]:
    """Yield lines without comments; a line that ends with a backslash goes on in the next one."""
    for line in text.replace("\\\n", "").splitlines():
        if bare := re.sub(r"(?<!\\)#.*", "", line).strip():
            yield bare


def _partition(pairs: Mapping[str, str]) -> Partition:
    """Return a partition from its settings; its limits do not matter here. Raises WordError."""
    nodes = pairs.get("nodes", "")
    return Partition(
        name=pairs["partitionname"],
        nodes=("ALL",) if nodes.upper() == "ALL" else values.hosts(nodes),
        is_default=pairs.get("default", "").upper() == "YES",
        oversubscribe=pairs.get("oversubscribe", pairs.get("shared", "NO")).upper(),
        state=pairs.get("state", "UP").upper(),
        preempt_mode=pairs.get("preemptmode", "OFF").upper(),
        default_limit_min=None,
        most_limit_min=None,
        memory_per_node_mib=_memory(pairs, "defmempernode"),
        memory_per_cpu_mib=_memory(pairs, "defmempercpu"),
    )


def _memory(pairs: Mapping[str, str], name: str) -> int | None:
    text = pairs.get(name, "UNLIMITED").upper()
    return None if text in values.ENDLESS else values.number(text)
