# SPDX-License-Identifier: Apache-2.0
"""Read plain files, those of a machine below a root above all, so that neither their type nor contents can block us."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from drom.agent.text import escaped

from dromlib.cpulist import MAX_CPUS, CpuListError, parse_cpulist, parse_cpumask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file for reading. Raises OSError, also if it is not a plain file; its text is for users."""
    _check(path.stat().st_mode)
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb")  # noqa: SIM115
    try:
        _check(os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def read_plain(path: Path, limit: int) -> bytes:
    """Return the bytes of a plain file of at most `limit` bytes. Raises OSError, also if it is not plain or longer."""
    with open_plain(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it is longer than {limit} bytes")
    return data


def lock_folder(path: Path) -> int | None:
    """Return a descriptor of a folder that locks it (flock), None if another has locked it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _check(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a plain file")


BLANKS = " \t\r\n\0"
_SMALL = 1 << 18  # bytes: four times the longest list of MAX_CPUS numbers would be more than any kernel writes
_LARGE = 1 << 24
_NAMED = 4  # files with one fault that are named before the rest is counted
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # do not concern the file
_MAX_ID = (1 << 31) - 1  # kernels hold ids as 32-bit integers; larger ones are -1 written without a sign


@dataclass(slots=True)
class FileTree:
    """The files below a folder, and warnings about what was odd in them.

    Methods raise OSError only if this process or the machine lacks descriptors or memory.
    """

    folder: Path
    notes: list[str] = field(default_factory=list)
    _odd: list[str] = field(default_factory=list)
    _unread: list[str] = field(default_factory=list)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for users: the notes, and the first files with each kind of fault and the number of others."""
        return (*self.notes, *_first_of(self._odd, "left out"), *_first_of(self._unread, "unreadable"))

    def text(self, path: str, limit: int = _SMALL) -> str | None:
        """Return the text of a file without surrounding blanks and NULs.

        None if it cannot be read, with a warning unless it is missing. Only plain files of at most `limit` bytes are
        read: a pipe or a device would block the reader.
        """
        path = path.lstrip("/")
        try:
            return read_plain(self.folder / path, limit).decode("utf-8", "replace").strip(BLANKS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            _raise_if_short(error)
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._unread.append(f"/{_shown(path)} cannot be read: {reason}.")
            return None

    def long_text(self, path: str) -> str:
        """Return the text of a file that may be long, such as ``/proc/cpuinfo``; empty if it cannot be read."""
        return self.text(path, _LARGE) or ""

    def number(self, path: str) -> int:
        """Return the number in a file, at most 2**31 - 1; -1 if there is none."""
        number = self.amount(path)
        return number if number <= _MAX_ID else -1

    def amount(self, path: str) -> int:
        """Return the number of at most 18 digits in a file; -1 if there is none."""
        text = self.text(path) or ""
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) else -1

    def mask(self, path: str, parse: Callable[[str], int] = parse_cpulist) -> int:
        """Return the set in a file; 0 if there is none, with a warning if it cannot be parsed."""
        text = self.text(path)
        if not text or text == "(null)":  # some kernels write this for a set that was never created
            return 0
        try:
            return parse(text)
        except CpuListError as error:
            self.without(path, str(error))
            return 0

    def without(self, path: str, fault: str) -> None:
        """Record a warning about a file that cannot be used; `fault` is a sentence."""
        self._odd.append(f"/{_shown(path.lstrip('/'))} is left out: {fault}")

    def first_mask(self, folder: str, *names: str) -> int:
        """Return the set in the first file that has one, parsed as a list if its name says so, otherwise as a mask."""
        paths = (f"{folder}/{name}" for name in names)
        masks = (self.mask(path, parse_cpulist if path.endswith("list") else parse_cpumask) for path in paths)
        return next(filter(None, masks), 0)

    def numbered(self, folder: str, prefix: str) -> list[int]:
        """Return the numbers N, below MAX_CPUS, of the entries `prefix`N of a folder, ascending."""
        try:
            names = [entry.name for entry in (self.folder / folder).iterdir()]
        except OSError as error:
            _raise_if_short(error)
            return []
        matches = (re.fullmatch(rf"{prefix}([0-9]{{1,5}})", name, re.ASCII) for name in names)
        return sorted({int(match[1]) for match in matches if match and int(match[1]) < MAX_CPUS})

    def has_folder(self, path: str) -> bool:
        """Return whether `path` is a visible folder."""
        try:
            return (self.folder / path).is_dir()
        except OSError as error:
            _raise_if_short(error)
            return False


def _raise_if_short(error: Exception) -> None:
    """Raise an error that may be temporary: treating it as a missing file would describe a different machine."""
    if isinstance(error, OSError) and error.errno in _SHORT:
        raise error


def _shown(path: str) -> str:
    return escaped(path[:80])


def _first_of(faults: list[str], word: str) -> list[str]:
    others = len(faults) - _NAMED
    more = [f"{others} more {'file is' if others == 1 else 'files are'} {word} in the same way."] if others > 0 else []
    return faults[:_NAMED] + more
