# SPDX-License-Identifier: Apache-2.0
"""What is measured of the programs on real cores, and of this machine.

That is the programs' work per second, their relative speed on one core, and the energy of the machine's packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from drom.agent.execution.mpi_hosts import AS_ROOT
from drom.agent.testbed.agent_process import clean_environment
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.sd_policy.real.settings import ENVIRONMENT, ROLES

from dromlib import native

REPEATS = 3
POWERCAP = Path("/sys/class/powercap")


class WorkModel(NamedTuple):
    """The time of a program is ``start + slope * units ** (1 / exponent)`` seconds on all cores."""

    start: float
    slope: float
    exponent: float
    half: float
    """The speed on one of two cores, that on both being 1."""

    def units(self, seconds: float) -> int:
        """Return the amount of work that takes the given seconds."""
        units: float = (max(0.02, seconds - self.start) / self.slope) ** self.exponent
        return max(6, 6 * round(units / 6))


def calibrate() -> dict[str, WorkModel]:
    """Measure every program alone, as the least of a few times. Raises SchedulerError for one that fails."""
    found: dict[str, WorkModel] = {}
    for application, role in ROLES.items():
        few, many = role.sizes
        short, long, single = (_seconds(application, *what) for what in ((few, 2), (many, 2), (many, 1)))
        low, high = few ** (1 / role.exponent), many ** (1 / role.exponent)
        slope = max(1e-12, (long - short) / (high - low))
        start = max(0.0, short - slope * low)
        found[application] = WorkModel(start, slope, role.exponent, (long - start) / max(1e-9, single - start))
    return found


def _seconds(application: str, units: int, threads: int) -> float:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    about: dict[str, Any] = clean_environment() | ENVIRONMENT | AS_ROOT | dict.fromkeys(names, str(threads))
    took = []
    for _ in range(REPEATS):
        begin = time.monotonic()
        done = subprocess.run(program(application, units), env=about, capture_output=True, check=False, text=True)
        took.append(time.monotonic() - begin)
        if done.returncode:
            last = (done.stderr.splitlines() or ["it said nothing"])[-1]
            msg = f"the program that stands for {application} fails: {last}"
            raise SchedulerError(msg)
    return min(took)


def enough_cores() -> bool:
    """Return whether this machine has the two cores that are shared."""
    return len(os.sched_getaffinity(0)) >= 2


def program(application: str, units: int) -> list[str]:
    """Return the command for an application with an amount of work. Raises SchedulerError if there is none."""
    role = ROLES[application]
    try:
        path = str(native.example_path(role.program))
    except FileNotFoundError as error:
        msg = f"the program that stands for {application} is missing: {error}"
        raise SchedulerError(msg) from error
    interpreter = [sys.executable] if role.program.endswith(".py") else []
    return [*interpreter, path, *role.options, role.unit, str(units)]


class Meter:
    """The energy of this machine's packages by RAPL (/sys/class/powercap).

    The counters may be readable by their owner only, and many machines have none.
    """

    def __init__(self, root: Path = POWERCAP) -> None:
        self._packages = sorted(root.glob("intel-rapl:[0-9]*"))
        self._packages = [path for path in self._packages if path.name.count(":") == 1]
        self._begun: list[int] | None = None

    def begin(self) -> None:
        """Record the values of the counters."""
        self._begun = self._read()

    def end(self) -> float | None:
        """Return the joules since `begin`; None without counters. Each counter may have wrapped around once."""
        ended = self._read()
        if not ended or not self._begun:
            return None
        spans = [_number(path / "max_energy_range_uj") for path in self._packages]
        used = [(b - a) % (span + 1) for a, b, span in zip(self._begun, ended, spans, strict=True)]
        return sum(used) / 1e6

    def _read(self) -> list[int]:
        try:
            return [_number(path / "energy_uj") for path in self._packages]
        except OSError:
            return []


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))
