# SPDX-License-Identifier: Apache-2.0
"""Jobs that were killed and do not end, for example as a process hangs in the kernel, and the nodes that they occupy.

Pure.
"""

from __future__ import annotations

import math

PATIENCE = 15.0
"""Seconds after which a killed job that has left none of its nodes since counts as a survivor."""


class Survivors:
    """The jobs that are being ended. `kill_wait` is the time in seconds from SIGTERM to SIGKILL."""

    def __init__(self, kill_wait: float) -> None:
        self.jobs: set[int] = set()
        """The jobs that were killed and do not end."""
        self.kept: dict[str, int] = {}
        """The nodes on which no job may start for that reason, each with one such job."""
        self._wait = kill_wait + PATIENCE
        self._dues: dict[int, float] = {}

    @property
    def next_look(self) -> float:
        """The earliest time at which `find` has a job to return (unix seconds)."""
        return min((due for number, due in self._dues.items() if number not in self.jobs), default=math.inf)

    def ends(self, number: int, now: float) -> None:
        """Record that a job was requested to end, or has left one of its nodes since, at `now`."""
        self._dues[number] = now + self._wait

    def has_ended(self, number: int) -> None:
        """Record that a job has left all its nodes."""
        self._dues.pop(number, None)
        self.jobs.discard(number)

    def find(self, now: float) -> list[int]:
        """Return the jobs that have become survivors since the last call."""
        found = [number for number, due in self._dues.items() if due <= now and number not in self.jobs]
        self.jobs.update(found)
        return found
