# SPDX-License-Identifier: Apache-2.0
"""Which jobs of a queue somebody wants to see. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from agent.words import WordError
from scheduler.live import listing

if TYPE_CHECKING:
    from collections.abc import Sequence

NONE = "No such job is in the queue: see drom queue without --user, --me, --state and --name."


class Choice(NamedTuple):
    """What jobs have in common; an empty one is had by all."""

    users: Sequence[str] = ()
    states: Sequence[str] = ()
    names: Sequence[str] = ()

    @property
    def over(self) -> bool:
        """Whether jobs that are over are wanted by their state."""
        if not self.states:
            return False
        from scheduler.live.jobs import FINAL

        return not FINAL.isdisjoint(self.states)

    def of(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return a queue with these jobs only."""
        return value | {"jobs": [job for job in value["jobs"] if self._has(job)]}

    def _has(self, job: dict[str, Any]) -> bool:
        pairs = ((self.users, job["user"]), (self.states, job["state"]), (self.names, job["name"]))
        return all(not wanted or has in wanted for wanted, has in pairs)


def lines(choice: Choice, value: dict[str, Any]) -> list[str]:
    """Return the jobs that were chosen of a queue, one a line."""
    return [NONE] if any(choice) and not value["jobs"] else listing.queue(value)


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names in ``ann,ben``. Raises `WordError`."""
    names = tuple(text.split(","))
    if not all(names):
        msg = f"{text[:40]!r} are no names: write them with commas, as ann,ben."
        raise WordError(msg)
    return names


def parse_states(text: str) -> tuple[str, ...]:
    """Return the states in ``pending,running``. Raises `WordError`."""
    from scheduler.live.jobs import STATES

    states = tuple(text.lower().split(","))
    for state in states:
        if state not in STATES:
            msg = f"{state[:40]!r} is no state of a job: choose of {', '.join(STATES)}."
            raise WordError(msg)
    return states
