# SPDX-License-Identifier: Apache-2.0
"""Users and groups by name and by number, as the system knows them."""

from __future__ import annotations

import grp
import os
import pwd


def user_name(uid: int) -> str:
    """Return the name of a user, or the number of one without."""
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def user_number(word: str) -> int | None:
    """Return the uid that a name or a number stands for, or None when nobody here has that name."""
    try:
        return int(word) if word.isdecimal() else pwd.getpwnam(word).pw_uid
    except (KeyError, ValueError):  # nobody, or a text that cannot be a name or a number
        return None


def groups_of(uid: int) -> set[int]:
    """Return the groups that the system's lists put a user in; none for a user without a name."""
    try:
        user = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return set()
    return set(os.getgrouplist(user.pw_name, user.pw_gid))


def group_number(word: str) -> int | None:
    """Return the gid that a name or a number stands for, or None when no group here has that name."""
    try:
        return int(word) if word.isdecimal() else grp.getgrnam(word).gr_gid
    except (KeyError, ValueError):
        return None
