# SPDX-License-Identifier: Apache-2.0
"""Locks that allow one agent per CPU: an agent claims its CPUs on the whole node, under any user.

A claim is a POSIX record lock on byte N of one file for OS CPU N. The kernel releases it when its holder ends, reports
the holder, and requires no privilege; the contents of the file do not matter. Containers with a ``/dev/shm`` of their
own have their own claims: there cpusets divide the CPUs that agents may use.

Any user may claim any CPU, and wait for a claim to become free. So that claims of other users do not stop root's
agents, these claim their CPUs in a file that only root may open (a user who may read a file may lock it too), and then
those still free in the other file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drom.agent.text import cpus_are, escaped

from dromlib.cpulist import cpus, mask_of
from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = Path("/dev/shm")  # noqa: S108 - the one place that every user of every Linux node may write
VARIABLE = "DROM_CLAIMS_DIR"
"""Names another directory, so that agents of tests do not conflict."""
ROOTS = Path("/run")
"""The directory of root's own file unless the variable names one."""
FILE = "drom-claims"
_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, pid (fcntl(2))."""


class CpuLockError(DromError):
    """Raised when CPUs cannot be claimed; the message is a sentence that says what to do."""


def cpu_locks_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the file that agents lock."""
    return Path(environ.get(VARIABLE) or DIRECTORY) / FILE


def roots_file(file: Path) -> Path:
    """Return the path of the file that root's agents lock first."""
    return ROOTS / FILE if file == DIRECTORY / FILE else file.with_name(f"{FILE}.root")


class CpuLocks:
    """The claims of this process, until it ends or calls `close`. Only one object per process may use a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._fds: list[int] = []

    def take(self, mask: int) -> list[str]:
        """Claim the OS CPUs in `mask`. Raises `ClaimError`, and holds nothing, if another agent has one of them.

        Root's agent conflicts only with other agents of root: for it, return sentences about all other claims.
        """
        if os.geteuid() != 0:
            self._take(self.file, 0o666, mask)
            return []
        self._take(roots_file(self.file), 0o600, mask)
        try:
            fd = self._open(self.file, 0o666)
        except CpuLockError as error:
            return [str(error)]
        taken = {cpu: _holder(fd, cpu) for cpu in cpus(mask) if not _lock(fd, cpu)}
        return [_conflict(mask_of([cpu for cpu in taken if taken[cpu] == pid]), pid) for pid in set(taken.values())]

    def _take(self, file: Path, mode: int, mask: int) -> None:
        fd = self._open(file, mode)
        # All agents claim in the same order, so that one of several that start at once gets its CPUs.
        for cpu in (wanted := sorted(cpus(mask))):
            if not _lock(fd, cpu):
                holder = _holder(fd, cpu)
                taken = [c for c in wanted if c == cpu or _holder(fd, c) is not None]
                fcntl.lockf(fd, fcntl.LOCK_UN)
                raise CpuLockError(_conflict(mask_of(taken), holder))

    def _open(self, file: Path, mode: int) -> int:
        try:
            self._fds.append(_open(file, mode))
        except OSError as error:
            msg = f"cannot claim CPUs in {file}: {error.strerror}: remove it, or set {VARIABLE}."
            raise CpuLockError(msg) from error
        return self._fds[-1]

    def close(self) -> None:
        """Release all claims."""
        while self._fds:
            os.close(self._fds.pop())


def lock_holders(file: Path, mask: int) -> dict[int, int]:
    """Return the claimed OS CPUs of `mask` by the pid of their agent (0: outside our pid namespace), as masks.

    A process that holds claims itself must not call this: closing the file would release them.
    """
    try:
        fd = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    found: dict[int, int] = {}
    try:
        for cpu in cpus(mask):
            pid = _holder(fd, cpu)
            if pid is not None:
                found[pid] = found.get(pid, 0) | 1 << cpu
    finally:
        os.close(fd)
    return found


def runtime_dir_of(pid: int, proc: str = "/proc") -> str:
    """Return the runtime directory of the agent `pid` from its command line; empty if that has none."""
    with suppress(OSError, ValueError, IndexError):
        words = Path(f"{proc}/{pid}/cmdline").read_bytes().decode().split("\0")
        return escaped(words[words.index("--runtime-dir") + 1])
    return ""


def _open(file: Path, mode: int) -> int:
    """Open a file for locks, creating it with `mode` if it is missing; root takes over its ownership.

    Raises OSError, also if it is not a regular file or has another link.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(file, flags)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.close(os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o600))
            file.chmod(mode)
        fd = os.open(file, flags)
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    # Any user may link another user's file to this name; its owner and mode must not be changed.
    if about.st_nlink != 1:
        os.close(fd)
        raise OSError(errno.EMLINK, "it has another name, so it may be somebody's own file")
    if os.geteuid() == 0 and about.st_uid != 0:
        os.fchown(fd, 0, 0)
        os.fchmod(fd, mode)
    return fd


def _lock(fd: int, cpu: int) -> bool:
    """Claim an OS CPU; return False if another process has claimed it."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, cpu)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True


def _holder(fd: int, cpu: int) -> int | None:
    """Return the pid of another process that has claimed an OS CPU, or None."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, cpu, 1, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(pid)


def _conflict(mask: int, pid: int | None) -> str:
    where = runtime_dir_of(pid) if pid else ""
    who = f"the agent with pid {pid}" if pid else "an agent outside this pid namespace"
    place = f" in {where}" if where else ""
    them = "this one" if mask.bit_count() == 1 else "them"
    return f"{cpus_are(mask)} managed by {who}{place}: stop it, or leave {them} to it with --reserved."
