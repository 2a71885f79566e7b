# SPDX-License-Identifier: Apache-2.0
"""Processes, their threads and their CPU masks, as the kernel reports them through ``/proc`` and pidfds.

Masks are sets of OS CPUs (`dromlib.cpulist`); start times are clock ticks since boot (proc(5), field 22 of stat). A
process is identified by pid *and* start time. State ``Z`` of a main thread is never interpreted as the process's end,
because its workers may live on: the pidfd shows the end.

psutil opens no pidfds, bounds nothing that it reads, and would take 10 ms and 1 MB of an agent (`import psutil` there).
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dromlib.cpulist import mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

SO_PEERPIDFD = 77
"""Socket option of Linux 6.5 for the peer's pidfd, on all architectures but parisc and sparc."""
MOST_ENVIRONMENT = 1 << 18
"""Most bytes read of an environment: reading delays the agent, and a program may have megabytes of it."""
_PF_KTHREAD = 0x00200000
_NOT_THERE = (errno.ESRCH, errno.ENOENT, errno.EINVAL, errno.ENODATA)


class Identity(NamedTuple):
    """A process: pid in our pid namespace, and start time in clock ticks since boot."""

    pid: int
    start_time: int

    def __str__(self) -> str:
        """Return the text of ``DROM_TASK``."""
        return f"{self.pid}:{self.start_time}"


class Stat(NamedTuple):
    """Fields of ``/proc/PID/stat``: parent's pid, state letter of the main thread, start time in ticks since boot."""

    ppid: int
    state: str
    start_time: int


@dataclass(frozen=True, slots=True)
class Peer:
    """The peer that connected a socket, from the kernel: process, uid and gid then, and a pidfd the caller closes."""

    identity: Identity
    uid: int
    gid: int
    pidfd: int


def parse_stat(text: str) -> Stat | None:
    """Return the fields in the text of ``/proc/PID/stat``, or None if it is truncated.

    The command name may contain blanks and parentheses, so fields are counted from the last parenthesis.
    """
    fields = text.rpartition(")")[2].split(maxsplit=20)
    try:
        return Stat(ppid=int(fields[1]), state=fields[0], start_time=int(fields[19]))
    except (IndexError, ValueError):
        return None


def read_stat(pid: int, proc: str = "/proc") -> Stat | None:
    """Return the stat of process `pid`, or None if there is no such process."""
    text = read(f"{proc}/{pid}/stat")
    return None if text is None else parse_stat(text.decode(errors="replace"))


def start_time(pid: int, proc: str = "/proc") -> int | None:
    """Return the start time of process `pid` in clock ticks since boot, or None if there is no such process."""
    stat = read_stat(pid, proc)
    return stat and stat.start_time


def open_pidfd(pid: int, start: int, proc: str = "/proc") -> int | None:
    """Return a pidfd of the process `pid` that started at `start` (ticks), or None if it is gone or not that process.

    The pidfd is opened before the start times are compared, so it cannot belong to a later process. The caller
    closes it. Raises OSError if descriptors run out.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    return _keep(pidfd, lambda: start_time(pid, proc) == start)


def _keep(pidfd: int, test: Callable[[], bool]) -> int | None:
    """Return `pidfd` if `test` returns true; otherwise, or if `test` raises, close it."""
    kept = False
    try:
        kept = test()
    finally:
        if not kept:
            os.close(pidfd)
    return pidfd if kept else None


def is_alive(pidfd: int) -> bool:
    """Return whether the process of a pidfd runs. It does while any thread runs, even if its main thread has ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return not poller.poll(0)


def peer_identity(sock: socket.socket, proc: str = "/proc") -> Peer | None:
    """Return the process that connected the AF_UNIX socket `sock`, or None if it is gone.

    If the kernel has no SO_PEERPIDFD, a process that has reused the pid since the connection cannot be distinguished.
    """
    pid, uid, gid = peer_credentials(sock)
    start = start_time(pid, proc)
    pidfd = None if start is None else _peer_pidfd(sock, pid, start, proc)
    if start is None or pidfd is None:
        return None
    # While the pidfd's process holds the pid, a start time read under that pid is its own.
    kept = _keep(pidfd, lambda: start_time(pid, proc) == start and _holds_pid(pidfd))
    return None if kept is None else Peer(Identity(pid, start), uid, gid, kept)


def parent_of(peer: Peer, proc: str = "/proc") -> Peer | None:
    """Return the parent of a peer as if it had connected; None if it is gone or another user's, in part or whole.

    The calling code closes both pidfds. Raises OSError if descriptors run out.
    """
    family = ancestry(peer.identity.pid, proc, most=2)
    if len(family) < 2 or family[0] != peer.identity:
        return None
    pid, start = family[1].pid, family[1].start_time
    pidfd = open_pidfd(pid, start, proc)
    if pidfd is None:
        return None

    def is_theirs() -> bool:
        stat = read_stat(peer.identity.pid, proc)
        return stat is not None and stat.ppid == pid and users(pid, proc) == (peer.uid, peer.uid)

    kept = _keep(pidfd, is_theirs)
    return None if kept is None else Peer(family[1], peer.uid, peer.gid, kept)


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that connected the AF_UNIX socket `sock`, as they were then."""
    pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def is_unknown_user(uid: int) -> bool:
    """Return whether a uid stands for all users unknown to our user namespace, such as root outside of it."""
    if uid != int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")):
        return False
    lines = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    return not any(int(first) <= uid < int(first) + int(many) for first, _, many in map(str.split, lines))


def _peer_pidfd(sock: socket.socket, pid: int, start: int, proc: str) -> int | None:
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return open_pidfd(pid, start, proc)
        if error.errno in _NOT_THERE:
            return None
        raise


def _holds_pid(pidfd: int) -> bool:
    """Return whether the process runs, or has ended without having been reaped by its parent yet."""
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def executable(pid: int, proc: str = "/proc") -> str:
    """Return the path of the file that a process executes; empty if it is gone or we may not read it."""
    try:
        return str(Path(f"{proc}/{pid}/exe").readlink()).removesuffix(" (deleted)")
    except OSError:
        return ""


def command(pid: int, proc: str = "/proc") -> str:
    """Return the name of a process's main thread; ``program`` if it is gone or has none."""
    return (read(f"{proc}/{pid}/comm") or b"").decode(errors="replace").strip() or "program"


def users(pid: int, proc: str = "/proc") -> tuple[int, int] | None:
    """Return the real and the effective uid of process `pid`, or None if there is no such process."""
    fields = _status(pid, "Uid", proc)
    return (int(fields[0]), int(fields[1])) if len(fields) > 1 else None


def namespaces(pid: int, proc: str = "/proc") -> int:
    """Return the number of nested pid namespaces, from that of ``/proc`` on, of process `pid`; 0: unknown."""
    return len(_status(pid, "NSpid", proc))


def is_kernel_thread(pid: int, proc: str = "/proc") -> bool:
    """Return whether `pid` is a thread of the kernel (PF_KTHREAD, proc(5), field 9 of stat)."""
    fields = (read(f"{proc}/{pid}/stat") or b"").rpartition(b")")[2].split(maxsplit=8)
    return len(fields) > 6 and bool(int(fields[6]) & _PF_KTHREAD)


def named_task(pid: int, proc: str = "/proc") -> Identity | None:
    """Return the process that ``DROM_TASK`` in the environment of process `pid` names, or None."""
    return task_in_environment(environment(pid, proc))


def task_in_environment(entries: Iterable[bytes]) -> Identity | None:
    """Return the process that ``DROM_TASK`` in an environment names, or None."""
    for entry in entries:
        name, _, value = entry.partition(b"=")
        first, _, start = value.partition(b":")
        if name == b"DROM_TASK" and len(value) < 40 and first.isdigit() and start.isdigit():
            return Identity(int(first), int(start))
    return None


def ancestry(pid: int, proc: str = "/proc", most: int = sys.maxsize, since: int = 0) -> list[Identity]:
    """Return the process `pid` and its ancestors, the nearest first; empty if it is gone.

    At most `most` are returned, and none that started before `since` (clock ticks since boot).
    """
    found: dict[int, Identity] = {}
    latest = sys.maxsize
    while pid not in found and len(found) < most and (stat := read_stat(pid, proc)):
        if not since <= stat.start_time <= latest:
            break  # too old; or too young: the parent has ended, and its pid is reused
        found[pid] = Identity(pid, latest := stat.start_time)
        pid = stat.ppid
    return list(found.values())


def _status(pid: int | str, field: str, proc: str) -> list[str]:
    """Return the words of a field of ``/proc/PID/status``; empty if there is no such process or field."""
    for line in (read(f"{proc}/{pid}/status") or b"").decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return value.split()
    return []


def effective_capabilities(proc: str = "/proc") -> int:
    """Return the effective capabilities of this process, a bit for each."""
    return int((_status("self", "CapEff", proc) or ["0"])[0], 16)


def scan(proc: str = "/proc") -> dict[int, Stat]:
    """Return the stat of every process, by pid; those that end meanwhile are left out."""
    found = ((pid, read_stat(pid, proc)) for pid in numbers(proc))
    return {pid: stat for pid, stat in found if stat}


def environment(pid: int, proc: str = "/proc") -> list[bytes]:
    """Return the environment a process was started with, up to the limit; empty if it is gone or we may not read it."""
    data = read(f"{proc}/{pid}/environ", MOST_ENVIRONMENT) or b""
    entries = data.split(b"\0")
    return entries[:-1] if len(data) == MOST_ENVIRONMENT else entries


def memory_image(pid: int, proc: str = "/proc") -> tuple[bytes, ...]:
    """Return the addresses of a process's arguments and environment, which change when it executes a program.

    These are fields 48 to 51 of stat (proc(5)); empty if the process is gone.
    """
    return tuple((read(f"{proc}/{pid}/stat") or b"").rpartition(b")")[2].split()[45:49])


def owner(pid: int, proc: str = "/proc") -> int | None:
    """Return the uid of a process, None if it is gone; that of root if others may not inspect it."""
    try:
        return os.stat(f"{proc}/{pid}").st_uid  # noqa: PTH116 - thousands of these
    except OSError:
        return None


def nearest_roots(stats: Mapping[int, Stat], roots: Collection[int]) -> dict[int, int]:
    """Return for each pid its nearest ancestor in `roots`, itself included; 0 if there is none."""
    owners: dict[int, int] = {0: 0, **{root: root for root in roots}}
    for pid in stats:
        path, at = [], pid
        while at not in owners:
            # Marked before the search goes on: parents in a snapshot that is not atomic may form a cycle.
            owners[at] = 0
            path.append(at)
            at = stats[at].ppid if at in stats else 0
        owners.update(dict.fromkeys(path, owners[at]))
    del owners[0]
    return owners


def threads(pid: int, proc: str = "/proc") -> list[int]:
    """Return the thread ids of process `pid`; empty if it is gone."""
    try:
        return numbers(f"{proc}/{pid}/task")
    except (ProcessLookupError, FileNotFoundError):
        return []


def thread_masks(pids: Iterable[int], proc: str = "/proc") -> dict[int, int]:
    """Return the OS CPUs each thread of the processes may run on, by thread id; ended threads are left out."""
    masks = {}
    for pid in pids:
        for tid in threads(pid, proc):
            with suppress(ProcessLookupError):
                masks[tid] = mask_of(os.sched_getaffinity(tid))
    return masks


def boot_id(root: str = "/") -> bytes:
    """Return the 16 bytes that identify this boot of the machine below `root`; zeros if there are none."""
    text = read(f"{root.rstrip('/')}/proc/sys/kernel/random/boot_id") or b""
    try:
        return bytes.fromhex(text.decode().strip().replace("-", "")).rjust(16, b"\0")[:16]
    except ValueError:
        return bytes(16)


def raise_fd_limit() -> int:
    """Raise this process's soft limit of open descriptors to the hard one; return the soft limit that now holds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def numbers(folder: str) -> list[int]:
    """Return the numbers among the names in a folder."""
    with os.scandir(folder) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def read(path: str, most: int = sys.maxsize) -> bytes | None:
    """Return the first `most` bytes of a file of ``/proc``, or None if it is gone or we may not read it.

    Raises OSError for other reasons.
    """
    # Not with `open`, which makes four queries of every file: agents read thousands of these.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return None
    try:
        parts = []
        while part := os.read(fd, min(most, 65536)):
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    except (ProcessLookupError, PermissionError):
        return None
    finally:
        os.close(fd)
