# SPDX-License-Identifier: Apache-2.0
"""The runtime directory: its owner, and the files that an earlier agent left there."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.system import connections, paths
from drom.agent.system.ancestors import fault_above

from dromlib import layout
from dromlib.errors import DromError
from dromlib.layout import HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping

DOOR_PATH_MAX = 107
"""Most bytes of the path of an AF_UNIX socket, without the closing NUL."""
SOCKETS = ("door", "control", "signals")
_MARK = b"drom agent\n"
"""The text after the agent's pid in the lock, which identifies an agent's directory."""
_LEFT = frozenset({"lock", "events", "events.1", "freeze", *SOCKETS})
"""Files that earlier agents may have left, without a registry, beside a lock that contains their pid alone."""
_LOCK_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RuntimeDirError(DromError):
    """Raised when an agent cannot use the runtime directory; the message says what to do."""


def fault_of(path: Path, uid: int, environ: Mapping[str, str] | None = None) -> str:
    """Return why a user must not trust the contents of a runtime directory, empty if there is no reason; as in libdrom.

    A default directory, ``$XDG_RUNTIME_DIR/drom`` or /tmp/drom-UID, must be a directory, not a link, that belongs to
    this user or root and in which no other user may write.
    """
    session = (os.environ if environ is None else environ).get("XDG_RUNTIME_DIR")
    if path not in (paths.fallback_dir(uid), Path(session or "/") / "drom"):
        return ""
    try:
        about = path.lstat()
    except OSError:  # there is nothing to trust
        return ""
    if about.st_uid not in (uid, 0):
        return "belongs to another user"
    if not stat.S_ISDIR(about.st_mode):
        return "is no directory"
    return "may be changed by other users" if about.st_mode & 0o022 else ""


def make_open(path: Path) -> None:
    """Create a folder; root's is readable by all users, whatever the umask. Raises OSError."""
    try:
        path.mkdir(mode=0o755, parents=True)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        if os.geteuid() == 0:
            path.chmod(0o755)


def create_and_lock(path: Path) -> int:
    """Create the runtime directory and lock it; return the lock's descriptor, held until the agent ends.

    Raises `RuntimeDirError` if it cannot be used or another agent holds it. A directory with files that are not an
    agent's is left unchanged.
    """
    if len(os.fsencode(path / "control")) > DOOR_PATH_MAX:
        most = DOOR_PATH_MAX - len("/control")
        msg = f"the path {path} is longer than the {most} bytes its sockets allow: choose a shorter --runtime-dir."
        raise RuntimeDirError(msg)
    try:
        if fault := fault_above(path, os.geteuid()):
            raise RuntimeDirError(f"{fault}, and so may replace {path}: choose another --runtime-dir.")
        make_open(path)
        folder = _open(path)
        try:
            lock = os.open("lock", _LOCK_FLAGS | os.O_CREAT, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        msg = f"cannot use {path}: {reason}: choose a directory you may write with --runtime-dir."
        raise RuntimeDirError(msg) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = next(iter(os.pread(lock, 32, 0).decode(errors="replace").split()), "?")
        os.close(lock)
        msg = f"another agent (pid {holder}) runs in {path}: stop it or choose another --runtime-dir."
        raise RuntimeDirError(msg) from error
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode() + _MARK, 0)
    except OSError as error:
        # The pid is only information for users; on a full file system the lock is still held.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    return lock


def check(path: Path) -> None:
    """Check a directory that exists as `create_and_lock` does, but change nothing.

    Raises `RuntimeDirError` if it cannot be used, and OSError if it cannot be read.
    """
    os.close(_open(path))


def _open(path: Path) -> int:
    """Return a descriptor of a directory that an agent may use. Raises `RuntimeDirError`, OSError."""
    if path.is_symlink():
        raise RuntimeDirError(f"{path} is a symbolic link: name the directory itself with --runtime-dir.")
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_owner(path, os.fstat(folder))
        _check_files(path, folder)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _check_owner(path: Path, about: os.stat_result) -> None:
    """Raise `RuntimeDirError` if users other than the agent's and root could put files into a directory."""
    if about.st_uid not in (os.geteuid(), 0):
        msg = f"{path} belongs to another user: choose another --runtime-dir."
        raise RuntimeDirError(msg)
    if about.st_mode & 0o022:
        mode = f"{stat.S_IMODE(about.st_mode):04o}"
        msg = f"others may write in {path} (mode {mode}): run chmod go-w {path}, or choose another --runtime-dir."
        raise RuntimeDirError(msg)


def _check_files(path: Path, folder: int) -> None:
    """Raise `RuntimeDirError` if a directory has files that are not those of an agent; OSError for its lock."""
    names = set(os.listdir(folder))
    lock = _start_of("lock", folder, _LOCK_FLAGS, 32) if "lock" in names else b""
    is_earlier = re.fullmatch(rb"[0-9]*\n?", lock) is not None  # earlier agents wrote only their pid
    is_signed = re.fullmatch(rb"[0-9]+\n" + re.escape(_MARK), lock) is not None
    if not is_signed and is_earlier and "registry" in names:
        with suppress(OSError):
            header = _start_of("registry", folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, HEADER.size)
            is_signed = len(header) == HEADER.size and HEADER.read(header, "magic") == layout.REGISTRY_MAGIC
    # An agent on a full file system has left an empty lock; the kill switch may exist before any agent.
    known = _LEFT if lock else {"lock", "events", "freeze"}
    if not is_signed and not (is_earlier and names <= known):
        msg = f"{path} holds files that are not an agent's: choose a new or an empty directory with --runtime-dir."
        raise RuntimeDirError(msg)
    for name in SOCKETS:
        if name in names and not stat.S_ISSOCK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            msg = f"{path / name} is not a socket of an agent: move it away, or choose another --runtime-dir."
            raise RuntimeDirError(msg)


def _start_of(name: str, folder: int, flags: int, most: int) -> bytes:
    """Return the first `most` bytes of a file; empty if it is not a regular file. Raises OSError."""
    file = os.open(name, flags | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.pread(file, most, 0) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def remove_sockets(path: Path) -> None:
    """Remove the sockets of an agent that ends; other kinds of files with their names stay.

    Raises OSError for a socket that cannot be removed, after the others have been removed.
    """
    with ExitStack() as stack:
        for name in SOCKETS:
            stack.callback(connections.remove, path / name)


def freezes(file: Path) -> bool:
    """Return whether `file` exists and belongs to root or the agent's user: only these may freeze the node."""
    try:
        return file.lstat().st_uid in (os.geteuid(), 0)
    except OSError:
        return False
