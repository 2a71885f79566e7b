# SPDX-License-Identifier: Apache-2.0
"""A control group for each job of a scheduler that limits the memory of the job on this node (cgroup v1 and v2).

The groups lie where those of tasks with cpusets lie (`drom.agent.enforcement.cpusets`): below the group of
drom-tasks.service, or otherwise below the agent's own group. Swap counts as memory. The kernel kills a process of a job
that needs more, and counts that in files of the group.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.enforcement import cpusets
from drom.agent.errors import ControlError
from drom.agent.system.cgroups import parse_cgroups, parse_mounts, places

if TYPE_CHECKING:
    from collections.abc import Collection

CONTROLLER = "memory"
"""The controller, which is a hierarchy of its own in version 1."""
_ADVICE = "start drom-tasks.service"


class MemoryLimits:
    """The groups for the jobs of the agent in a runtime directory, below the group `base`."""

    def __init__(self, base: Path, runtime_dir: Path) -> None:
        self.base = base
        self._prefix = f"job-{hashlib.sha256(os.fsencode(runtime_dir)).hexdigest()[:8]}-"

    def group(self, job: int, attempt: int) -> Path:
        """Return the group of an attempt of a job."""
        return self.base / f"{self._prefix}{job}.{attempt}"

    def remove_all_but(self, kept: Collection[Path | None]) -> None:
        """Remove the groups that an earlier agent in this runtime directory left, except `kept`."""
        for group in self.base.glob(self._prefix + "*"):
            if group not in kept:
                remove(group)


def make(group: Path, memory: int) -> None:
    """Make a group if it is missing, and limit the memory of its processes to `memory` bytes. Raises OSError."""
    group.mkdir(exist_ok=True)
    if (group / "memory.max").exists():
        _write(group / "memory.max", memory)
        swap, most = group / "memory.swap.max", 0
    else:
        _write(group / "memory.limit_in_bytes", memory)
        swap, most = group / "memory.memsw.limit_in_bytes", memory
    if swap.exists():  # the kernel may not account for swap
        _write(swap, most)


def exceeded(group: Path) -> bool:
    """Return whether the kernel killed a process of a group because the group had reached its limit.

    Version 1 also counts processes that were killed because the machine had no memory left.
    """
    kills, limits = _counts(group / "memory.oom_control"), _counts(group / "memory.events")
    return bool(kills.get("oom_kill") or (limits.get("oom") and limits.get("oom_kill")))


def processes(group: Path) -> set[int]:
    """Return the pids of the processes in a group."""
    return {int(pid) for pid in _text(group / "cgroup.procs").split()}


def remove(group: Path) -> None:
    """Remove a group, unless it has processes."""
    with suppress(OSError):
        group.rmdir()


def find(runtime_dir: Path, *, confined: bool, root: Path = Path("/")) -> MemoryLimits:
    """Return the memory limits of the agent in a runtime directory; `confined`: its tasks have cpusets.

    Raises `ControlError` with the reason if memory cannot be limited.
    """
    mounts = parse_mounts(_text(root / "proc/self/mountinfo"))
    own = parse_cgroups(_text(root / "proc/self/cgroup"))
    found = next(places([mount for mount in mounts if CONTROLLER in mount[0]], own), None)
    if found is None:
        return MemoryLimits(_base_of_v2(root, confined=confined), runtime_dir)
    place, parts = root / found[0].lstrip("/"), found[1]
    holder = place / cpusets.HOLDER
    base = holder if os.access(holder, os.W_OK) else place.joinpath(*parts)
    if not os.access(base, os.W_OK):
        raise ControlError(f"this user may not make control groups in {base}: run the agent as root.")
    return MemoryLimits(base, runtime_dir)


def _base_of_v2(root: Path, *, confined: bool) -> Path:
    """Return the group for groups with memory limits in version 2, prepared for them. Raises `ControlError`."""
    if confined:
        raise ControlError("tasks are in control groups for their CPUs: use --enforce affinity.")
    mount, base = cpusets.find(root, CONTROLLER, _ADVICE)
    if base not in (mount / cpusets.HOLDER, mount / cpusets.BELOW_ROOT):
        # other processes may be in the agent's own group, and systemd would not start the next agent in it
        raise ControlError(f"the control group {base} is not for jobs alone: {_ADVICE}.")
    try:
        cpusets.prepare(mount, base, CONTROLLER)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ControlError(f"cannot make control groups in {base} ({reason}): {_ADVICE}.") from error
    return base


def _write(file: Path, number: int) -> None:
    file.write_text(str(number), encoding="ascii")


def _counts(file: Path) -> dict[str, int]:
    words = _text(file).split()
    return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=False)}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
