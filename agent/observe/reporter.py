# SPDX-License-Identifier: Apache-2.0
"""Reports events of the node three times: as a log line, as a count for metrics, as a signal to subscribers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.observe.counters import Counters
from drom.agent.observe.cpu_history import HourRecorder
from drom.agent.observe.cpu_seconds import Allocated

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.enforcement.affinity import Result
    from drom.agent.model.jobs import Publish, Settled, Task
    from drom.agent.observe.log import Log


LINES_A_SECOND = 10.0
"""Log lines that users can cause per second, once those available at once are used up."""
REFUSALS_AT_ONCE, LINES_AT_ONCE = 10, 4096
"""Log lines at once about refusals, for all users together, and about arrivals and departures, for each user."""


@dataclass(slots=True)
class TokenBucket:
    """A rate limit (token bucket): at the time `at`, `left` tokens of at most `most` are left; a second adds `rate`.

    `unsaid` counts the requests refused since the last granted one.
    """

    most: int
    at: float
    rate: float = LINES_A_SECOND
    left: float = field(init=False)
    unsaid: int = 0

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self, now: float) -> dict[str, int] | None:
        """Take a token and return a field with the number of requests refused before, if any; None if none is left."""
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            self.unsaid += 1
            return None
        unsaid, self.unsaid = self.unsaid, 0
        self.left -= 1
        return {"unsaid": unsaid} if unsaid else {}


class EventReporter:
    """Reports events; `signal` publishes one about a slot."""

    def __init__(self, log: Log, signal: Callable[[int, dict[str, object]], None]) -> None:
        self.log = log
        self.counters = Counters()
        self.hour = HourRecorder(time.monotonic())
        self.allocated = Allocated()
        self._send = signal
        self._refusals = TokenBucket(REFUSALS_AT_ONCE, time.monotonic())
        self._shares: dict[int, TokenBucket] = {}

    def granted(self, grant: Publish) -> None:
        """Report that a grant has been published."""
        self._signal(grant.task, "granted", grant.task.applied, grant.mask, grant.epoch, reason=grant.reason)

    def started(self, task: Task) -> None:
        """Report that a task has its first grant."""
        self.counters.changes["start", "applied"] += 1
        self._changed("task_started", task, 0, task.granted, reason=task.reason)

    def adopted(self, tasks: list[Task], dead: int) -> None:
        """Report that tasks were taken over with their CPUs from an agent that died; `dead` of them have ended."""
        self.log("adopted", tasks=len(tasks) - dead, dead=dead)
        for task in tasks:
            self._changed("kept", task, task.applied, task.applied, reason=task.reason)

    def done(self, done: Settled) -> None:
        """Report that a grant has been applied."""
        took = done.at - done.asked
        self.counters.changes[done.action, done.outcome] += 1
        self.counters.changing.observe(took)
        seconds, about = round(took, 6), {"reason": done.task.reason, "action": done.action}
        self._changed(done.outcome, done.task, done.old, done.new, **about, took_seconds=seconds)
        self._signal(done.task, done.outcome, done.old, done.new, done.epoch, action=done.action, seconds=seconds)

    def ended(self, task: Task, reason: str) -> None:
        """Report that a task is over: it exited, or left before it started."""
        self.counters.reaped[reason] += 1
        self._changed("task_ended", task, task.applied, 0, reason=reason)
        self._signal(task, "ended", task.granted, 0, task.epoch, reason=reason)

    def confined(self, task: Task, threads: int) -> None:
        """Report that threads outside the CPUs that their program reported to keep were moved."""
        self.counters.enforcements += 1
        self._log("confined", task, threads=threads)

    def repaired(self, task: Task, threads: int, *, again: bool) -> None:
        """Count threads moved back after their masks were rewritten; log it unless `again`: also in the last round."""
        self.counters.repairs += threads
        if not again:
            self._log("repaired", task, threads=threads)

    def enforced(self) -> None:
        """Count that the agent has bound a program that should have bound itself."""
        self.counters.enforcements += 1

    def bind_failed(self, task: Task, result: Result) -> None:
        """Report that threads of a task could not be bound."""
        self.counters.changes["keep", "failed"] += 1
        self._log("bind_failed", task, denied=result.denied, invalid=result.invalid, settled=result.settled)

    def cpuset_failed(self, task: Task, fault: str) -> None:
        """Report that the control group of a task could not be created or changed: only affinity binds it."""
        self.counters.changes["fence", "failed"] += 1
        self._log("cgroup_failed", task, reason=fault)

    def refused(self, sentence: str) -> None:
        """Count a refused registration, and log it within the rate limit of refusals."""
        self.counters.refusals += 1
        self._say(self._refusals, "request_refused", reason=sentence)

    def user_event(self, user: int, event: str, **fields: object) -> None:
        """Log an event that a user has caused, such as an arrival, within the rate limit of that user."""
        share = self._shares.setdefault(user, TokenBucket(LINES_AT_ONCE, time.monotonic()))
        self._say(share, event, **fields)

    def _say(self, share: TokenBucket, event: str, **fields: object) -> None:
        if (unsaid := share.take(time.monotonic())) is not None:
            self.log(event, **fields, **unsaid)

    def _changed(self, event: str, task: Task, old: int, new: int, **fields: object) -> None:
        """Log that a task's CPUs were `old` and are `new`: each change is one line, and no other line has both."""
        now, count = time.monotonic(), new.bit_count()
        self.hour.has(task.slot, task.job, count, now)
        self.allocated.has(task.slot, task.job, task.arrival.uid, count, now)
        self._log(event, task, old=format_cpulist(old), new=format_cpulist(new), **fields)

    def _log(self, event: str, task: Task, **fields: object) -> None:
        self.log(event, job=task.job, task=task.rank, pid=task.arrival.pid, **fields)

    def _signal(self, task: Task, event: str, old: int, new: int, epoch: int, **more: object) -> None:
        about = {"job": task.job, "task": task.rank, "pid": task.arrival.pid, "epoch": epoch}
        cpus = {"old": format_cpulist(old), "new": format_cpulist(new)}
        self._send(task.slot, {"event": event, "time": time.time(), **about, **cpus, **more})
