# SPDX-License-Identifier: Apache-2.0
"""Lengthen the time limits of Slurm's jobs by what they lose, from the agent of the first node of each job.

Slurm counts limits in minutes, and root of any node may change them. Each change covers at least a twentieth of the
limit, so that a job that shares its cores from start to end costs slurmctld some twenty requests, not one a minute.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, cast

from drom.agent.node.lost_time import LostTime

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from drom.agent.node.node import Node
    from drom.agent.observe.log import Log

PERIOD = 1.0
"""Seconds between two looks at the jobs."""
LOOK = 0.02
"""Seconds between two looks at a command that runs."""
SPARE = 5.0
"""Seconds that a job may have lost before its limit is changed. Slurm itself ends jobs up to half a minute late."""
PAUSE = 60.0
"""Seconds until a job is tried again after a failure."""
LATER = 600.0
"""Seconds until a job without a limit, or with another first node, is looked at again: it may have been requeued."""
TIMEOUT = 30.0
"""Seconds after which a command that has not ended is killed."""
_MOST_JOBS = 4096
_MOST_OUTPUT = 1 << 16


class SlurmError(DromError):
    """Raised when a command of Slurm fails; the message says why."""


@dataclass(slots=True)
class _Limit:
    """The minutes that one job has been `given`, and its limit in minutes after that."""

    given: int = 0
    minutes: int | None = None
    retry_at: float = 0.0


class SlurmLimits:
    """Periodic work of an agent: measures what jobs lose, and runs Slurm's commands, one at a time.

    `host` is the name of this node in Slurm.
    """

    def __init__(self, node: Node, log: Log, host: str = "") -> None:
        self._node = node
        self._log = log
        self._host = host or socket.gethostname().partition(".")[0]
        self._lost = LostTime()
        self._limits: dict[str, _Limit] = {}
        self._current: tuple[str, Generator[tuple[str, ...], str, None], _Command] | None = None
        self._next = 0.0

    def next_due(self) -> float | None:
        """Return when to look at the command that runs; None if none does: the agent's loop turns each second."""
        return self._next if self._current else None

    def run(self, now: float) -> None:
        """Measure what is lost, and start or finish a command if that is due. Failures are logged and tried again."""
        self._lost.update(self._node.plan, now)
        if now < self._next:
            return
        self._forget()
        if self._current and self._current[2].has_ended(now):
            (name, steps, command), self._current = self._current, None
            self._step(name, steps, command, now)
        if not self._current and (due := next(self._due(now), None)):
            self._step(due, self._lengthen(due, now), None, now)
        self._next = now + (LOOK if self._current else PERIOD)

    def _due(self, now: float) -> Iterator[str]:
        """Yield the jobs whose limits do not cover what they have lost."""
        for name, lost in self._lost.seconds.items():
            limit = self._limits.setdefault(name, _Limit())
            if lost - SPARE > 60 * limit.given and now >= limit.retry_at:
                yield name

    def close(self) -> None:
        """Kill the command that runs, if any."""
        if self._current:
            self._current[2].kill()
            self._current = None

    def _step(
        self, name: str, steps: Generator[tuple[str, ...], str, None], ended: _Command | None, now: float
    ) -> None:
        """Give the output of a command that has ended to `steps`, and start the next one."""
        try:
            self._current = name, steps, _Command(steps.send(ended.output() if ended else None), now)  # type: ignore[arg-type]
        except StopIteration:
            pass
        except SlurmError as error:
            self._limits[name].retry_at = now + PAUSE
            self._log("slurm_failed", job=name, reason=error)

    def _lengthen(self, name: str, now: float) -> Generator[tuple[str, ...], str, None]:
        """Yield the commands that lengthen a job's limit if this node is its first one, and take their outputs."""
        limit, number = self._limits[name], name.partition("-")[2]
        answer = yield ("squeue", "--noheader", "--jobs", number, "--format", "%l %N")
        shown, _, nodes = answer.strip().partition(" ")
        minutes = minutes_of(shown)
        if minutes is None or first_host(nodes) != self._host:
            limit.retry_at = now + LATER
            return
        if limit.minutes is not None and minutes > limit.minutes:  # somebody else has lengthened it meanwhile
            limit.given += minutes - limit.minutes
        limit.minutes = minutes
        missing = -(-(self._lost.seconds[name] - 60 * limit.given) // 60)
        if missing <= 0:
            return
        more = max(int(missing), minutes // 20)
        yield ("scontrol", "update", f"jobid={number}", f"timelimit=+{more}")
        limit.given += more
        limit.minutes = minutes + more
        self._log("slurm_limit", job=name, minutes=f"+{more}", lost_s=round(self._lost.seconds[name], 1))

    def _forget(self) -> None:
        """Forget the jobs that left this node first, where there are very many."""
        here = {job.batch_job for job in self._node.jobs.values()}
        for name in [name for name in self._lost.seconds if name not in here][
            : max(0, len(self._lost.seconds) - _MOST_JOBS)
        ]:
            del self._lost.seconds[name]
            self._limits.pop(name, None)


def minutes_of(limit: str) -> int | None:
    """Return the minutes in a time limit as Slurm writes it, ``1-02:03:00`` or ``5:00``; None if it has no number."""
    match = re.fullmatch(r"(?:(\d{1,6})-)?(?:(\d{1,3}):)?(\d{1,2}):(\d{2})", limit, re.ASCII)
    if not match:
        return None
    days, hours, minutes, _ = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes


def first_host(nodes: str) -> str:
    """Return the first host of a list as Slurm writes it: rack1n01 for ``rack[1-2]n[01-03],login``."""
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", re.match(r"(?:[^,\[]|\[[^]]*\])*", nodes)[0])  # type: ignore[index]


class _Command:
    """A command of Slurm that runs. Its output is read when it has ended: it fits into the pipe, or is too long."""

    def __init__(self, words: tuple[str, ...], now: float) -> None:
        self._name = words[0]
        self._deadline = now + TIMEOUT
        self._is_late = False
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            msg = f"{self._name} cannot be run: {error.strerror}. Install Slurm's commands on this node."
            raise SlurmError(msg) from error

    def has_ended(self, now: float) -> bool:
        """Return whether the command has ended; one that takes too long is killed. Raises nothing."""
        if self._process.poll() is None and now > self._deadline:
            self._is_late = True
            self.kill()
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the command."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def output(self) -> str:
        """Return what the command has written. Raises `SlurmError` if it failed or was killed."""
        with cast("IO[bytes]", self._process.stdout) as pipe:
            os.set_blocking(pipe.fileno(), False)
            text = (pipe.read(_MOST_OUTPUT) or b"").decode("utf-8", "replace").strip()
        if self._is_late:
            msg = f"{self._name} has not answered for {TIMEOUT:g} s: is slurmctld up?"
            raise SlurmError(msg)
        if self._process.returncode:
            last = text.splitlines()[-1] if text else f"exit code {self._process.returncode}"
            msg = f"{self._name}: {last}"
            raise SlurmError(msg)
        return text
