# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of topologies: small recorded machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from pathlib import Path

    from drom.agent.topology.machine import Topology

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


def shape(topology: Topology) -> dict[str, object]:
    """Return packages, nodes, cores and CPUs as JSON has them, each without what is added to it."""
    value = topology.to_json()
    return {
        "packages": value["packages"],
        "numa": [{"os": node.os, "cpus": format_cpulist(node.cpus)} for node in topology.numa],
        "cores": [
            {"package": core.package, "numa": core.numa, "cpus": format_cpulist(core.cpus)} for core in topology.cores
        ],
        "online": value["online"],
        "allowed": value["allowed"],
    }


def grow(root: Path, files: dict[str, str]) -> str:
    """Write files below a root, and return the root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(root)


def cpu_files(cpu: int, package: str, siblings: str, **more: str) -> dict[str, str]:
    """Return the topology files of one CPU as a kernel of today writes them."""
    files = {"physical_package_id": package, "core_cpus_list": siblings, **more}
    return {f"{CPU}/cpu{cpu}/topology/{name}": f"{text}\n" for name, text in files.items()}


def two_by_two() -> dict[str, str]:
    """Return a machine of two packages with two cores of one CPU, and a node each."""
    files = {f"{CPU}/online": "0-3\n", f"{NODE}/node0/cpulist": "0-1\n", f"{NODE}/node1/cpulist": "2-3\n"}
    for cpu in range(4):
        files |= cpu_files(cpu, str(cpu // 2), str(cpu))
    return files
