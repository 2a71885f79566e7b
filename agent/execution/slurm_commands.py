# SPDX-License-Identifier: Apache-2.0
"""Run Slurm's commands beside the agent's loop, which never waits for them: one at a time, each for a bounded time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, cast

from drom.agent.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK = 0.02
"""Seconds between two looks at a command that runs."""
TIMEOUT = 30.0
"""Seconds after which a command that has not ended is killed."""
_MOST_OUTPUT = 4 << 20
"""The longest output: an array of which some thousand tasks run."""

Steps = Generator[tuple[str, ...], str, None]
"""Yields commands as words, and receives what each has written, or `SlurmError` if it failed."""


class SlurmCommands:
    """Runs the commands of one `Steps` after the other."""

    def __init__(self) -> None:
        self._current: tuple[Steps, _Command] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a command runs."""
        return self._current is not None

    def start(self, steps: Steps, now: float) -> None:
        """Start the first command of some steps, while no other one runs. Raises `SlurmError`."""
        self._begin(steps, partial(next, steps), now)

    def run(self, now: float) -> None:
        """Go on to the next command if one has ended. Raises `SlurmError` if it failed, unless its steps take that."""
        if self._current and self._current[1].has_ended(now):
            (steps, command), self._current = self._current, None
            try:
                output = command.output()
            except SlurmError as error:
                self._begin(steps, partial(steps.throw, error), now)
            else:
                self._begin(steps, partial(steps.send, output), now)

    def close(self) -> None:
        """Kill the command that runs, if any."""
        if self._current:
            self._current[1].close()
            self._current = None

    def _begin(self, steps: Steps, words: Callable[[], tuple[str, ...]], now: float) -> None:
        with suppress(StopIteration):
            self._current = steps, _Command(words(), now)


class _Command:
    """A command of Slurm that runs. Its output is read at each look."""

    def __init__(self, words: tuple[str, ...], now: float) -> None:
        self._name = words[0]
        self._deadline = now + TIMEOUT
        self._is_late = self._is_long = False
        self._text = bytearray()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=os.environ | {"TZ": "UTC", "LC_ALL": "C"},
                start_new_session=True,
            )
        except OSError as error:
            msg = f"{self._name} cannot be run: {error.strerror}. Install Slurm's commands on this node."
            raise SlurmError(msg) from error
        os.set_blocking(cast("IO[bytes]", self._process.stdout).fileno(), False)

    def has_ended(self, now: float) -> bool:
        """Return whether the command has ended; one that takes or writes too long is killed. Raises nothing."""
        has_ended = self._process.poll() is not None
        self._read()
        self._is_long = len(self._text) > _MOST_OUTPUT
        self._is_late = self._is_late or (not has_ended and now > self._deadline)
        if not has_ended and (self._is_late or self._is_long):
            self.kill()
            return self._process.poll() is not None
        return has_ended

    def kill(self) -> None:
        """End the command. It may take long, as where a file system hangs, and is not waited for."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the command, and wait a moment for that."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        cast("IO[bytes]", self._process.stdout).close()

    def _read(self) -> None:
        pipe = cast("IO[bytes]", self._process.stdout)
        with suppress(BlockingIOError):
            while len(self._text) <= _MOST_OUTPUT and (part := os.read(pipe.fileno(), 1 << 16)):
                self._text += part

    def output(self) -> str:
        """Return what the command has written. Raises `SlurmError` if it failed or was killed."""
        cast("IO[bytes]", self._process.stdout).close()
        text = self._text.decode("utf-8", "replace").strip()
        if self._is_late:
            msg = f"{self._name} has not answered for {TIMEOUT:g} s: is slurmctld up?"
            raise SlurmError(msg)
        if self._is_long:
            msg = f"{self._name} writes more than {_MOST_OUTPUT >> 20} MiB"
            raise SlurmError(msg)
        if self._process.returncode:
            last = text.splitlines()[-1] if text else f"exit code {self._process.returncode}"
            msg = f"{self._name}: {last}"
            raise SlurmError(msg)
        return text
