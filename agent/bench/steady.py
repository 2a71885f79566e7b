# SPDX-License-Identifier: Apache-2.0
"""Measures how much slower one program is than another, on a machine under varying disturbances.

Both programs exist throughout and alternate, with turns of a few hundredths of a second: a longer disturbance affects
both. The other program is stopped meanwhile, so that its threads do not spin.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import statistics
import subprocess
from typing import TYPE_CHECKING

from drom.agent.bench.publish import PATIENCE, percentile
from drom.agent.errors import ControlError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RESAMPLES = 2000


class Program:
    """A running program that prints the seconds of each of its bursts of work, one a line."""

    def __init__(self, pid: int, out: int) -> None:
        self.pid = pid
        self._out = out
        self._lines: list[bytes] = []

    def turn(self) -> float:
        """Continue the program for one burst; return the seconds that this took."""
        self._forget()
        os.kill(self.pid, signal.SIGCONT)
        self._line()  # of the burst in which it was stopped
        took = float(self._line())
        self.stop()
        return took

    def stop(self) -> None:
        """Stop the program until its next turn."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _forget(self) -> None:
        self._lines.clear()
        while select.select([self._out], [], [], 0)[0]:
            self._read()

    def _line(self) -> bytes:
        while not self._lines:
            self._lines += self._read()
        return self._lines.pop(0)

    def _read(self) -> list[bytes]:
        said = os.read(self._out, 1 << 16) if select.select([self._out], [], [], PATIENCE)[0] else b""
        if not said:
            raise ControlError("a program of the benchmark has ended or stands still: run it again.")
        return said.splitlines()


@contextlib.contextmanager
def running(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Program]:
    """Run a program for the length of a block."""
    said, says = os.pipe()
    try:
        with subprocess.Popen(command, env=environment, stdout=says) as process:
            os.close(says)
            try:
                yield Program(process.pid, said)
            finally:
                _end(process)
    finally:
        os.close(said)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program with SIGTERM, because LLVM's runtime leaves a file in /dev/shm if killed; SIGKILL if it hangs."""
    process.terminate()
    process.send_signal(signal.SIGCONT)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()


def turns(one: Program, other: Program, pairs: int) -> list[tuple[float, float]]:
    """Return the seconds of `one` and of `other` for each pair of turns; each is first in every second pair."""
    found = []
    for pair in range(pairs):
        took = {program: program.turn() for program in ((one, other) if pair % 2 else (other, one))}
        found.append((took[one], took[other]))
    return found


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by the percentile bootstrap (seeded: equal values, equal result)."""
    chance = random.Random(0)  # noqa: S311 - no secret
    medians = [statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    return percentile(medians, 2.5), percentile(medians, 97.5)
