# SPDX-License-Identifier: Apache-2.0
"""The resources of a scheduler that each user's unfinished jobs occupy, and their limits. No I/O."""

from __future__ import annotations

from collections import Counter
from heapq import nsmallest
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError
from drom.agent.observe.reporter import TokenBucket
from drom.agent.text import counted, in_words
from drom.scheduler.live.cluster.spec import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def admit(self, user: User, specs: Sequence[Spec], count: int, settings: Settings) -> None:
        """Raise ControlError if a user may not have `count` more jobs of each kind in `specs`."""
        (jobs, kept), more = self.of(user), len(specs) * count
        if jobs + more > settings.max_jobs:
            msg = (
                f"user {user.name} has {counted(jobs, 'unfinished job')}, and with {more} more there would be over "
                f"{settings.max_jobs}, which a user may have here: wait until some have ended, or cancel some."
            )
            raise ControlError(msg)
        size = more * ROW + sum(map(size_of, specs))
        if kept + size > settings.max_bytes:
            msg = (
                f"{in_words(kept)} are kept for the jobs of user {user.name}, and with {in_words(size)} more there "
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
    """The jobs of each user that are submitted to the policy; a user may run `most` at once (0: any number).

    The users with the uids in `operators` may run any number.

    As many jobs are submitted as may run; the others wait outside, in the order of the queue.
    """

    def __init__(self, most: int, operators: frozenset[int]) -> None:
        self._most = most
        self._operators = operators
        self._inside: dict[int, dict[int, int]] = {}
        self._outside: dict[int, dict[int, int]] = {}
        """The priorities of jobs by number, by user."""

    def enter(self, job: Job) -> bool:
        """Return whether a job may be submitted to the policy now; if not, it waits outside."""
        if not self._most or job.user.uid in self._operators:
            return True
        uid, number = job.user.uid, job.number
        inside = self._inside.setdefault(uid, {})
        if number not in inside and len(inside) >= self._most:
            self._outside.setdefault(uid, {})[number] = job.priority
            return False
        self.leave(job)
        self.place(job)
        return True

    def place(self, job: Job) -> None:
        """Record that a job is on nodes, however many its user may run."""
        if self._most:
            self._inside.setdefault(job.user.uid, {})[job.number] = job.priority

    def leave(self, job: Job) -> None:
        """Record that a job is neither submitted to the policy any more nor waiting outside."""
        for table in (self._inside, self._outside):
            if job.user.uid in table:
                table[job.user.uid].pop(job.number, None)
                if not table[job.user.uid]:
                    del table[job.user.uid]

    def waits(self, job: Job) -> bool:
        """Return whether a job waits outside."""
        return job.number in self._outside.get(job.user.uid, {})

    def inside(self, user: User) -> list[int]:
        """Return the jobs of a user that run or are submitted to the policy, in the order of the queue."""
        found = self._inside.get(user.uid, {})
        return sorted(found, key=lambda number: (-found[number], number))

    def ready(self) -> list[int]:
        """Return the jobs that wait outside although their users may run more, in the order of the queue."""
        found: list[int] = []
        for uid, outside in self._outside.items():
            if (room := self._most - len(self._inside.get(uid, {}))) > 0:
                first = nsmallest(room, ((-priority, number) for number, priority in outside.items()))
                found += [number for _, number in first]
        return found
