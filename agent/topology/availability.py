# SPDX-License-Identifier: Apache-2.0
"""The CPUs that may be handed out, looked at again while the agent runs: hotplug, cpusets, quotas, our own affinity.

The kernel tells of none of these in a way that reaches us for each (sysfs and cgroup files change without an event when
an ancestor's do), so the few small files that say them are read every `PERIOD`, and the machine only when one differs.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.system.cgroups import cpu_files
from drom.agent.system.files import Root
from drom.agent.topology.machine import usable_cores, without

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.topology.machine import Topology

PERIOD = 1.0
"""Seconds between two looks."""
_MOST = 1 << 16
_FILES = ("sys/devices/system/cpu/online", "proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Available:
    """Of the CPUs an agent started with, those it may hand out, and those that are not there or not allowed any more.

    `more` are CPUs that it could manage as well if it was started now. All are masks over OS CPUs.
    """

    managed: int
    gone: int
    more: int = 0


def available(start: Topology, now: Topology, unit: str = "core", reserved: int = 0) -> Available:
    """Return what is left of the machine an agent started on, now that it is read again.

    Cores with CPUs in `reserved` are there, and left to the system.
    """
    units = _mask(start, unit)
    left = without(replace(start, allowed=start.allowed & now.allowed, quota=now.quota), reserved)
    return Available(_mask(left, unit) & units, units & ~now.allowed, _mask(now, unit) & ~units)


def _mask(machine: Topology, unit: str) -> int:
    return sum(mask for *_, mask in usable_cores(machine, unit))


class Rereading:
    """Looks at the machine each period. `read` reads it anew; `root` is where its files are, "/" for this one."""

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
        self.available = available(start, start, unit)
        self.machine = start

    def look(self, now: float) -> bool:
        """Say whether what is available has changed since the last look; False too when it is not time to look."""
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
        """Leave these CPUs to the system from now on, and no others; say whether that changes what is available."""
        self._reserved = cpus
        return self._judge()

    def left(self, reserved: int) -> int:
        """Return which CPUs of the machine that the agent started on would be left beside reserved ones."""
        return available(self._start, self._start, self._unit, reserved).managed

    def _judge(self) -> bool:
        before = self.available
        self.available = available(self._start, self.machine, self._unit, self._reserved)
        return self.available != before

    def _listen(self) -> list[object]:
        """Return what the files and our affinity say."""
        if not self._files:
            self._files = [self._root / path.lstrip("/") for path in (*_FILES, *cpu_files(Root(self._root)))]
        return [*map(_read, self._files), os.sched_getaffinity(0) if self._live else 0]


def _read(path: Path) -> bytes:
    """Return what a file of the kernel says; nothing when it is gone.

    Raises OSError where this process or the machine has no descriptor left.
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
