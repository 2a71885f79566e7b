# SPDX-License-Identifier: Apache-2.0
"""What happened on the node, told three times: a line in the log, a count for metrics, a signal for who listens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.observe.counters import Counters
from drom.agent.observe.cpu_history import Hour
from drom.agent.observe.cpu_seconds import Allocated

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.enforcement.affinity import Result
    from drom.agent.model.jobs import Done, Publish, Task
    from drom.agent.observe.log import Log


LINES_A_SECOND = 10.0
"""Lines of the log that people can cause in each second, once those that they have at once are used up."""
REFUSALS_AT_ONCE, LINES_AT_ONCE = 10, 4096
"""Lines at once about refusals, of all users together, and about who comes and goes, of each user."""


@dataclass(slots=True)
class Share:
    """What somebody may cause: at a time `at` so much is `left` of the `most` there can be; some was not got.

    In a second there are `rate` more.
    """

    most: int
    at: float
    rate: float = LINES_A_SECOND
    left: float = field(init=False)
    unsaid: int = 0

    def __post_init__(self) -> None:
        self.left = self.most

    def take(self, now: float) -> dict[str, int] | None:
        """Take a line, if there is one left, and return what it is to tell of those that were not got before it."""
        self.left = min(self.most, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            self.unsaid += 1
            return None
        unsaid, self.unsaid = self.unsaid, 0
        self.left -= 1
        return {"unsaid": unsaid} if unsaid else {}


class Report:
    """Tells of events; `signal` publishes one about a slot."""

    def __init__(self, log: Log, signal: Callable[[int, dict[str, object]], None]) -> None:
        self.log = log
        self.counters = Counters()
        self.hour = Hour(time.monotonic())
        self.allocated = Allocated()
        self._send = signal
        self._refusals = Share(REFUSALS_AT_ONCE, time.monotonic())
        self._shares: dict[int, Share] = {}

    def granted(self, grant: Publish) -> None:
        """A grant has been published."""
        self._signal(grant.task, "granted", grant.task.applied, grant.mask, grant.epoch, reason=grant.reason)

    def started(self, task: Task) -> None:
        """A task has its first grant."""
        self.counters.changes["start", "applied"] += 1
        self._changed("task_started", task, 0, task.granted, reason=task.reason)

    def adopted(self, tasks: list[Task], dead: int) -> None:
        """Tasks have been taken over from an agent that died, with the CPUs they have; so many are dead by now."""
        self.log("adopted", tasks=len(tasks) - dead, dead=dead)
        for task in tasks:
            self._changed("kept", task, task.applied, task.applied, reason=task.reason)

    def done(self, done: Done) -> None:
        """A grant is in force."""
        took = done.at - done.asked
        self.counters.changes[done.action, done.outcome] += 1
        self.counters.changing.observe(took)
        seconds, about = round(took, 6), {"reason": done.task.reason, "action": done.action}
        self._changed(done.outcome, done.task, done.old, done.new, **about, took_seconds=seconds)
        self._signal(done.task, done.outcome, done.old, done.new, done.epoch, action=done.action, seconds=seconds)

    def ended(self, task: Task, reason: str) -> None:
        """A task is over: it exited, or left before it started."""
        self.counters.reaped[reason] += 1
        self._changed("task_ended", task, task.applied, 0, reason=reason)
        self._signal(task, "ended", task.granted, 0, task.epoch, reason=reason)

    def confined(self, task: Task, threads: int) -> None:
        """Threads were found outside the CPUs that their program said it keeps, and were moved."""
        self.counters.enforcements += 1
        self._log("confined", task, threads=threads)

    def repaired(self, task: Task, threads: int, *, again: bool) -> None:
        """Threads whose masks somebody had rewritten were moved back; `again`: as in the last round, which was told."""
        self.counters.repairs += threads
        if not again:
            self._log("repaired", task, threads=threads)

    def enforced(self) -> None:
        """The agent has bound a program that was to bind itself."""
        self.counters.enforcements += 1

    def bind_failed(self, task: Task, result: Result) -> None:
        """Threads of a task could not be bound."""
        self.counters.changes["keep", "failed"] += 1
        self._log("bind_failed", task, denied=result.denied, invalid=result.invalid, settled=result.settled)

    def unfenced(self, task: Task, fault: str) -> None:
        """The control group of a task could not be made or changed: affinity alone binds it."""
        self.counters.changes["fence", "failed"] += 1
        self._log("cgroup_failed", task, reason=fault)

    def refused(self, sentence: str) -> None:
        """A request at the door was refused: counted always, and logged as far as nobody fills the log with it."""
        self.counters.refusals += 1
        self._say(self._refusals, "request_refused", reason=sentence)

    def visited(self, user: int, event: str, **fields: object) -> None:
        """Log what a user has caused, such as programs that come, as far as he does not fill the log with that."""
        share = self._shares.setdefault(user, Share(LINES_AT_ONCE, time.monotonic()))
        self._say(share, event, **fields)

    def _say(self, share: Share, event: str, **fields: object) -> None:
        if (unsaid := share.take(time.monotonic())) is not None:
            self.log(event, **fields, **unsaid)

    def _changed(self, event: str, task: Task, old: int, new: int, **fields: object) -> None:
        """Log that a task's CPUs were `old` and are `new`: every change is one line, and no other has both."""
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
