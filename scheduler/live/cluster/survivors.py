# SPDX-License-Identifier: Apache-2.0
"""Jobs that were killed and do not end, as while a process hangs in the kernel, and the nodes that they keep. Pure."""

from __future__ import annotations

import math

PATIENCE = 15.0
"""Seconds after which a job that was killed, and has left none of its nodes since, counts as one that survives that."""


class Survivors:
    """Jobs that are to end. `kill_wait` is the time in seconds from SIGTERM to SIGKILL."""

    def __init__(self, kill_wait: float) -> None:
        self.jobs: set[int] = set()
        """Those that were killed and do not end."""
        self.kept: dict[str, int] = {}
        """Such a job of each node on which none is to start for that reason."""
        self._wait = kill_wait + PATIENCE
        self._dues: dict[int, float] = {}

    @property
    def next_look(self) -> float:
        """When `find` has something to return at the earliest (unix seconds)."""
        return min((due for number, due in self._dues.items() if number not in self.jobs), default=math.inf)

    def ends(self, number: int, now: float) -> None:
        """Record that a job was told to end, or has left one of its nodes since, at `now`."""
        self._dues[number] = now + self._wait

    def has_ended(self, number: int) -> None:
        """Record that a job has left all its nodes."""
        self._dues.pop(number, None)
        self.jobs.discard(number)

    def find(self, now: float) -> list[int]:
        """Return the jobs that survive since the last call."""
        found = [number for number, due in self._dues.items() if due <= now and number not in self.jobs]
        self.jobs.update(found)
        return found
