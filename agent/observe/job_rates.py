# SPDX-License-Identifier: Apache-2.0
"""Measures how fast jobs progress on their cores, from the mailboxes of their tasks, every second or every few.

A program that reports its progress is measured by that. For other programs the completed OpenMP parallel regions
count, if these are its malleability points: each is a piece of the program's own work. Other points are no measure: a
program that waits passes any number of them, as does one that polls for messages. Nor is CPU time: spinning threads
use it, too.

A measurement lasts from one step forward to a later one, with every task on the same CPUs and no other change between
them; so programs that rarely report progress are measured as well, and pauses count.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.ipc.mailboxes import MailboxState
    from drom.agent.model.jobs import Job
    from drom.agent.node.node import Node

MEMORY = 60.0
"""Seconds measured with one number of cores after which the weight of older measurements is halved."""
ENOUGH = 3
"""Number of measurements with a number of cores from which its rate counts as known."""
MOST_SIZES = 32
"""Maximum number of core counts stored per job; those measured last."""


class Rates:
    """The work of one job per second, in its own unit, by the number of cores that it had meanwhile."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float, int]] = {}
        """Seconds, the work in them, and number of measurements, by cores; in the order of the last measurement."""

    def add(self, cores: int, seconds: float, work: float) -> None:
        """Record that `work` was done in `seconds` (above 0) with exactly `cores` cores."""
        before, done, count = self._sums.pop(cores, (0.0, 0.0, 0))
        if before > MEMORY:
            before, done = before / 2, done / 2
        self._sums[cores] = (before + seconds, done + work, count + 1)
        if len(self._sums) > MOST_SIZES:
            del self._sums[next(iter(self._sums))]

    def known(self) -> dict[int, float]:
        """Return the work done per second by cores, if it was measured often enough, in ascending order of cores."""
        sums = sorted(self._sums.items())
        return {cores: done / seconds for cores, (seconds, done, count) in sums if count >= ENOUGH and done > 0}


PERIOD = 1.0
"""Seconds between two measurements, with at most AT_ONCE tasks."""
AT_ONCE = 400
"""Tasks that are read per second; with more of them measurements become proportionally rarer."""
_REGIONS = sum(1 << layout.ENUMS["POINTS"].index(name) for name in ("libomp", "libgomp"))
_ELSEWHERE = sum(1 << layout.ENUMS["POINTS"].index(name) for name in ("mpi", "other_libomp", "other_tool"))


class RateSample(NamedTuple):
    """The work of a job during `seconds` with `cores` cores."""

    job: str
    cores: int
    seconds: float
    work: int


class Count(NamedTuple):
    """The progress of tasks: `what` is "progress" or "regions"."""

    what: str
    value: int


def counted(mail: MailboxState | None) -> Count | None:
    """Return the progress of a program, or None if it has no measure."""
    if mail is None:
        return None
    if mail.progress:
        return Count("progress", mail.progress)
    regions = mail.points & _REGIONS and not mail.points & _ELSEWHERE
    return Count("regions", mail.polls) if regions and mail.polls else None


@dataclass(slots=True)
class _Progress:
    """A job's last step forward: `key` identifies the tasks and their CPUs, `at` is the time (None: no step yet)."""

    key: tuple[object, ...] = ()
    value: int = 0
    at: float | None = None
    what: str = ""
    rates: Rates = field(default_factory=Rates)

    def go_on(self, key: tuple[object, ...], count: Count, now: float) -> tuple[float, int] | None:
        """Record the progress of a job; return the seconds and the work of a measurement that this completes."""
        if count.what != self.what:
            self.what, self.rates, self.key = count.what, Rates(), ()
        if key != self.key or count.value < self.value:
            self.key, self.value, self.at = key, count.value, None
            return None
        work, since = count.value - self.value, self.at
        if not work:
            return None
        self.value, self.at = count.value, now
        return None if since is None else (now - since, work)


class RateMonitor:
    """Measures the jobs of a node; `read` returns the contents of the mailbox with a number."""

    def __init__(self, node: Node, read: Callable[[int], MailboxState | None]) -> None:
        self._node, self._read = node, read
        self._courses: dict[str, _Progress] = {}
        self._due = 0.0

    def rates(self, job: str) -> dict[int, float]:
        """Return the measured work of a job per second, by cores."""
        return self._courses[job].rates.known() if job in self._courses else {}

    def look(self, now: float) -> list[RateSample]:
        """Measure the jobs if a measurement is due, and return the results."""
        if now < self._due:
            return []
        self._due = now + PERIOD * max(1, len(self._node.tasks) // AT_ONCE)
        jobs = self._node.jobs
        self._courses = {name: course for name, course in self._courses.items() if name in jobs}
        found = [self._measure(job, now) for job in jobs.values() if job.started]
        return [sample for sample in found if sample]

    def _measure(self, job: Job, now: float) -> RateSample | None:
        tasks = job.present
        counts = [counted(self._read(task.mailbox)) for task in tasks if task.responder]
        told = [count for count in counts if count]
        if not told or len({count.what for count in told}) > 1 or any(len(task.grants) != 1 for task in tasks):
            return None
        key = tuple((task.slot, task.epoch, task.applied, task.responder) for task in tasks)
        course = self._courses.setdefault(job.name, _Progress())
        done = course.go_on(key, Count(told[0].what, sum(count.value for count in told)), now)
        if done is None:
            return None
        cores = self._node.cores.count(functools.reduce(operator.or_, (task.applied for task in tasks)))
        sample = RateSample(job.name, cores, *done)
        course.rates.add(*sample[1:])
        return sample
