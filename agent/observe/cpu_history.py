# SPDX-License-Identifier: Apache-2.0
"""The CPUs of each job over the last hour, as means over ten seconds, in bounded memory. Pure.

Times are seconds of any clock that does not go back.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from datetime import datetime
from heapq import nlargest
from typing import TYPE_CHECKING, Any, NamedTuple

from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

STEP = 10.0
"""Seconds of a column."""
COLUMNS = 360
MOST_JOBS = 24
"""Jobs that a column lists separately; those with fewer CPUs are taken together."""
OTHERS = ""
"""The name of the jobs taken together: no job has an empty name."""

Column = dict[str, float]
"""CPUs by job: the mean over a step."""


class CpuHistory(NamedTuple):
    """The columns, oldest first, and the seconds that the last of them has lasted so far."""

    columns: list[Column]
    last: float

    @property
    def lasted(self) -> float:
        """The seconds that all of them have lasted."""
        return (len(self.columns) - 1) * STEP + self.last if self.columns else 0.0

    def after(self, columns: list[Column]) -> CpuHistory:
        """Return this history preceded by `columns`, as far as there is room for them."""
        return CpuHistory([*columns, *self.columns][-COLUMNS:], self.last)


class HourRecorder:
    """Records the CPUs of tasks, by any unique key, and returns those of jobs since `start`.

    The cost of a change does not depend on the number of jobs; each job is processed once per step.
    """

    def __init__(self, start: float) -> None:
        self._past: deque[Column] = deque(maxlen=COLUMNS - 1)
        self._begun = start
        self._changed = False
        """Whether anything has changed since the last column began."""
        self._tasks: dict[Hashable, tuple[str, int]] = {}
        self._jobs: dict[str, tuple[int, float]] = {}
        """The CPUs that a job has, and the time since which they are not included in `_spent`."""
        self._spent: Column = {}
        """CPU seconds in the last column."""

    def has(self, task: Hashable, job: str, cpus: int, now: float) -> None:
        """Record that a task has `cpus` CPUs from now on; 0 if it has ended."""
        self._go_on(now)
        self._changed = True
        if task in self._tasks:
            before, number = self._tasks.pop(task)
            self._add(before, -number, now)
        if cpus:
            self._tasks[task] = job, cpus
            self._add(job, cpus, now)

    def clear(self, now: float) -> None:
        """Record that no task is managed any longer."""
        for task, (job, _) in list(self._tasks.items()):
            self.has(task, job, 0, now)

    def look(self, now: float) -> CpuHistory:
        """Return the history until now."""
        self._go_on(now)
        lasted = now - self._begun
        return CpuHistory([*self._past, _means(self._until(now), lasted)] if lasted else list(self._past), lasted)

    def _add(self, job: str, cpus: int, now: float) -> None:
        had, since = self._jobs.pop(job, (0, now))
        if had:
            self._spent[job] = self._spent.get(job, 0.0) + had * (now - since)
        if had + cpus:
            self._jobs[job] = had + cpus, now

    def _until(self, end: float) -> Column:
        """Return the CPU seconds in the last column until `end`."""
        spent = dict(self._spent)
        for job, (cpus, since) in self._jobs.items():
            spent[job] = spent.get(job, 0.0) + cpus * (end - since)
        return spent

    def _go_on(self, now: float) -> None:
        """Begin the column of `now`; columns without a change share one value."""
        while now >= self._begun + STEP:
            alike = 1 if self._changed else int((now - self._begun) // STEP)
            column = _means(self._until(self._begun + STEP), STEP)
            self._past.extend([column] * min(alike, COLUMNS))
            self._begun += alike * STEP
            self._changed, self._spent = False, {}
            self._jobs = {job: (cpus, self._begun) for job, (cpus, _) in self._jobs.items()}


def _means(seconds: Column, lasted: float) -> Column:
    """Return CPU seconds as mean CPUs, with the jobs that have the fewest taken together."""
    means = {job: time / lasted for job, time in seconds.items() if time}
    if len(means) <= MOST_JOBS:
        return means
    named = dict(nlargest(MOST_JOBS, means.items(), key=lambda pair: pair[1]))
    return named | {OTHERS: sum(means.values()) - sum(named.values())}


def history_from_events(records: Iterable[dict[str, Any]], end: float) -> list[Column]:
    """Return the columns of the hour before `end` (seconds since 1970), from its stored events."""
    begin = end - COLUMNS * STEP
    hour, now, adopted = HourRecorder(0.0), 0.0, False
    for record in records:
        event, at = record["event"], _seconds(record["time"]) - begin
        if at >= COLUMNS * STEP:
            break
        now = max(now, at)
        if "old" in record and "new" in record:
            with suppress(KeyError, TypeError, ValueError):  # no agent's event
                job, cpus = str(record["job"]), parse_cpulist(record["new"]).bit_count()
                hour.has((job, int(record["task"])), job, cpus, now)
        elif event == "stopped" or (event == "ready" and not adopted):
            hour.clear(now)
        adopted = event == "adopted" or (adopted and event != "ready")
    return hour.look(COLUMNS * STEP).columns


def _seconds(time: str) -> float:
    with suppress(ValueError):
        return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()
    return 0.0
