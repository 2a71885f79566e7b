# SPDX-License-Identifier: Apache-2.0
"""The resources of a scheduler that each user's unfinished jobs occupy, and their limits. No I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError
from drom.agent.observe.reporter import TokenBucket
from drom.agent.text import counted, in_words
from drom.scheduler.live.cluster.spec import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drom.scheduler.live.cluster.jobs import Job, User
    from drom.scheduler.live.cluster.settings import Settings
    from drom.scheduler.live.cluster.spec import Spec

ROW = 1024
"""Bytes counted for each job, in addition to its specification, which jobs submitted together share."""
AT_ONCE = 200
"""Seconds whose orders a user may give at once: enough to cancel all the jobs that a user may have."""
MOST_BUCKETS = 1024
"""Users whose orders are counted; beyond this number, users without recent orders are dropped."""


class Holdings:
    """The number of unfinished jobs, and the bytes that are kept for them, by user."""

    def __init__(self) -> None:
        self._jobs: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._texts: dict[tuple[int, int], tuple[Spec, int]] = {}
        """Specifications of jobs, by user and identity of the object, with the number of jobs that refer to each."""

    def add(self, job: Job) -> None:
        """Count an unfinished job."""
        uid, key = job.user.uid, (job.user.uid, id(job.spec))
        _, count = self._texts.get(key, (job.spec, 0))
        self._texts[key] = job.spec, count + 1
        self._jobs[uid] += 1
        self._bytes[uid] += ROW + (0 if count else size_of(job.spec))

    def remove(self, job: Job) -> None:
        """Stop counting a job that was added; its specification must be the one it had then."""
        uid, key = job.user.uid, (job.user.uid, id(job.spec))
        spec, count = self._texts.pop(key)
        if count > 1:
            self._texts[key] = spec, count - 1
        self._jobs[uid] -= 1
        self._bytes[uid] -= ROW + (size_of(spec) if count == 1 else 0)
        if not self._jobs[uid]:
            del self._jobs[uid], self._bytes[uid]

    def of(self, user: User) -> tuple[int, int]:
        """Return how many unfinished jobs a user has, and how many bytes are kept for them."""
        return self._jobs[user.uid], self._bytes[user.uid]

    def admit(self, user: User, specs: Sequence[Spec], more: int, settings: Settings) -> None:
        """Raise ControlError if a user may not have `more` jobs, of the kinds in `specs`."""
        jobs, kept = self.of(user)
        if jobs + more > settings.max_jobs:
            msg = (
                f"user {user.name} has {counted(jobs, 'unfinished job')}, and with {more} more there would be over "
                f"{settings.max_jobs}, which a user may have here: wait until some have ended, or cancel some."
            )
            raise ControlError(msg)
        self._admit_bytes(user, kept, more * ROW + sum(map(size_of, specs)), settings)

    def admit_change(self, job: Job, spec: Spec, settings: Settings) -> None:
        """Raise ControlError if the user of an unfinished job may not have this specification instead of its own."""
        (_, kept), (_, sharing) = self.of(job.user), self._texts[job.user.uid, id(job.spec)]
        more = size_of(spec) - (size_of(job.spec) if sharing == 1 else 0)
        self._admit_bytes(job.user, kept, more, settings)

    def _admit_bytes(self, user: User, kept: int, more: int, settings: Settings) -> None:
        if more > 0 and kept + more > settings.max_bytes:
            msg = (
                f"{in_words(kept)} are kept for the jobs of user {user.name}, and with {in_words(more)} more there "
                f"would be over {in_words(settings.max_bytes)}, which a user may have here: submit equal jobs with "
                "--count, leave variables out with --export, or wait until some jobs have ended."
            )
            raise ControlError(msg)


class Orders:
    """A limit on each user's changing orders: `a_second` of them, with bursts of those of `AT_ONCE` seconds."""

    def __init__(self, a_second: int) -> None:
        self._rate = a_second
        self._left: dict[int, TokenBucket] = {}

    def take(self, user: User, now: float) -> None:
        """Count an order at `now`. Raises ControlError for a user with too many orders."""
        if len(self._left) > MOST_BUCKETS:
            self._left = {uid: share for uid, share in self._left.items() if now - share.at < AT_ONCE}
        if user.uid not in self._left:
            self._left[user.uid] = TokenBucket(AT_ONCE * self._rate, now, self._rate)
        if self._left[user.uid].take(now) is None:
            msg = (
                f"user {user.name} gives orders faster than the {self._rate} a second that a user may give here: wait "
                "a few seconds, and submit equal jobs in one order with --count."
            )
            raise ControlError(msg)


class Turns:
    """How many jobs of a group are submitted to the policy: as many as may run at once.

    The others wait outside, in the order of the queue. `bound` returns the group of a job and how many of it may run,
    or None for a job without a bound.
    """

    def __init__(self, bound: Callable[[Job], tuple[int, int] | None]) -> None:
        self._bound = bound
        self._groups: dict[int, _Group] = {}

    def enter(self, job: Job) -> bool:
        """Return whether a job may be submitted to the policy now; if not, it waits outside."""
        bound = self._bound(job)
        if bound is None:
            return True
        group = self._groups.setdefault(bound[0], _Group(bound[1]))
        if job.number not in group.inside and len(group.inside) >= group.most:
            group.outside[job.number] = job.priority
            return False
        group.outside.pop(job.number, None)
        group.inside[job.number] = job.priority
        return True

    def place(self, job: Job) -> None:
        """Record that a job is on nodes, however many may run."""
        if bound := self._bound(job):
            self._groups.setdefault(bound[0], _Group(bound[1])).inside[job.number] = job.priority

    def leave(self, job: Job) -> None:
        """Record that a job is neither submitted to the policy any more nor waiting outside."""
        bound = self._bound(job)
        if bound and (group := self._groups.get(bound[0])):
            group.inside.pop(job.number, None)
            group.outside.pop(job.number, None)
            if not (group.inside or group.outside):
                del self._groups[bound[0]]

    def waits(self, job: Job) -> bool:
        """Return whether a job waits outside."""
        group = self._of(job)
        return group is not None and job.number in group.outside

    def inside(self, job: Job) -> list[int]:
        """Return the jobs of a job's group that run or are submitted to the policy, in the order of the queue."""
        group = self._of(job)
        return sorted(group.inside, key=lambda number: (-group.inside[number], number)) if group else []

    def ready(self) -> list[int]:
        """Return the jobs that wait outside although more of their group may run, in the order of the queue."""
        found: list[int] = []
        for group in self._groups.values():
            if group.outside and (room := group.most - len(group.inside)) > 0:
                first = nsmallest(room, ((-priority, number) for number, priority in group.outside.items()))
                found += [number for _, number in first]
        return found

    def _of(self, job: Job) -> _Group | None:
        bound = self._bound(job)
        return self._groups.get(bound[0]) if bound else None


@dataclass(slots=True)
class _Group:
    """The priorities of a group's jobs by number: of those that are submitted to the policy, and of the others."""

    most: int
    inside: dict[int, int] = field(default_factory=dict)
    outside: dict[int, int] = field(default_factory=dict)
