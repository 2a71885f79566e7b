# SPDX-License-Identifier: Apache-2.0
"""Measurements of the programs on real cores: their work per second, and their relative speed on one core."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, NamedTuple

from drom.agent.testbed.agent_process import clean_environment
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.sd_policy.real.settings import ENVIRONMENT, ROLES

from dromlib import native

REPEATS = 3
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


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
    about: dict[str, Any] = clean_environment() | ENVIRONMENT | _AS_ROOT | dict.fromkeys(names, str(threads))
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
