# SPDX-License-Identifier: Apache-2.0
"""Users and groups by name and by number, from the system's directory, which may be a slow network service."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")
K = TypeVar("K", bound="Hashable")


def user_name(uid: int) -> str:
    """Return the name of a user, or the number if there is no name."""
    user = user_of(uid)
    return user.pw_name if user else str(uid)


def user_number(word: str) -> int | None:
    """Return the uid that a name or a number stands for, or None if no user has that name."""
    try:
        return int(word) if word.isdecimal() else pwd.getpwnam(word).pw_uid
    except (KeyError, ValueError):  # no such user, or a text that cannot be a name or a number
        return None


def user_of(uid: int) -> pwd.struct_passwd | None:
    """Return the entry of a user; None if there is none."""
    try:
        return pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return None


def user_named(name: str) -> pwd.struct_passwd | None:
    """Return the entry of the user of this name; None if there is none."""
    try:
        return pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None


def groups_of(uid: int) -> set[int]:
    """Return the gids of a user's groups in the system's directory; none for a user without a name.

    Other threads run meanwhile, which `os.getgrouplist` does not allow.
    """
    user = user_of(uid)
    if user is None:
        return set()
    count = ctypes.c_int(64)
    getgrouplist = ctypes.CDLL(None).getgrouplist
    name, gid = os.fsencode(user.pw_name), ctypes.c_uint(user.pw_gid)
    while True:
        room = count.value
        groups = (ctypes.c_uint * room)()
        if getgrouplist(name, gid, groups, ctypes.byref(count)) >= 0:
            return set(groups[: count.value])
        count.value = max(count.value, 2 * room)


def group_number(word: str) -> int | None:
    """Return the gid that a name or a number stands for, or None if no group has that name."""
    try:
        return int(word) if word.isdecimal() else grp.getgrnam(word).gr_gid
    except (KeyError, ValueError):
        return None


class SilentDirectoryError(DromError):
    """Raised when the directory of users has not answered in time; the message is a sentence for users."""

    def __init__(self) -> None:
        super().__init__("this machine's user directory (NSS) has not answered: try again in a moment.")


class Directory:
    """Queries the system's directory in threads of its own, for a loop that must not block, and caches the answers.

    An answer is kept for `lifetime` seconds and, if the directory is silent then, until it answers again. A query is
    waited for at most `patience` seconds, and not at all while an earlier one has been unanswered for longer. At most
    `THREADS` queries run at a time, and at most `MOST` answers are kept. All names together are waited for at most
    `patience` seconds in each `NAMES_EVERY` seconds, as a list may have many.
    """

    NAMES_EVERY = 1.0

    THREADS = 4
    MOST = 4096

    def __init__(self, patience: float = 0.05, lifetime: float = 300.0) -> None:
        self._patience, self._lifetime = patience, lifetime
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[Any, Any], tuple[float, Any]] = OrderedDict()
        self._asked: dict[tuple[Any, Any], tuple[float, Future[Any]]] = {}
        self._names_until, self._names_waited = 0.0, 0.0
        """When the next period for names begins, and the seconds that they have been waited for in the present one."""

    def ask(self, lookup: Callable[[K], T], key: K, *, waits: bool = True) -> T:
        """Return the result of `lookup` for `key`, or a recent one. Raises `SilentDirectoryError`.

        Unless it `waits`, a query is started, and there is no answer but a recent one.
        """
        question, now = (lookup, key), time.monotonic()
        with self._lock:
            known: tuple[float, T] | None = self._known.get(question)
            if known and now < known[0] + self._lifetime:
                return known[1]
            pending = self._ask(question, now)
            is_silent = any(now >= since + self._patience for since, _ in self._asked.values())
        if pending and waits and not is_silent:
            with suppress(FutureTimeoutError):
                answer: T = pending.result(self._patience)
                return answer
        if known:
            return known[1]
        raise SilentDirectoryError

    def _ask(self, question: tuple[Any, Any], now: float) -> Future[Any] | None:
        """Return the future of the answer to a query; None if too many other queries are unanswered."""
        if question not in self._asked:
            if len(self._asked) >= self.THREADS:
                return None
            self._asked[question] = now, Future()
            threading.Thread(target=self._answer, args=(question,), name="drom-users", daemon=True).start()
        return self._asked[question][1]

    def _answer(self, question: tuple[Any, Any]) -> None:
        lookup, key = question
        try:
            value, error = lookup(key), None
        except Exception as found:  # noqa: BLE001 - raised where it is waited for
            value, error = None, found
        with self._lock:
            _, pending = self._asked.pop(question)
            if error is None:
                self._known[question] = time.monotonic(), value
                self._known.move_to_end(question)
                while len(self._known) > self.MOST:
                    self._known.popitem(last=False)
        if error is None:
            pending.set_result(value)
        else:
            pending.set_exception(error)

    def user_name(self, uid: int) -> str:
        """Return the name of a user; the number if there is no name, or while the directory is silent."""
        if uid == 0:
            return "root"
        begin = time.monotonic()
        if begin >= self._names_until:
            self._names_until, self._names_waited = begin + self.NAMES_EVERY, 0.0
        try:
            return self.ask(user_name, uid, waits=self._names_waited < self._patience)
        except SilentDirectoryError:
            return str(uid)
        finally:
            self._names_waited += time.monotonic() - begin


DIRECTORY = Directory()
"""The directory of this process."""
