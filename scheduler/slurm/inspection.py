# SPDX-License-Identifier: Apache-2.0
"""Collect the configuration of a running Slurm, or the one in given files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.scheduler.slurm import configuration
from drom.scheduler.slurm.checks import LUA

if TYPE_CHECKING:
    from drom.scheduler.slurm.configuration import Configuration
    from drom.scheduler.slurm.reader import Reader

MOST_BYTES = 16 << 20
"""The largest configuration file."""
MOST_INCLUDED = 64
"""The most files that one file may include."""


def inspect_running(reader: Reader, host: str) -> Configuration:
    """Return the configuration of the Slurm that `reader` reads, as seen on the machine named `host`.

    Raises SlurmError where slurmctld cannot be asked.
    """
    site = configuration.parse(reader.configuration())
    partitions = reader.partitions()
    faults = (*site.faults, *partitions.faults)
    return _with_files(replace(site, partitions=partitions.records, faults=faults), Path(site.folder), host)


def inspect_file(path: Path) -> Configuration:
    """Return the configuration in slurm.conf, with the files beside it, or in a saved ``scontrol show config``.

    The latter may come from another machine: no other file is read. Raises SlurmError.
    """
    text = _text(path)
    if text is None:
        raise SlurmError(f"{path} cannot be read: give a slurm.conf, or what 'scontrol show config' prints.")
    site = configuration.parse(_with_included(text, path.parent))
    if site.is_running:
        return site
    site = replace(site, settings={**site.settings, "slurm_conf": str(path.absolute())})
    return _with_files(site, path.absolute().parent, "")


def _with_files(site: Configuration, folder: Path, host: str) -> Configuration:
    cgroup = _text(folder / "cgroup.conf")
    plugstack_path = Path(site.get("PlugStackConfig") or folder / "plugstack.conf")
    plugstack = _text(plugstack_path)
    if plugstack is None and folder.is_dir() and not plugstack_path.exists():
        plugstack = ""  # Slurm does without it
    plugins = Path(site.get("PluginDir") or "/nowhere")
    return replace(
        site,
        cgroup=site.cgroup if cgroup is None else configuration.parse_cgroup(cgroup),
        plugstack=None if plugstack is None else _with_included(plugstack, plugstack_path.parent),
        lua_script=_is_there(folder / LUA, site, host),
        lua_plugin=_is_there(plugins / "job_submit_lua.so", site, host) if plugins.is_dir() else None,
    )


def _is_there(path: Path, site: Configuration, host: str) -> bool | None:
    """Return whether a file of slurmctld is there; None if it may be on another machine, that of slurmctld."""
    if path.exists():
        return True
    elsewhere = host and site.get("SlurmctldHost").partition("(")[0] not in {host, host.partition(".")[0]}
    return None if elsewhere else False


def _with_included(text: str, folder: Path) -> str:
    """Return a file's text, followed by that of the files that it includes; patterns may name several."""
    found = [text]
    paths = [path for name in configuration.includes(text) for path in _matching(folder, name)]
    for path in paths[:MOST_INCLUDED]:
        included = _text(path)
        if included is None:
            raise SlurmError(f"{path} cannot be read, which another file includes: check the line with 'include'.")
        found.append(included)
    return "\n".join(found)


def _matching(folder: Path, name: str) -> list[Path]:
    path = folder / name
    return sorted(path.parent.glob(path.name)) if "*" in path.name else [path]


def _text(path: Path) -> str | None:
    """Return the text of a file; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
