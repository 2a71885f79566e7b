# SPDX-License-Identifier: Apache-2.0
"""Processes that tests leave running."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil

SECONDS = 60
"""How long processes that were told to end may take on a machine that has other things to do."""


class LeftProcesses:
    """The processes that tests of this process start from now on; their temporary folders lie in `folder`.

    Such a process is a descendant of this one, or has `folder` in its environment, its command line or its working
    directory. An orphan is known by the latter alone.
    """

    def __init__(self, folder: Path) -> None:
        self._name = f"{folder}/".encode()
        self._before = set(psutil.pids())

    def assert_none(self, *, orphans: bool = False, seconds: float = SECONDS) -> None:
        """Wait up to `seconds` until none runs, of `orphans` alone if told; kill those that still do, and fail."""
        deadline = time.monotonic() + seconds
        while found := self._find(orphans=orphans):
            if time.monotonic() > deadline:
                for pid in found:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                raise AssertionError("\n".join(["tests have left processes running:", *found.values()]))
            time.sleep(0.01)

    def _find(self, *, orphans: bool) -> dict[int, str]:
        """Return a line about each process by pid."""
        tracker = vars(resource_tracker._resource_tracker)["_pid"]
        server = vars(forkserver._forkserver)["_forkserver_pid"]  # both are Python's, and end with this process
        new = set(psutil.pids()) - self._before - {tracker, server}
        named = {pid: line for pid in new if (line := self._describe(pid))}
        if orphans and not named:
            return named  # which is the rule, and costs less
        descendants = {child.pid for child in psutil.Process().children(recursive=True)}
        if orphans:
            return {pid: line for pid, line in named.items() if pid not in descendants}
        return named | {pid: line for pid in descendants & new if (line := self._describe(pid, named=False))}

    def _describe(self, pid: int, *, named: bool = True) -> str:
        """Return the command line and the working directory of a process, if it is there and no zombie.

        `named`: if it has the folder in these or in its environment.
        """
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            words, place = (process / "cmdline").read_bytes(), bytes((process / "cwd").readlink())
            if not named or self._name in b"".join((words, place, (process / "environ").read_bytes())):
                return f"{pid}: {words.rstrip(bytes(1)).replace(bytes(1), b' ').decode()} in {place.decode()}"
        return ""
