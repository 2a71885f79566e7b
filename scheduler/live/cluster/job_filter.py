# SPDX-License-Identifier: Apache-2.0
"""A filter for the jobs of a queue that a user wants to see. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.errors import ControlError
from drom.agent.text import WordError
from drom.scheduler.live.cluster.spec import LONGEST_NAME, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from drom.scheduler.live.cluster.jobs import Job


class JobRange(NamedTuple):
    """Jobs by number, from `first` to `last`; with an `array` those of it with indices from `first` to `last`."""

    array: int
    first: int
    last: int

    def has(self, job: Job) -> bool:
        """Return whether a job is in it; a number alone that is an array's stands for all its jobs."""
        if self.array:
            return job.array == self.array and self.first <= job.index <= self.last
        return self.first <= job.number <= self.last or (self.first == self.last == job.array)

    @property
    def label(self) -> str:
        """The range as users write it."""
        span = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return (f"{self.array}_{span}" if self.first == self.last else f"{self.array}_[{span}]") if self.array else span


_SPAN = r"\d{1,15}(?:-\d{1,15})?"


def parse_jobs(text: str) -> tuple[JobRange, ...]:
    """Return the jobs in ``12``, ``3-7``, ``12_3`` or ``12_[1,3-7]``. Raises `WordError`."""
    found = re.fullmatch(rf"(?:([1-9]\d{{0,14}})_)?(?:({_SPAN})|\[({_SPAN}(?:,{_SPAN})*)\])", text, re.ASCII)
    if not found or len(text) > LONGEST_NAME or (not found[1] and (found[3] or text.startswith("0"))):
        msg = f"{text[:40]!r} is not a job: write a number such as 12, a range 3-7, or 12_3 and 12_[1-4] in an array."
        raise WordError(msg)
    ranges = []
    for span in (found[2] or found[3]).split(","):
        first, _, last = span.partition("-")
        ranges.append(JobRange(int(found[1] or 0), int(first), int(last or first)))
    return tuple(ranges)


def parse_one_job(text: str) -> JobRange:
    """Return the job in ``12`` or ``12_3``. Raises `WordError`."""
    found = parse_jobs(text)
    if len(found) > 1 or found[0].first != found[0].last:
        msg = f"{text[:40]!r} is not one job: write its number, such as 12, or 12_3 in an array."
        raise WordError(msg)
    return found[0]


def ranges_of(order: dict[str, Any]) -> tuple[JobRange, ...]:
    """Return the ranges of jobs in an order. Raises ControlError for anything else."""
    given = order.get("ranges", [])
    good = isinstance(given, list) and len(given) <= MOST_CHOSEN
    good = good and all(isinstance(one, list) and len(one) == 3 and set(map(type, one)) == {int} for one in given)
    if not good:
        msg = f"ranges must be a list of at most {MOST_CHOSEN} of three whole numbers: use the drom of this version."
        raise ControlError(msg)
    return tuple(JobRange(*one) for one in given)


class JobFilter(NamedTuple):
    """The users, states and names of the jobs to show; an empty collection admits all."""

    users: Collection[str] = ()
    states: Collection[str] = ()
    names: Collection[str] = ()

    @property
    def over(self) -> bool:
        """Whether the states include one of jobs that are over."""
        if not self.states:
            return False
        from drom.scheduler.live.cluster.jobs import FINAL

        return not FINAL.isdisjoint(self.states)

    def has(self, job: Job) -> bool:
        """Return whether a job is admitted."""
        return self._has(job.user.name, job.state, lambda: name_of(job.spec))

    def of(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a queue with the admitted jobs only."""
        return value | {"jobs": [job for job in value["jobs"] if self._has_row(job)]}

    def _has_row(self, job: dict[str, Any]) -> bool:
        return self._has(job["user"], job["state"], lambda: str(job["name"]))

    def _has(self, user: str, state: str, name: Callable[[], str]) -> bool:
        """Return whether a job with these values is admitted; `name` is called only if names are filtered."""
        is_so = (not self.users or user in self.users) and (not self.states or state in self.states)
        return is_so and (not self.names or name() in self.names)


MOST_CHOSEN = 1000
"""Users, states or names that one order may choose."""


def job_filter_of(order: dict[str, Any]) -> JobFilter:
    """Return the filter in an order. Raises ControlError if its fields are not lists of strings."""
    lists = [order.get(name, []) for name in JobFilter._fields]
    for given in lists:
        if not isinstance(given, list) or len(given) > MOST_CHOSEN or any(type(one) is not str for one in given):
            msg = f"users, states and names must be lists of at most {MOST_CHOSEN} texts: use the drom of this version."
            raise ControlError(msg)
    return JobFilter(*map(frozenset, lists))


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in ``ann,ben``. Raises `WordError`."""
    names = tuple(text.split(","))
    if not all(names):
        msg = f"{text[:40]!r} is not a list of names: write them with commas, such as ann,ben."
        raise WordError(msg)
    return names


def parse_states(text: str) -> tuple[str, ...]:
    """Return the states in ``pending,running``. Raises `WordError`."""
    from drom.scheduler.live.cluster.jobs import STATES

    states = tuple(text.lower().split(","))
    for state in states:
        if state not in STATES:
            msg = f"{state[:40]!r} is not a state of a job: choose from {', '.join(STATES)}."
            raise WordError(msg)
    return states
