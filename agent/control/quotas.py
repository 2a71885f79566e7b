# SPDX-License-Identifier: Apache-2.0
"""Limits on the resources of the agent itself that one user may occupy, so that others can use it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from drom.agent.errors import Refused

MOST_CONNECTIONS = 256
"""Most connections of a user to one socket, however many descriptors there are."""


@dataclass(frozen=True, slots=True)
class UserQuotas:
    """Quotas of users. `tasks`: the tasks a user may have registered (0: no cap); `free`: uids without any quota."""

    tasks: int = 0
    free: frozenset[int] = frozenset({0})

    def connections(self, uid: int, descriptors: int) -> int:
        """Return how many connections to one socket a user may have if the agent may open `descriptors` descriptors."""
        return descriptors if uid in self.free else min(MOST_CONNECTIONS, max(1, descriptors // 8))

    def admit_task(self, uid: int, has: int) -> None:
        """Raise `Refused` if a user with `has` tasks may not have another one."""
        if self.tasks and uid not in self.free and has >= self.tasks:
            msg = f"user {uid} has {has} tasks here, and users.max_tasks is {self.tasks}: wait until some have ended."
            raise Refused(msg)
