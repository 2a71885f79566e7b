# SPDX-License-Identifier: Apache-2.0
"""Which nodes had no room for the images of fillers, and when these are tried again. Pure.

A node whose image store, or the quota of the job's user there, is too small for the image of one filler may have room
for others: it is avoided by that job alone. Where no filler can start in a container, all of them avoid the node.
"""

from __future__ import annotations

import heapq
import math

ALL = 0
"""Stands for all fillers in place of a job's number."""
FIRST_PAUSE, LONGEST_PAUSE = 60.0, 960.0
"""Seconds until a node is tried again, and their upper bound; they double each time."""


class ImageRoom:
    """The nodes that jobs avoid, for growing pauses. Jobs are identified by their numbers, nodes by their names."""

    def __init__(self) -> None:
        self._pauses: dict[int, dict[str, float]] = {}
        """The last pause of each job and node since the job last started there, or on any node."""
        self._until: dict[tuple[int, str], float] = {}
        self._order: list[tuple[float, int, str]] = []
        """When pauses end, as a heap; those that `forget` has ended are still in it."""

    def lacking(self, job: int) -> list[str]:
        """Return the nodes that a job avoids."""
        return [node for node in self._pauses.get(job, ()) if (job, node) in self._until]

    def avoid(self, job: int, node: str, now: float) -> None:
        """Record that a node has no room for a job, which avoids it for a while."""
        pauses = self._pauses.setdefault(job, {})
        pauses[node] = min(2 * pauses.get(node, FIRST_PAUSE / 2), LONGEST_PAUSE)
        self._until[job, node] = now + pauses[node]
        heapq.heappush(self._order, (now + pauses[node], job, node))

    def ended(self, now: float) -> list[tuple[int, str]]:
        """End the pauses that are over; return the jobs, or `ALL`, and the nodes that they no longer avoid."""
        found = []
        while self._order and self._order[0][0] <= now:
            until, job, node = heapq.heappop(self._order)
            if self._until.get((job, node)) == until:
                del self._until[job, node]
                found.append((job, node))
        return found

    def next_end(self) -> float:
        """Return the time by which `ended` must be called again."""
        return self._order[0][0] if self._order else math.inf

    def forget(self, job: int) -> None:
        """Record that a job has started, or is over: it avoids no node."""
        for node in self._pauses.pop(job, ()):
            self._until.pop((job, node), None)

    def has_room(self, job: int, node: str) -> bool:
        """Record that a node may have room again; return whether the job, or `ALL`, had avoided it."""
        self._pauses.get(job, {}).pop(node, None)
        return self._until.pop((job, node), None) is not None

    def avoiding(self, node: str) -> list[int]:
        """Return the jobs that avoid a node, `ALL` among them if all fillers do."""
        return [job for job, other in self._until if other == node]
