# SPDX-License-Identifier: Apache-2.0
"""Find the machine that an agent manages: this one, a synthetic one, or one recorded in a folder."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.system.files import FileTree
from drom.agent.topology.synthetic import TopologyError, synthetic_topology
from drom.agent.topology.sysfs import read_topology

if TYPE_CHECKING:
    from drom.agent.topology.machine import Topology


def find_machine(words: str | None, emulate: str | None, root: str = "/") -> Topology:
    """Return this machine, one recorded below `root`, or a synthetic one under this machine's quota and memory.

    Raises `TopologyError`, also if nothing is recorded below `root`.
    """
    if words is not None and emulate is not None:
        raise TopologyError("--topology and --emulate exclude each other: give one of them.")
    if emulate is not None:
        return synthetic_topology(emulate)
    if not any(FileTree(Path(root)).has_folder(name) for name in ("sys", "proc")):
        raise TopologyError(f"{root} does not describe a machine: name a folder with sys/ or proc/ in it.")
    real = read_topology(root)
    if words is None:
        return real
    machine = synthetic_topology(words, real.allowed)
    memory = machine.memory or real.memory
    return replace(machine, emulated=real.emulated, quota=real.quota, memory=memory)


def describe_host() -> str:
    """Return a text with CPU model, CPUs and kernel of this machine."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [line.partition(":") for line in file]
    model = next((value.strip() for name, _, value in lines if name.strip() == "model name"), platform.machine())
    return f"{model}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"
