# SPDX-License-Identifier: Apache-2.0
"""Counters of CPU seconds: those that CPUs were busy, and those that users and jobs were allocated. Pure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.system import cpu_times

from dromlib.cpulist import cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MOST_USERS = 1000
"""Users that are counted individually; later ones are counted together."""
TICK = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds of a clock tick in ``/proc/stat``."""


class Busy:
    """Seconds that CPUs were busy and idle. They only increase, so all readers may compute rates from them."""

    def __init__(self, times: Callable[[], dict[int, tuple[int, int]]] = cpu_times.of_cpus) -> None:
        self._times = times
        self._before = times()
        self._ticks: dict[int, tuple[int, int]] = {}

    def read(self, masks: Mapping[int, int]) -> dict[int, tuple[float, float]]:
        """Return seconds (busy, idle) since the start for each key of `masks`, which maps it to the OS CPUs to count.

        A CPU counts from the first time it appears there; ticks that run backwards do not count.
        """
        now = self._times()
        for key, mask in masks.items():
            busy, idle = self._ticks.get(key, (0, 0))
            for cpu in cpus(mask):
                if cpu in now and cpu in self._before:
                    (before_busy, before_all), (now_busy, now_all) = self._before[cpu], now[cpu]
                    busy += max(0, now_busy - before_busy)
                    idle += max(0, (now_all - now_busy) - (before_all - before_busy))
            self._ticks[key] = busy, idle
        self._before = now
        return {key: (self._ticks[key][0] * TICK, self._ticks[key][1] * TICK) for key in masks}


@dataclass(slots=True)
class _Meter:
    """CPU seconds of a user or job: `seconds` until `since`, and those of the present `cpus` after it."""

    since: float
    cpus: int = 0
    tasks: int = 0
    seconds: float = 0.0

    def change(self, cpus: int, tasks: int, now: float) -> None:
        """Record that there are `cpus` more CPUs and `tasks` more tasks from now on."""
        self.seconds = self.at(now)
        self.since = now
        self.cpus += cpus
        self.tasks += tasks

    def at(self, now: float) -> float:
        """Return the CPU seconds until now."""
        return self.seconds + self.cpus * (now - self.since)


class Job(NamedTuple):
    """The counter of a present job: its user, and CPU seconds."""

    uid: int
    seconds: float


@dataclass(slots=True)
class Allocated:
    """CPU seconds that users and jobs have been allocated, by uid (None: all further users) and by name of job.

    The cost of a change does not depend on the number of jobs. A job is removed with its last task; its seconds remain
    in those of its user.
    """

    _tasks: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    _jobs: dict[str, tuple[int, _Meter]] = field(default_factory=dict)
    _users: dict[int | None, _Meter] = field(default_factory=dict)

    def has(self, slot: int, job: str, uid: int, cpus: int, now: float) -> None:
        """Record that the task in a slot has `cpus` CPUs from now on; 0 if it has ended."""
        if slot in self._tasks:
            name, owner, had = self._tasks.pop(slot)
            self._change(name, owner, -had, -1, now)
        if cpus:
            self._tasks[slot] = job, uid, cpus
            self._change(job, uid, cpus, 1, now)
        elif job in self._jobs and not self._jobs[job][1].tasks:
            del self._jobs[job]

    def _change(self, job: str, uid: int, cpus: int, tasks: int, now: float) -> None:
        key = uid if uid in self._users or len(self._users) < MOST_USERS else None
        for meter in (self._jobs.setdefault(job, (uid, _Meter(now)))[1], self._users.setdefault(key, _Meter(now))):
            meter.change(cpus, tasks, now)

    def users(self, now: float) -> dict[int | None, float]:
        """Return CPU seconds by uid, including those of jobs that have ended."""
        return {uid: meter.at(now) for uid, meter in self._users.items()}

    def jobs(self, now: float) -> dict[str, Job]:
        """Return the counters of the jobs that have CPUs."""
        return {name: Job(uid, meter.at(now)) for name, (uid, meter) in self._jobs.items()}
