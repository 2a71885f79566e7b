# SPDX-License-Identifier: Apache-2.0
"""The user of an order to a scheduler, and that user's rights."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from drom.agent.control import keys
from drom.agent.errors import ControlError
from drom.agent.system import users
from drom.agent.system.users import DIRECTORY, SilentDirectoryError
from drom.scheduler.live.cluster.jobs import User
from drom.scheduler.live.cluster.partitions import partition_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from drom.agent.model.caller import Caller
    from drom.scheduler.live.cluster.partitions import Partition
    from drom.scheduler.live.cluster.spec import Spec


def user_of(caller: Caller) -> User:
    """Return the user of a caller: the one that runs it, or the one after which the key of another node is named.

    The scheduler's own key stands for the scheduler's user. Raises ControlError for a key with any other name, and if
    the system's directory of users does not answer, except for root.
    """
    named = caller.key not in ("", keys.OWN_KEY)
    if caller.uid == 0 and not named:
        return User(0, 0, "root")
    try:
        found = DIRECTORY.ask(users.user_named, caller.key) if named else DIRECTORY.ask(users.user_of, caller.uid)
    except SilentDirectoryError as error:
        raise ControlError(str(error)) from error
    if found:
        return User(found.pw_uid, found.pw_gid, found.pw_name)
    if caller.key:
        msg = f"no user here has the name of the key, {caller.key}: trust it under a user's name (drom keys trust)."
        raise ControlError(msg)
    return User(caller.uid, caller.uid, str(caller.uid))


def check_rights(user: User, specs: Iterable[Spec]) -> None:
    """Raise ControlError if a user may not submit such jobs to this scheduler."""
    if os.geteuid() not in (0, user.uid):
        whose = f"this scheduler runs as user {os.geteuid()} and accepts no jobs of {user.name}"
        raise ControlError(f"{whose}: use one that runs as root, or start your own (drom scheduler).")
    if not is_operator(user) and any(spec.priority > 0 for spec in specs):
        who = "only root and the scheduler's own user may put jobs before those of others"
        raise ControlError(f"{who}: give a --priority of 0 or less.")


def check_partition(user: User, name: str, partitions: Collection[Partition]) -> None:
    """Raise ControlError if a user may not use the partition of a job that names it, or names none.

    Raises SchedulerError if there is no such partition.
    """
    partition = partition_of(name, partitions)
    if partition is None or partition.is_open or is_operator(user) or user.uid in partition.users:
        return
    try:
        gids = DIRECTORY.ask(users.groups_of, user.uid) if partition.groups else set()
    except SilentDirectoryError as error:
        raise ControlError(str(error)) from error
    if partition.groups.isdisjoint({user.gid, *gids}):
        msg = f"user {user.name} may not use partition {partition.name}: choose another with --partition."
        raise ControlError(msg)


def is_operator(user: User) -> bool:
    """Return whether a user may change jobs of other users: root and the scheduler's own user may."""
    return user.uid in (0, os.geteuid())
