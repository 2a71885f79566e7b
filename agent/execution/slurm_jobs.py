# SPDX-License-Identifier: Apache-2.0
"""What an agent tells Slurm of the jobs on its node: more time for what they lose, and what they use."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from drom.agent.errors import SlurmError
from drom.agent.execution.slurm_commands import LOOK, SlurmCommands
from drom.agent.execution.slurm_comments import SlurmComments
from drom.agent.execution.slurm_limits import SlurmLimits
from drom.agent.execution.slurm_rows import SlurmNode
from drom.agent.node.batch_use import BatchUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.agent.execution.slurm_commands import Steps
    from drom.agent.node.node import Node
    from drom.agent.observe.log import Log

PERIOD = 1.0
"""Seconds between two looks at the jobs."""
_MOST_JOBS = 4096


class _Errand(Protocol):
    """Something to tell Slurm of jobs, which are named as on this node: slurm-NUMBER."""

    def due(self, now: float) -> Iterator[str]:
        """Yield the jobs of which Slurm is to be told something."""

    def steps(self, name: str, now: float) -> Steps:
        """Yield the commands that do so."""

    def failed(self, name: str, now: float) -> None:
        """Record that one of them has failed."""

    def forget(self, names: Iterable[str]) -> None:
        """Forget jobs."""


class SlurmJobs:
    """Periodic work of an agent: measures what jobs use and lose, and runs Slurm's commands, one at a time.

    With `limits` time limits are lengthened, and with `comments` admin comments are written. `host` is the name of this
    node in Slurm.
    """

    def __init__(self, node: Node, log: Log, *, limits: bool, comments: bool, host: str = "") -> None:
        self._node = node
        self._log = log
        self._use = BatchUse()
        self._commands = SlurmCommands()
        here = SlurmNode(host or socket.gethostname().partition(".")[0], log)
        self._errands: list[_Errand] = []
        if limits:
            self._errands.append(SlurmLimits(self._use, log, here))
        if comments:
            self._errands.append(SlurmComments(self._use, log, here))
        self._running: tuple[_Errand, str] | None = None
        self._next = 0.0
        self._measured = -LOOK
        """When use was measured last: turns of the loop may be many more, as where a user sends many orders."""

    def next_due(self) -> float | None:
        """Return when to look at the command that runs; None if none does: the agent's loop turns each second."""
        return self._next if self._commands.is_busy else None

    def run(self, now: float) -> None:
        """Measure, and start or finish a command if that is due. Failures are logged and tried again."""
        if not self._measured <= now < self._measured + LOOK:
            self._use.update(self._node.plan, now)
            self._measured = now
        if now < self._next:
            return
        with self._failures_logged(now):
            self._commands.run(now)
        if not self._commands.is_busy:  # no steps go on with a job that is forgotten
            self._forget()
        if not self._commands.is_busy and (due := next(self._due(now), None)):
            self._running = errand, name = due
            with self._failures_logged(now):
                self._commands.start(errand.steps(name, now), now)
        self._next = now + (LOOK if self._commands.is_busy else PERIOD)

    def _due(self, now: float) -> Iterator[tuple[_Errand, str]]:
        return ((errand, name) for errand in self._errands for name in errand.due(now))

    @contextmanager
    def _failures_logged(self, now: float) -> Iterator[None]:
        try:
            yield
        except SlurmError as error:
            if self._running:
                errand, name = self._running
                errand.failed(name, now)
                self._log("slurm_failed", job=name, reason=error)

    def close(self) -> None:
        """Kill the command that runs, if any."""
        self._commands.close()

    def _forget(self) -> None:
        """Forget the jobs that left this node first, where there are very many."""
        gone = [name for name in self._use.total if name not in self._use.present]
        if names := gone[: max(0, len(self._use.total) - _MOST_JOBS)]:
            self._use.forget(names)
            for errand in self._errands:
                errand.forget(names)
