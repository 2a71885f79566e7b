# SPDX-License-Identifier: Apache-2.0
"""A planner in a process of its own, which the loop of the scheduler never waits for.

A thread writes questions to it and reads its answers; `fd` is readable when there is one. The process is started at
once, as its compilation takes a while, and one that has ended is started again for the next question.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, cast

from drom.agent.system import python_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from drom.agent.observe.log import Log
    from drom.scheduler.allocation.snapshot import PlannedStarts, Snapshot

WORKER = "drom.scheduler.live.server.planner_worker"


class PlannerProcess:
    """A planner of policy `cp` with these parameters; its solver stops after `seconds` at the latest."""

    def __init__(self, options: Mapping[str, float], seconds: float, log: Log) -> None:
        self._words = [f"{name}={value!r}" for name, value in {**options, "seconds": seconds}.items()]
        self._log = log
        self._asked: SimpleQueue[Snapshot | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Snapshot, PlannedStarts | None]] = SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The pid of the planner's process; 0 before the first question."""
        return self._process.pid if self._process else 0

    def ask(self, snapshot: Snapshot) -> None:
        """Send a snapshot to the planner, which plans those sent before first."""
        self._asked.put(snapshot)

    def take(self) -> list[tuple[Snapshot, PlannedStarts | None]]:
        """Return the answers that have come; None where the planner has failed."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
        return [self._answers.get() for _ in range(self._answers.qsize())]

    def close(self) -> None:
        """End the process, and the thread."""
        self._is_over = True
        self._asked.put(None)
        if self._process:
            self._process.kill()
        self._thread.join()
        os.close(self.fd)
        os.close(self._write)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self._start()
        while snapshot := self._asked.get():
            answer = None
            try:
                answer = self._planned(snapshot)
            except (OSError, EOFError, pickle.UnpicklingError) as error:
                if not self._is_over:
                    reason = f"a rule decides until it runs again: {str(error) or 'it has ended'}."
                    self._log("planner_failed", reason=reason)
                self._end()
            self._answers.put((snapshot, answer))
            with contextlib.suppress(BlockingIOError):  # it is readable already
                os.write(self._write, b"x")
        self._end()

    def _planned(self, snapshot: Snapshot) -> PlannedStarts:
        """Return the answer of the process, which is started first if there is none. Raises OSError or EOFError."""
        to, back = _pipes(self._process or self._start())
        pickle.dump(snapshot, to)
        to.flush()
        answer: PlannedStarts = pickle.load(back)  # noqa: S301 - of a process of our own
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        words = python_command.module(WORKER, *self._words)
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/")
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            for pipe in _pipes(process):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.wait()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """Return the input and the output of a process that was started with both."""
    return cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
