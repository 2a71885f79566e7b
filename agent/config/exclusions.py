# SPDX-License-Identifier: Apache-2.0
"""Users and programs that the agent leaves alone."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from drom.agent.system.users import user_number

if TYPE_CHECKING:
    from collections.abc import Iterable

Users = tuple[tuple[int, str], ...]
"""The uid of each user, with the word in the option."""


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Users, and patterns of programs as in the shell (``rsync``, ``/opt/*``)."""

    users: Users = ()
    programs: tuple[str, ...] = ()

    def reason(self, uid: int, names: Iterable[str]) -> str:
        """Return the sentence for a user's program that is left alone, or an empty text.

        `names` are the known names of the program: paths or bare names. A pattern without a slash is compared with the
        last part of each name, a pattern with a slash with whole paths. If no path is known, the last part of the
        pattern is compared with the bare names, if it is a name.
        """
        for number, word in self.users:
            if number == uid:
                return f"the agent leaves programs of user {word} alone (exclude.users)."
        names = [name for name in names if name]
        for pattern in self.programs:
            if _matches(names, pattern):
                return f"the agent leaves {pattern} alone (exclude.programs)."
        return ""


def _matches(names: Iterable[str], pattern: str) -> bool:
    last = pattern.rpartition("/")[2]
    if last == pattern:
        return any(fnmatchcase(name.rpartition("/")[2], pattern) for name in names)
    if paths := [name for name in names if "/" in name]:
        return any(fnmatchcase(path, pattern) for path in paths)
    return last in names


def find_users(words: Iterable[str]) -> tuple[Users, list[str]]:
    """Return (uid, word) of each name or number of a user, and the names that no user has here."""
    pairs = [(user_number(word), word) for word in words]
    return tuple((uid, word) for uid, word in pairs if uid is not None), [word for uid, word in pairs if uid is None]
