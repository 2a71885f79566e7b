# SPDX-License-Identifier: Apache-2.0
"""The CPUs that may be handed out, checked while the agent runs: hotplug, cpusets, quotas, our own affinity.

The kernel has no notification that covers all of these (sysfs and cgroup files change without an event when those of an
ancestor do), so the few small files that contain them are read every `PERIOD`, and the machine only if one differs.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.system.cgroups import cpu_files
from drom.agent.system.files import FileTree
from drom.agent.topology.machine import reserve, usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.topology.machine import Topology

PERIOD = 1.0
"""Seconds between two checks."""
_MOST = 1 << 16
_FILES = ("sys/devices/system/cpu/online", "proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class CpuAvailability:
    """The CPUs an agent started with: those it may hand out, and those that are gone or not allowed any more.

    `more` are further CPUs that it could manage if it were started now. All are masks over OS CPUs.
    """

    managed: int
    gone: int
    more: int = 0


def remaining_cpus(start: Topology, now: Topology, unit: str = "core", reserved: int = 0) -> CpuAvailability:
    """Return what is available `now` of the machine `start` that an agent started on.

    Cores with CPUs in `reserved` exist, and are left to the system.
    """
    units = _mask(start, unit)
    left = reserve(replace(start, allowed=start.allowed & now.allowed, quota=now.quota), reserved)
    return CpuAvailability(_mask(left, unit) & units, units & ~now.allowed, _mask(now, unit) & ~units)


def _mask(machine: Topology, unit: str) -> int:
    return sum(mask for *_, mask in usable_cores(machine, unit))


class AvailabilityMonitor:
    """Checks the machine each period. `read` reads it anew; its files are below `root`, "/" for this machine."""

    def __init__(self, start: Topology, read: Callable[[], Topology], unit: str = "core", root: str = "/") -> None:
        self._start = start
        self._read = read
        self._unit = unit
        self._root = Path(root)
        self._reserved = 0
        self._live = os.path.realpath(root) == "/"
        self._files: list[Path] = []
        self._said: list[object] = []
        self._next = 0.0
        self.available = remaining_cpus(start, start, unit)
        self.machine = start

    def look(self, now: float) -> bool:
        """Return whether the available CPUs have changed since the last check; False if no check is due."""
        if now < self._next:
            return False
        self._next = now + PERIOD
        said = self._listen()
        if said == self._said:
            return False
        self._files = []
        self.machine = self._read()
        self._said = said
        return self._judge()

    def reserve(self, cpus: int) -> bool:
        """Leave exactly these CPUs to the system from now on; return whether that changes what is available."""
        self._reserved = cpus
        return self._judge()

    def left(self, reserved: int) -> int:
        """Return the CPUs of the machine that the agent started on which would be left beside the `reserved` ones."""
        return remaining_cpus(self._start, self._start, self._unit, reserved).managed

    def _judge(self) -> bool:
        before = self.available
        self.available = remaining_cpus(self._start, self.machine, self._unit, self._reserved)
        return self.available != before

    def _listen(self) -> list[object]:
        """Return the contents of the files, and our affinity."""
        if not self._files:
            self._files = [self._root / path.lstrip("/") for path in (*_FILES, *cpu_files(FileTree(self._root)))]
        return [*map(_read, self._files), os.sched_getaffinity(0) if self._live else 0]


def _read(path: Path) -> bytes:
    """Return the contents of a file of the kernel; empty if it cannot be read.

    Raises OSError if this process or the machine has no descriptor left.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)
