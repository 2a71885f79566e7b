# SPDX-License-Identifier: Apache-2.0
"""Who may give any order, and how much of the agent itself one user may occupy, so that others can use it.

Root, the agent's own user, members of a group, and holders of a trusted key may give any order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError, Refused
from drom.agent.system.users import DIRECTORY, SilentDirectoryError, groups_of

if TYPE_CHECKING:
    from drom.agent.model.caller import Caller


@dataclass(frozen=True, slots=True)
class Operators:
    """The agent's own user and, if not None, a group by number, with its members in the system's directory at the time.

    `group_name`: the name that the site gave for the group.
    """

    uid: int
    group: int | None = None
    group_name: str = ""

    @classmethod
    def here(cls, group: int | None = None, group_name: str = "") -> Operators:
        """Return the masters of an agent that runs as the user of this process."""
        return cls(os.geteuid(), group, group_name)

    @property
    def described(self) -> str:
        """The users with the right to give any order on this node, as a text for refusals."""
        if self.group is None:
            return "root and the agent's own user"
        return f"root, the agent's own user and members of the group {self.group_name or self.group}"

    def include(self, caller: Caller) -> bool:
        """Return whether the caller may give any order.

        Raises `ControlError` if it could be a member of the group and the system's directory does not answer.
        """
        if caller.key or caller.uid in (0, self.uid):
            return True
        if self.group is None:
            return False
        try:
            return self.group in DIRECTORY.ask(groups_of, caller.uid)
        except SilentDirectoryError as error:
            raise ControlError(str(error)) from error


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
