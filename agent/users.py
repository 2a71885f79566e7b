# SPDX-License-Identifier: Apache-2.0
"""Users by name and by number, as the system knows them."""

from __future__ import annotations

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
    except KeyError:
        return None
