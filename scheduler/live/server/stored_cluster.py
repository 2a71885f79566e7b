# SPDX-License-Identifier: Apache-2.0
"""A cluster that stores its changes in the queue before it sends anything that follows from them.

While the queue cannot be written nothing new starts: users' orders are refused, and agents' reports are not
acknowledged, so that agents repeat them.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError, NotYetError
from drom.agent.text import duration
from drom.scheduler.live.cluster.cluster import Cluster
from drom.scheduler.live.cluster.jobs import PENDING
from drom.scheduler.live.cluster.spec import MOST_AT_ONCE
from drom.scheduler.live.server.authorization import is_operator
from drom.scheduler.live.server.store import UnreadableError, UnwritableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.agent.execution.protocol import ToAgent
    from drom.agent.observe.log import Log
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.jobs import Job, User
    from drom.scheduler.live.cluster.settings import Settings
    from drom.scheduler.live.server.metrics import Counts
    from drom.scheduler.live.server.store import Store

UNWRITABLE = "the queue cannot be written now, so nothing was changed"
UNCERTAIN = "the queue cannot be written now: see drom queue later, in case that this was stored without an answer"
_AHEAD = (
    "the last thing in the queue happened {} from now by this machine's clock, and times continue from there: set "
    "the clock if it is wrong; otherwise let the jobs end and start with another queue (--state)."
)
RETRY = 1.0
"""Seconds until writing the queue is tried again after a failure."""
TIDY = 600.0
"""Seconds between searches for old jobs."""


class Clock:
    """The scheduler's time: unix seconds that never decrease, whatever happens to the machine's clock.

    It counts on from the wall clock at its start, or from `latest` if that is later.
    """

    def __init__(self, latest: float = 0.0) -> None:
        now = time.time()
        self.ahead = max(0.0, latest - now)
        """The seconds by which it was ahead of the wall clock at its start."""
        self._offset = now + self.ahead - time.monotonic()

    def __call__(self) -> float:
        """Return the time."""
        return time.monotonic() + self._offset


class StoredCluster:
    """The `cluster` of a `store`. `send` is called with the name of a node and a message for its agent."""

    def __init__(
        self,
        store: Store,
        policy: Policy,
        settings: Settings,
        log: Log,
        *,
        counts: Counts,
        send: Callable[[str, ToAgent], None],
    ) -> None:
        self.store, self.settings = store, settings
        self.clock = Clock(store.latest)
        if self.clock.ahead > settings.skew:
            log("clock_ahead", reason=_AHEAD.format(duration(self.clock.ahead)))
        self.stuck = 0.0
        """When the queue may be written again (CLOCK_MONOTONIC); 0 while it can be."""
        self._policy, self._log, self._counts, self._send = policy, log, counts, send
        self._failure: UnwritableError | None = None
        """Why it could not be written the last time that this failed."""
        self._warned = ""
        """The last warning that was logged."""
        self._tidy_again = self._forget_again = 0.0
        self.cluster = self._empty()

    def take_over(self) -> None:
        """Go on from what another scheduler has stored."""
        self.store.take_over()
        self.clock = Clock(max(self.store.latest, self.clock()))
        self.stuck, self._counts.stuck = 0.0, False
        self.restore()

    def restore(self) -> Cluster:
        """Make the cluster anew as the queue says, and return it."""
        cluster = self._empty()
        number = max(self.store.next_number, self.settings.first_job)
        cluster.restore(self.store.nodes(), self.store.living(), number, self.clock())
        self.cluster = cluster
        return cluster

    def _empty(self) -> Cluster:
        """Return a cluster without jobs, with the stored usage of users if they have shares."""
        half_life = self.settings.half_life
        usage = self.store.usage(half_life) if half_life else None
        return Cluster(self._policy, self.settings, self._past, usage, self._former)

    def flush(self, *, urgent: bool = False) -> bool:
        """Store all changes, then send the messages that follow from them; return whether that was possible.

        After a failure it is not tried again within `RETRY`, unless it is `urgent`.
        """
        outbox = self.cluster.outbox
        if self.stuck > time.monotonic() and not urgent:
            return False
        try:
            self.store.check()
            if outbox.has_changes:
                self.store.save(outbox, self.cluster.usage)
            elif self.stuck:
                self.store.try_writing()
        except UnwritableError as error:
            self._note_unwritable(error)
            return False
        if self.stuck:
            self._log("queue_unstuck")
        self.stuck, self._counts.stuck = 0.0, False
        self._counts.take(outbox.entries)
        for entry in outbox.entries:
            self._log(f"job_{entry.what}", job=entry.job, **entry.detail)
        for event, fields in outbox.warnings:
            self._log(event, **fields)
        messages = list(outbox.messages)
        outbox.clear()
        for name, message in messages:
            self._send(name, message)
        return True

    def _note_unwritable(self, error: UnwritableError) -> None:
        """Record that the queue cannot be written now."""
        self._failure = error
        if not self.stuck:
            self._log("queue_stuck", reason=str(error))
        self.stuck, self._counts.stuck = time.monotonic() + RETRY, True

    def must_flush(self) -> None:
        """Flush the changes of an order that has been carried out. Raises ControlError if that was not possible."""
        is_tried = self.stuck <= time.monotonic()
        if not self.flush():
            raise self._refusal(is_tried=is_tried)

    def _refusal(self, *, is_tried: bool) -> ControlError:
        """Return the refusal of an order while the queue cannot be written; `is_tried`: writing the order was tried.

        It is NotYetError if the queue has surely nothing of the order, and another scheduler may be able to write it.
        """
        assert self._failure  # noqa: S101 - it is noted before
        if is_tried and self._failure.is_uncertain:
            return ControlError(f"{UNCERTAIN}: {self._failure.why}.")
        kind = NotYetError if self._failure.is_shared else ControlError
        return kind(f"{UNWRITABLE}: {self._failure.why}.")

    @contextlib.contextmanager
    def written(self, user: User) -> Iterator[None]:
        """Run a block that changes stored state, and store the changes before its order is answered.

        For root and the scheduler's own user that works on a full disk, too. Raises ControlError if the queue cannot be
        written.
        """
        urgent = is_operator(user)
        with self.store.urgently() if urgent else contextlib.nullcontext():
            if not self.flush(urgent=urgent):
                raise self._refusal(is_tried=False)
            try:
                self.store.try_writing()
            except UnwritableError as error:
                self._note_unwritable(error)
                raise self._refusal(is_tried=False) from error
            yield
            if not self.flush(urgent=urgent):
                raise ControlError("it was done, but cannot be stored now: it is lost if the scheduler ends before.")

    def tidy(self) -> None:
        """Drop jobs that are over from memory; delete jobs that were over long ago from the queue, some at a time."""
        now = time.monotonic()
        if now >= self._forget_again:
            self._forget_again = now + RETRY
            self.cluster.forget_final(self.settings.keep)
        if self.stuck or now < self._tidy_again:
            return
        try:
            gone = self._forget()
        except UnreadableError as error:
            self.warn(str(error))
            self._tidy_again = time.monotonic() + TIDY
            return
        except UnwritableError as error:
            self._note_unwritable(error)
            return
        self.cluster.forget(gone)
        self._tidy_again = time.monotonic() + (RETRY if gone else TIDY)

    def _forget(self) -> list[int]:
        """Delete some jobs that were over long ago, or else some of a user with too many; return them."""
        needed = self.cluster.needed()
        if gone := self.store.forget(self.clock() - self.settings.history, needed, MOST_AT_ONCE):
            return gone
        return self.store.forget_surplus(self.settings.keep_jobs, needed, MOST_AT_ONCE)

    def _past(self, number: int) -> str | None:
        """Return the final state of a job, None if it has none; PENDING if it cannot be read: its dependents wait."""
        try:
            return self.store.state(number)
        except UnreadableError as error:
            self.warn(str(error))
            return PENDING

    def _former(self, number: int) -> Job | None:
        """Return a job that is over; None if there is none, or if it cannot be read."""
        try:
            return self.store.job(number)
        except UnreadableError as error:
            self.warn(str(error))
            return None

    def warn(self, text: str) -> None:
        """Log a warning, unless it is the same as the last one."""
        if text != self._warned:
            self._log("queue_damaged", reason=text)
        self._warned = text
