# SPDX-License-Identifier: Apache-2.0
"""The right to give any order: root, the agent's own user, members of a group, and holders of a trusted key have it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError
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
