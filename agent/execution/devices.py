# SPDX-License-Identifier: Apache-2.0
"""The counted resources that a job has on a node, as variables by which its programs find them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from drom.agent.execution.protocol import Start

GPU = "gpu"
"""The resource whose identities are those of GPUs, in the order of their PCI addresses."""
AMD_DRIVER = Path("/dev/kfd")
"""There on nodes with GPUs of AMD."""
_CUDA, _AMD, _INTEL = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
OF_GPUS = (*_CUDA, _AMD, _INTEL, "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
"""The variables that runtimes of GPUs read. Those of a submission are not passed on: they name GPUs of another node."""


def variables(start: Start, resources: Mapping[str, int], *, amd: bool) -> dict[str, str]:
    """Return the variables of a job on a node with these resources; `amd`: its GPUs are of AMD.

    ``DROM_DEVICES_GPU=0,2``, and likewise for each counted resource that the job has. On a node with GPUs those of
    their runtimes as well; a job that asked for none sees no GPU of NVIDIA or AMD: no GPU is called -1 there, as HIP
    and OpenCL take an empty list for all. ROCm hides GPUs by ROCR_VISIBLE_DEVICES and numbers the others anew, so that
    HIP, which also reads CUDA_VISIBLE_DEVICES, must have no other of these variables. ZE_AFFINITY_MASK is for GPUs of
    Intel.
    """
    named = ((re.sub("[^A-Z0-9]", "_", name.upper()), ids) for name, ids in start.devices.items())
    found = {f"DROM_DEVICES_{name}": _list(ids) for name, ids in named if ids}
    if not resources.get(GPU):
        return found
    mine = _list(start.devices.get(GPU, ()))
    if amd:
        return found | {_AMD: mine or "-1"}
    theirs = {_INTEL: mine} if mine else {}
    cuda, container = _CUDA
    return found | theirs | {cuda: mine or "-1", container: mine or "void", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _list(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids))


def why_not(start: Start, resources: Mapping[str, int], others: Iterable[Start]) -> str:
    """Return why a job may not have its devices beside those of other jobs on the node; empty if it may."""
    for name, ids in start.devices.items():
        has, wrong = resources.get(name, 0), sorted(set(ids) - set(range(resources.get(name, 0))))
        if wrong:
            return f"it was given {name} {wrong[0]}, and the node has {name}={has}."
    for other in others:
        for name, ids in start.devices.items():
            if both := sorted(set(ids) & set(other.devices.get(name, ()))):
                return f"job {other.job} has {name} {both[0]} of the node."
    return ""
