# SPDX-License-Identifier: Apache-2.0
"""What one user may take up of the agent itself, so that others still find it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from drom.agent.errors import Refused

MOST_CONNECTIONS = 256
"""Connections to one socket that a user has at most, however many descriptors there are."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """`tasks`: those a user may have registered (0: no cap); `free`: users without any quota, by uid."""

    tasks: int = 0
    free: frozenset[int] = frozenset({0})

    def connections(self, uid: int, descriptors: int) -> int:
        """Return how many connections to one socket a user may have where an agent may open so many descriptors."""
        return descriptors if uid in self.free else min(MOST_CONNECTIONS, max(1, descriptors // 8))

    def admit_task(self, uid: int, has: int) -> None:
        """Raise `Refused` if a user who has so many tasks may not have one more."""
        if self.tasks and uid not in self.free and has >= self.tasks:
            msg = f"user {uid} has {has} tasks here, and users.max_tasks is {self.tasks}: wait until some have ended."
            raise Refused(msg)
