# SPDX-License-Identifier: Apache-2.0
"""What happened on the node, told three times: a line in the log, a count for metrics, a signal for who listens."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.metrics import Histogram
from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.affinity import Result
    from agent.jobs import Done, Publish, Task
    from agent.log import Log


@dataclass(slots=True)
class Counters:
    """What has happened since the agent started."""

    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    reaped: Counter[str] = field(default_factory=Counter)
    enforcements: int = 0
    refusals: int = 0
    changing: Histogram = field(default_factory=lambda: Histogram(1e-4, 1e-3, 5e-3, 0.02, 0.1, 0.5, 1.0, 5.0))
    placing: Histogram = field(default_factory=lambda: Histogram(1e-5, 5e-5, 2e-4, 1e-3, 5e-3, 0.02, 0.1))


class Report:
    """Tells of events; `signal` publishes one about a slot."""

    def __init__(self, log: Log, signal: Callable[[int, dict[str, object]], None]) -> None:
        self.log = log
        self.counters = Counters()
        self._send = signal

    def granted(self, grant: Publish) -> None:
        """A grant has been published."""
        self._signal(grant.task, "granted", grant.task.applied, grant.mask, grant.epoch, reason=grant.reason)

    def started(self, task: Task) -> None:
        """A task has its first grant."""
        self.counters.changes["start", "applied"] += 1
        self._log("started", task, cpus=format_cpulist(task.granted))

    def done(self, done: Done) -> None:
        """A grant is in force."""
        took = done.at - done.asked
        self.counters.changes[done.action, done.outcome] += 1
        self.counters.changing.observe(took)
        old, new, seconds = format_cpulist(done.old), format_cpulist(done.new), round(took, 6)
        reason = done.task.reason
        self._log(done.outcome, done.task, action=done.action, old=old, new=new, reason=reason, took_seconds=seconds)
        self._signal(done.task, done.outcome, done.old, done.new, done.epoch, action=done.action, seconds=seconds)

    def ended(self, task: Task, reason: str) -> None:
        """A task is over: it exited, or left before it started."""
        self.counters.reaped[reason] += 1
        self._log("ended", task, reason=reason)
        self._signal(task, "ended", task.granted, 0, task.epoch, reason=reason)

    def confined(self, task: Task, threads: int) -> None:
        """Threads were found outside the CPUs that their program said it keeps, and were moved."""
        self.counters.enforcements += 1
        self._log("confined", task, threads=threads)

    def enforced(self) -> None:
        """The agent has bound a program that was to bind itself."""
        self.counters.enforcements += 1

    def bind_failed(self, task: Task, result: Result) -> None:
        """Threads of a task could not be bound."""
        self.counters.changes["keep", "failed"] += 1
        self._log("bind failed", task, denied=result.denied, invalid=result.invalid, settled=result.settled)

    def refused(self, sentence: str) -> None:
        """A request at the door was refused."""
        self.counters.refusals += 1
        self.log("refused", reason=sentence)

    def _log(self, event: str, task: Task, **fields: object) -> None:
        self.log(event, job=task.job, pid=task.arrival.pid, **fields)

    def _signal(self, task: Task, event: str, old: int, new: int, epoch: int, **more: object) -> None:
        about = {"job": task.job, "task": task.rank, "pid": task.arrival.pid, "epoch": epoch}
        cpus = {"old": format_cpulist(old), "new": format_cpulist(new)}
        self._send(task.slot, {"event": event, "time": time.time(), **about, **cpus, **more})
