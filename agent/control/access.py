# SPDX-License-Identifier: Apache-2.0
"""Who may give any order: root, the agent's own user, members of a group, and who has a key from another node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.errors import ControlError
from drom.agent.system.users import DIRECTORY, SilentDirectoryError, groups_of

if TYPE_CHECKING:
    from drom.agent.model.caller import Caller


@dataclass(frozen=True, slots=True)
class Masters:
    """The agent's own user and, if not None, a group by number, as the system's list of groups has it at that time.

    `group_name`: the group as the site calls it.
    """

    uid: int
    group: int | None = None
    group_name: str = ""

    @classmethod
    def here(cls, group: int | None = None, group_name: str = "") -> Masters:
        """Return the masters of an agent that runs as this process does."""
        return cls(os.geteuid(), group, group_name)

    @property
    def described(self) -> str:
        """Who may give any order on this node, as refusals say it."""
        if self.group is None:
            return "root and the agent's own user"
        return f"root, the agent's own user and members of the group {self.group_name or self.group}"

    def include(self, caller: Caller) -> bool:
        """Return whether the caller may give any order.

        Raises `ControlError` where it could be a member of the group, and the system's directory is silent.
        """
        if caller.key or caller.uid in (0, self.uid):
            return True
        if self.group is None:
            return False
        try:
            return self.group in DIRECTORY.ask(groups_of, caller.uid)
        except SilentDirectoryError as error:
            raise ControlError(str(error)) from error
