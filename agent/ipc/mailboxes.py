# SPDX-License-Identifier: Apache-2.0
"""Mailboxes, which programs write: the agent creates them and reads them with pread; it never maps users' files."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from dromlib import layout
from dromlib.errors import DromError
from dromlib.layout import MAILBOX

if TYPE_CHECKING:
    from pathlib import Path

_MOST_SPACE = 4 * layout.MAILBOX_SIZE
"""Most bytes that a mailbox may occupy, or one block if blocks are larger; some may lie beyond the file's end."""
_NAME = re.compile("[1-9][0-9]{0,18}")
_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.ENOENT: "restart the agent, which makes the directory again",
    errno.EMFILE: "allow the agent more open files (ulimit -n)",
    errno.ENFILE: "close programs: the whole machine has too many files open",
}
"""Remedies if no mailbox can be created, by error number."""
_IN_MODIFY = 0x2
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")


class MailboxError(DromError):
    """Raised when no mailbox can be created; the message says what to do."""


class MailboxState(NamedTuple):
    """A program's report: epoch applied, points passed, work done, usable CPUs (0: not reported), place of points.

    `min_tasks` tasks of the job keep CPUs while this one may rest (0: it may not), and `max_tasks` can use some (0:
    all).
    """

    applied: int
    polls: int
    progress: int
    wanted_min: int = 0
    wanted_max: int = 0
    points: int = 0
    min_tasks: int = 0
    max_tasks: int = 0

    @property
    def pinned(self) -> bool:
        """Whether the program's threads may bind themselves individually."""
        return bool(self.points >> layout.ENUMS["POINTS"].index("pinned") & 1)


_MAIL = struct.Struct("<" + "".join(MAILBOX.fields[name].code[1:] for name in MailboxState._fields))
"""The fields of `Mail`, which are adjacent in a mailbox."""


class Mailboxes:
    """The directory of mailboxes, and an inotify watch on it.

    Mailbox N is the file ``mail/N``, MAILBOX_SIZE bytes, allocated in full, owned by the program's user, mode 0600.
    Its user may make it grow: it is truncated when it is read, as after each write, and before it is removed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o711, exist_ok=True)
        self._folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        os.fchmod(self._folder, 0o711)
        libc = ctypes.CDLL(None, use_errno=True)
        self.watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.watch < 0 or libc.inotify_add_watch(self.watch, os.fsencode(directory), _IN_MODIFY) < 0:
            msg = f"cannot watch {directory}: {os.strerror(ctypes.get_errno())}: raise fs.inotify.max_user_instances."
            raise MailboxError(msg)
        self._next = 1 + max((int(path.name) for path in directory.iterdir() if _NAME.fullmatch(path.name)), default=0)

    def make(self, uid: int, slot: int) -> int:
        """Create a mailbox for a task of user `uid`; return its number. Raises `MailboxError` if that fails."""
        number = self._next
        self._next += 1
        path = self.directory / str(number)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._cannot_make(error) from error
        try:
            os.posix_fallocate(fd, 0, layout.MAILBOX_SIZE)
            record = bytearray(MAILBOX.size)
            MAILBOX.write(record, magic=layout.MAILBOX_MAGIC, layout_version=layout.LAYOUT_VERSION, slot=slot)
            os.pwrite(fd, record, 0)
            if uid != os.geteuid():
                with suppress(PermissionError):  # an agent without root serves its own user only
                    os.fchown(fd, uid, -1)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise self._cannot_make(error) from error
        finally:
            os.close(fd)
        return number

    def _cannot_make(self, error: OSError) -> MailboxError:
        reason, remedy = os.strerror(error.errno or 0), _REMEDIES.get(error.errno or 0, "check the directory")
        return MailboxError(f"cannot make a mailbox in {self.directory}: {reason}: {remedy}.")

    def open(self, number: int) -> int:
        """Return a read-write descriptor of mailbox `number` to pass to its program; the caller closes it."""
        # Non-blocking: the program owns the file and may hold a lease on it.
        return self._open(number, os.O_RDWR)

    def _open(self, number: int, access: int) -> int:
        return os.open(str(number), access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)

    def is_of(self, number: int, uid: int) -> bool:
        """Return whether mailbox `number` belongs to user `uid`. Raises OSError if it is gone."""
        return (self.directory / str(number)).lstat().st_uid == uid

    def read(self, number: int) -> MailboxState | None:
        """Return the contents of mailbox `number`, or None if it is gone or not a mailbox any more."""
        try:
            fd = self._open(number, os.O_RDONLY)
        except OSError:
            return None
        try:
            about = os.fstat(fd)
            data = os.pread(fd, MAILBOX.size, 0) if stat.S_ISREG(about.st_mode) else b""
        finally:
            os.close(fd)
        if _has_grown(about):
            self._cut(number)
        if len(data) < MAILBOX.size:
            return None
        return MailboxState._make(_MAIL.unpack_from(data, MAILBOX.fields["applied"].offset))

    def clear(self, number: int) -> None:
        """Clear the report of the last responder, before another one is set."""
        fd = self.open(number)
        try:
            for name in ("applied", "wanted_min", "wanted_max", "points", "min_tasks", "max_tasks"):
                os.pwrite(fd, bytes(MAILBOX.fields[name].size), MAILBOX.fields[name].offset)
        finally:
            os.close(fd)

    def _cut(self, number: int) -> None:
        """Truncate mailbox `number` to its size if it has grown: all users share the space."""
        with suppress(OSError):  # something else is in its place
            fd = self.open(number)
            try:
                if _has_grown(os.fstat(fd)):
                    os.ftruncate(fd, layout.MAILBOX_SIZE)
            finally:
                os.close(fd)

    def remove(self, number: int) -> None:
        """Remove mailbox `number`, truncated first: processes that have it open keep only its original size."""
        self._cut(number)
        with suppress(OSError):  # something else is in its place
            (self.directory / str(number)).unlink(missing_ok=True)

    def keep_only(self, numbers: set[int]) -> None:
        """Remove the mailboxes not in `numbers`. Other files in the directory are not ours, and stay."""
        for path in self.directory.iterdir():
            if _NAME.fullmatch(path.name) and int(path.name) not in numbers and stat.S_ISREG(path.lstat().st_mode):
                self.remove(int(path.name))

    def changed_mailboxes(self) -> set[int] | None:
        """Return the numbers of mailboxes written to since the last call; None: events were lost, so check all.

        The number of events read is bounded, so that endless writes do not delay the caller; `watch` then stays
        readable.
        """
        try:
            data = os.read(self.watch, 65536)
        except BlockingIOError:
            return set()
        numbers: set[int] = set()
        at = 0
        while at < len(data):
            _, mask, _, length = _EVENT.unpack_from(data, at)
            name = data[at + _EVENT.size : at + _EVENT.size + length].split(b"\0", 1)[0]
            at += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                return None
            if name.isdigit():
                numbers.add(int(name))
        return numbers

    def close(self) -> None:
        """Stop watching."""
        os.close(self.watch)
        os.close(self._folder)


def _has_grown(about: os.stat_result) -> bool:
    """Return whether a file occupies more than a mailbox may."""
    space = 512 * about.st_blocks > max(_MOST_SPACE, about.st_blksize)
    return stat.S_ISREG(about.st_mode) and (about.st_size > layout.MAILBOX_SIZE or space)
