# SPDX-License-Identifier: Apache-2.0
"""Writes and reads the history of events: a file of JSON lines that outlives agents and stays below a size.

A file that has reached half of that size becomes FILE.1, and replaces the previous one. Every user may read it, as
every user may query the present state of a node. A line truncated by a full disk or a loss of power is skipped.

Any user who may read a file may also lock it. The lock against a second agent is therefore on FILE.lock, which only the
agent's user may open. A runtime directory is locked as a whole and needs none.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from drom.agent.system.files import open_plain

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import BinaryIO

FORMER = {
    "avoiding": "cpus_avoided",
    "bind failed": "bind_failed",
    "cpus": "cpus_changed",
    "dropped": "message_dropped",
    "ended": "task_ended",
    "ended job": "job_ended",
    "fence failed": "cgroup_failed",
    "handed over": "handed_over",
    "joined cluster": "cluster_joined",
    "left the seat": "responder_left",
    "refused": "request_refused",
    "refused job": "job_refused",
    "seated": "responder_set",
    "started": "task_started",
    "started job": "job_started",
    "turned away": "node_refused",
}
"""Maps names of events that agents of earlier versions have stored to the present names."""
FULL = {errno.ENOSPC, errno.EDQUOT}
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class EventLogError(DromError):
    """Raised when a history cannot be written or read; the message says what to do."""


def rotated(path: Path) -> Path:
    """Return the path of the older half of a history."""
    return path.with_name(path.name + ".1")


class EventLog:
    """The writer. `size` is the maximum of both files together in bytes; `lost` counts events that were not written.

    `alone`: no other agent writes into its folder, so no lock is taken.
    """

    def __init__(self, path: Path, size: int, *, alone: bool = False) -> None:
        self.path = path
        self.lost = 0
        self._lock: int | None = None
        self._alone = alone
        self._most = size // 2
        self._file: int | None = None
        self._torn = False

    def open(self) -> None:
        """Open or create the file. Raises `HistoryError`, but not for a full disk, which may have room later."""
        try:
            if not self._alone:
                self._lock = _lock(self.path.with_name(self.path.name + ".lock"))
            self._open()
            self._cut()
        except OSError as error:
            if error.errno not in FULL:
                self.close()
                msg = f"cannot keep events in {self.path}: {_reason(error)}: choose another --events-file."
                raise EventLogError(msg) from error

    def _cut(self) -> None:
        """Cut each file that an agent with a larger limit has left to its newest lines."""
        for path in (rotated(self.path), self.path):
            with suppress(FileNotFoundError), open_plain(path) as file:
                if (size := os.fstat(file.fileno()).st_size) > self._most:
                    file.seek(size - self._most)
                    _replace(path, file.read().partition(b"\n")[2])
        if self._file is not None and not _is_at(self._file, self.path):
            self._close_file()
            self._open()

    def append(self, line: str) -> str:
        """Write a line. Return a sentence to log for the first line that is lost, otherwise an empty text."""
        try:
            self._write(line.encode() + b"\n")
        except OSError as error:
            self.lost += 1
            return f"{self.path} cannot be written ({_reason(error)}): events are lost." if self.lost == 1 else ""
        return ""

    def close(self) -> None:
        """Close the file and release its lock."""
        self._close_file()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _write(self, data: bytes) -> None:
        if len(data) > self._most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if self._file is not None:
            full = os.fstat(self._file).st_size + len(data) > self._most
            here = _is_at(self._file, self.path)
            if full and here:
                self.path.replace(rotated(self.path))
            if full or not here:  # full, or the file was moved away
                self._close_file()
        file = self._open() if self._file is None else self._file
        whole = b"\n" * self._torn + data
        self._torn = os.write(file, whole) < len(whole)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _open(self) -> int:
        file = os.open(self.path, _FLAGS, 0o644)
        try:
            size = _claim(file)
            self._torn = bool(size) and os.pread(file, 1, size - 1) != b"\n"
        except OSError:
            os.close(file)
            raise
        self._file = file
        return file


def _replace(path: Path, data: bytes) -> None:
    """Replace a file by one with the contents `data`."""
    newer = path.with_name(path.name + ".new")
    newer.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(newer, _FLAGS | os.O_EXCL, 0o644), "wb") as file:
            file.write(data)
        newer.replace(path)
    finally:
        newer.unlink(missing_ok=True)


def _lock(path: Path) -> int:
    """Return a descriptor that keeps other agents away until it is closed. Raises OSError."""
    lock = os.open(path, _FLAGS, 0o600)
    try:
        _check_private(path, os.fstat(lock))
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _check_private(path: Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
        raise OSError(errno.EPERM, f"{path} is not a file of this user alone")


def _claim(file: int) -> int:
    """Check that a file belongs to this user, and make it readable for all; return its size (bytes)."""
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it is not a file of this user")
    if about.st_nlink > 1:
        raise OSError(errno.EPERM, "it has another name, so it may be another file of this user")
    os.fchmod(file, 0o644)
    return about.st_size


def _reason(error: OSError) -> str:
    if error.errno == errno.EAGAIN:
        return "another agent uses this file"
    return error.strerror or str(error)


def read(path: Path, wait: Callable[[], None] | None = None) -> Iterator[dict[str, Any]]:
    """Yield events, oldest first. With `wait`, never end, and call it whenever there is no newer event.

    Raises `HistoryError` if no history can be read.
    """
    with ExitStack() as opened:
        try:
            file = opened.enter_context(open_plain(path))
            before = None
            with suppress(FileNotFoundError):
                before = opened.enter_context(open_plain(rotated(path)))
        except OSError as error:
            msg = f"no events can be read in {path} ({error.strerror}): name a file with --file."
            raise EventLogError(msg) from error
        if before and not os.path.sameopenfile(before.fileno(), file.fileno()):
            yield from _records(before)
        yield from _records(file)
        while wait:
            wait()
            replaced = not _is_at(file.fileno(), path)
            yield from _records(file)
            if replaced:
                with suppress(FileNotFoundError):
                    newer = open_plain(path)
                    opened.close()
                    file = opened.enter_context(newer)


def _is_at(file: int, path: Path) -> bool:
    """Return whether an open file is the one at a path."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _records(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Yield the events in the complete lines from here on; leave the position at the start of an incomplete line."""
    while (line := file.readline()).endswith(b"\n"):
        if found := _parse(line):
            yield found
    file.seek(-len(line), os.SEEK_CUR)


def _parse(line: bytes) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        found = json.loads(line)
        if isinstance(found, dict) and isinstance(found.get("time"), str) and isinstance(found.get("event"), str):
            found["event"] = FORMER.get(found["event"], found["event"])
            return found
    return None
