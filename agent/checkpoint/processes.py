# SPDX-License-Identifier: Apache-2.0
"""Saves plain processes: a job's first process, the leader of a session of its own, and all its descendants.

They are restored with their old process numbers, which must be free.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
from typing import TYPE_CHECKING

from drom.agent.checkpoint.images import CheckpointError
from drom.agent.checkpoint.tools import GHOST_LIMIT
from drom.agent.system import proc

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from drom.agent.checkpoint.images import Image
    from drom.agent.checkpoint.tools import Tools

PATIENCE_MS = 5000
"""Milliseconds within which a killed process ends; one that is longer there runs."""
_MEMORY = re.compile(r"mm-(\d{1,7})\.img", re.ASCII)
"""A file of CRIU for each process that an image contains."""


class Processes:
    """Saves and restores plain processes by CRIU alone."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def dump(self, image: Image, folder: Path) -> list[str]:
        """Return the command that saves a job. Raises `CheckpointError` if it has processes of another user."""
        for pid in descendants(image.pid):
            if (users := proc.users(pid)) and set(users) != {image.uid}:
                msg = f"job {image.job} has a process of another user ({pid}): end that before a save."
                raise CheckpointError(msg)
        return [*self._criu("dump", folder), "--tree", str(image.pid), "--ghost-limit", str(GHOST_LIMIT)]

    def thaw(self, image: Image) -> None:
        """Do nothing: CRIU itself lets processes go on that it has not saved."""

    def restore(self, image: Image, folder: Path) -> list[str]:  # noqa: ARG002 - as of the other way
        """Return the command that restores a job."""
        return [*self._criu("restore", folder), "--restore-detached"]

    def _criu(self, action: str, folder: Path) -> tuple[str, ...]:
        files = ("-D", str(folder), "-o", f"{action}.log")
        options = ("--manage-cgroups=ignore", "--file-locks", "--cpu-cap=ins")
        return (self._tools.criu, action, "--no-default-config", "-v1", *files, *options)

    def clean(self, image: Image, folder: Path, since: int) -> None:
        """Kill and reap what CRIU left of a job: its processes that started at `since` ticks or later."""
        pids = {int(found[1]) for one in folder.iterdir() if (found := _MEMORY.fullmatch(one.name))}
        for pid in pids:
            stat = proc.read_stat(pid)
            if stat is None or stat.start_time < since:
                continue
            pidfd = proc.open_pidfd(pid, stat.start_time)
            if pidfd is None:
                continue
            if _is_theirs(pid, pids, image.uid):
                kill(pid, pidfd)
            os.close(pidfd)


def kill(pid: int, pidfd: int) -> None:
    """Kill a process, wait a while for its end, and reap it if it is a child."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(PATIENCE_MS)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def descendants(pid: int) -> set[int]:
    """Return a process and all its descendants."""
    return {one for one, root in proc.nearest_roots(proc.scan(), {pid}).items() if root == pid}


def memory(pids: Iterable[int]) -> int:
    """Return the bytes of memory of processes, also swapped, each counting what they share."""
    return sum(map(_memory, pids))


def _memory(pid: int) -> int:
    text = (proc.read(f"/proc/{pid}/status") or b"").decode(errors="replace")
    return sum(int(found) << 10 for found in re.findall(r"^Vm(?:RSS|Swap):\s+(\d+) kB$", text, re.MULTILINE))


def _is_theirs(pid: int, pids: set[int], uid: int) -> bool:
    """Return whether a process is the job's, or CRIU's that was to become one."""
    if os.path.basename(proc.executable(pid)) in {"criu", ""}:  # noqa: PTH119 - a text; empty while a process ends
        return True
    users = proc.users(pid)
    try:
        return users is not None and set(users) == {uid} and os.getsid(pid) in pids
    except ProcessLookupError:
        return False
