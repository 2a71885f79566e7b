# SPDX-License-Identifier: Apache-2.0
"""A filter for the jobs of a queue that a user wants to see. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.errors import ControlError
from drom.agent.text import WordError
from drom.scheduler.live.cluster.spec import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from drom.scheduler.live.cluster.jobs import Job


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
