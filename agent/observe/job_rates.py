# SPDX-License-Identifier: Apache-2.0
"""How fast jobs get on with the cores that they have: looks at the mailboxes of their tasks each second, or each few.

A program that tells its progress is measured by that. Of one that does not, the parallel regions of OpenMP that it has
passed count, where these are its malleability points: each is a piece of the program's own work. Other points are no
measure: a program that waits passes as many as it likes, as does one that looks for messages. Nor is CPU time: threads
that spin use it, too.

The clock of a measurement runs from one step forward to a later one, with every task on the same CPUs and no other
change between them; so programs that tell their progress seldom are measured as well, and pauses count.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.observe.rates import Rates

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.ipc.mailboxes import Mail
    from drom.agent.model.jobs import Job
    from drom.agent.node.node import Node

PERIOD = 1.0
"""Seconds between two looks, where not more than AT_ONCE tasks are looked at."""
AT_ONCE = 400
"""Tasks that are looked at in a second; looks at more of them are as much rarer."""
_REGIONS = sum(1 << layout.ENUMS["POINTS"].index(name) for name in ("libomp", "libgomp"))
_ELSEWHERE = sum(1 << layout.ENUMS["POINTS"].index(name) for name in ("mpi", "other_libomp", "other_tool"))


class Sample(NamedTuple):
    """What a job has done in some seconds with so many cores."""

    job: str
    cores: int
    seconds: float
    work: int


class Count(NamedTuple):
    """How far tasks are: `what` is "progress" or "regions"."""

    what: str
    value: int


def counted(mail: Mail | None) -> Count | None:
    """Return how far a program is, or None where nothing tells."""
    if mail is None:
        return None
    if mail.progress:
        return Count("progress", mail.progress)
    regions = mail.points & _REGIONS and not mail.points & _ELSEWHERE
    return Count("regions", mail.polls) if regions and mail.polls else None


@dataclass(slots=True)
class _Course:
    """A job's last step forward: `key` says on which CPUs which tasks were, `at` when (None: there was none yet)."""

    key: tuple[object, ...] = ()
    value: int = 0
    at: float | None = None
    what: str = ""
    rates: Rates = field(default_factory=Rates)

    def go_on(self, key: tuple[object, ...], count: Count, now: float) -> tuple[float, int] | None:
        """Take in how far a job is; return the seconds and the work of a measurement that this completes."""
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


class Pacing:
    """Measures the jobs of a node; `read` returns what the mailbox of a number says."""

    def __init__(self, node: Node, read: Callable[[int], Mail | None]) -> None:
        self._node, self._read = node, read
        self._courses: dict[str, _Course] = {}
        self._due = 0.0

    def rates(self, job: str) -> dict[int, float]:
        """Return what a job was measured to do in a second, by cores."""
        return self._courses[job].rates.known() if job in self._courses else {}

    def look(self, now: float) -> list[Sample]:
        """Measure if it is time to, and return what was measured."""
        if now < self._due:
            return []
        self._due = now + PERIOD * max(1, len(self._node.tasks) // AT_ONCE)
        jobs = self._node.jobs
        self._courses = {name: course for name, course in self._courses.items() if name in jobs}
        found = [self._measure(job, now) for job in jobs.values() if job.started]
        return [sample for sample in found if sample]

    def _measure(self, job: Job, now: float) -> Sample | None:
        tasks = job.present
        counts = [counted(self._read(task.mailbox)) for task in tasks if task.responder]
        told = [count for count in counts if count]
        if not told or len({count.what for count in told}) > 1 or any(len(task.grants) != 1 for task in tasks):
            return None
        key = tuple((task.slot, task.epoch, task.applied, task.responder) for task in tasks)
        course = self._courses.setdefault(job.name, _Course())
        done = course.go_on(key, Count(told[0].what, sum(count.value for count in told)), now)
        if done is None:
            return None
        cores = self._node.cores.count(functools.reduce(operator.or_, (task.applied for task in tasks)))
        sample = Sample(job.name, cores, *done)
        course.rates.add(*sample[1:])
        return sample
