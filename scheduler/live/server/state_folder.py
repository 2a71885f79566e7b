# SPDX-License-Identifier: Apache-2.0
"""The folder in which a scheduler keeps its queue, with checks of its owner, its mode and its contents."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from drom.agent.system.ancestors import fault_above
from drom.scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from pathlib import Path

QUEUE, LOCK, RESERVE = "queue.sqlite", "queue.lock", "queue.reserve"
SOCKETS = ("control", "signals", "agents")
HOMES = "homes"
"""The folder with a folder for each home partition that was adopted."""
_FILES = frozenset({QUEUE, f"{QUEUE}-wal", f"{QUEUE}-shm", f"{QUEUE}-journal", LOCK, RESERVE})
_BESIDE = frozenset({"steward", "spool", "lost+found", HOMES})
"""Folders that may exist beside a queue, like logs: those of an agent, and that of a separate file system."""


def open_folder(path: Path) -> int:
    """Open the folder, which is created if missing, and return a descriptor of it.

    Raises SchedulerError, without changing anything, for a folder of another user, one in which others may write, one
    that they may replace, and one that holds files other than a queue's. A symbolic link is followed if root or the
    process's user owns it.
    """
    try:
        if path.is_symlink() and path.lstat().st_uid in (0, os.geteuid()):
            path = path.resolve()
        if fault := fault_above(path, os.geteuid()):
            raise SchedulerError(f"{fault}, and so may replace {path}: choose another folder with --state.")
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        msg = f"the queue cannot be kept in {path}: {error.strerror}: choose another folder with --state."
        raise SchedulerError(msg) from error
    try:
        _check_owner(path, os.fstat(folder))
        _check_files(path, folder)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _check_owner(path: Path, about: os.stat_result) -> None:
    if about.st_uid not in (0, os.geteuid()):
        raise SchedulerError(f"{path} belongs to another user: choose another folder with --state.")
    if about.st_mode & 0o022:
        mode = f"{stat.S_IMODE(about.st_mode):04o}"
        msg = f"others may write in {path} (mode {mode}): run chmod go-w {path}, or choose another folder with --state."
        raise SchedulerError(msg)


def _check_files(path: Path, folder: int) -> None:
    kinds = {entry.name: stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) for entry in os.scandir(folder)}
    for name, kind in kinds.items():
        if (name in _FILES and kind != stat.S_IFREG) or (name in SOCKETS and kind != stat.S_IFSOCK):
            msg = f"{path / name} is not a scheduler's: move it away, or choose another folder with --state."
            raise SchedulerError(msg)
    beside = {
        name for name, kind in kinds.items() if (name in _BESIDE and kind == stat.S_IFDIR) or name.endswith(".log")
    }
    left = SOCKETS if LOCK in kinds else ()  # by a scheduler that was killed, whose queue is in etcd
    others = kinds.keys() - _FILES - beside - {*left}
    if QUEUE not in kinds and others:
        msg = f"{path} holds files that are not a scheduler's: choose a new or an empty folder with --state."
        raise SchedulerError(msg)


def open_file(name: str, folder: int) -> int:
    """Open a file of the queue, which is created with access for its owner alone if missing. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=folder)
