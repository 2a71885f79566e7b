# SPDX-License-Identifier: Apache-2.0
"""Freezes the control group of a container before it is saved, and thaws it.

CRIU would freeze it too, but looks only each 100 ms whether that is done, and does not choose the moment. It cannot
save a thread that waits in vfork() until its child executes a program: the thread does not stop, and CRIU gives up
after 10 s. Shells wait like that whenever they start a program.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from drom.agent.system import proc

PATIENCE = 1.0
"""Seconds in which a moment is looked for at which CRIU can save a container."""
_SETTLING = 0.05
"""Seconds in which threads freeze. In version 1 one that waits in vfork() may never do so."""
_TICK = 0.001
"""Seconds after which the state of a group is read again, and for which threads go on that cannot be saved."""
GROUPS = Path("/sys/fs/cgroup")
_VFORKS = {"x86_64": (b"56", b"58", b"435"), "aarch64": (b"220", b"435")}.get(os.uname().machine, (b"435",))
"""Numbers of the system calls clone, vfork and clone3: a thread that is frozen in one of them waits for its child."""


@dataclass(frozen=True, slots=True)
class Group:
    """A control group of version 1 or 2: its files, and what is written to them or read. Methods raise OSError."""

    state: Path
    thawed: str
    frozen: str
    events: Path
    event: str
    threads: Path

    def freeze(self) -> None:
        """Begin to freeze all threads."""
        self.state.write_text(self.frozen, encoding="ascii")

    def thaw(self) -> None:
        """Thaw all threads."""
        self.state.write_text(self.thawed, encoding="ascii")

    def is_frozen(self) -> bool:
        """Return whether all threads are frozen."""
        return self.event in self.events.read_text(encoding="ascii").splitlines()

    def settles(self) -> bool:
        """Wait until all threads are frozen; return whether they are."""
        until = time.monotonic() + _SETTLING
        while not (frozen := self.is_frozen()) and time.monotonic() < until:
            time.sleep(_TICK)
        return frozen

    def waits_in_vfork(self) -> bool:
        """Return whether a frozen thread waits until its child executes a program."""
        threads = self.threads.read_text(encoding="ascii").split()
        return any((proc.read(f"/proc/{one}/syscall") or b"").split(b" ")[0] in _VFORKS for one in threads)


def groups(name: str) -> list[Group]:
    """Return the control group of a container, none if it does not exist."""
    v1, v2 = GROUPS / "freezer" / name, GROUPS / name
    found = (
        Group(v1 / "freezer.state", "THAWED", "FROZEN", v1 / "freezer.state", "FROZEN", v1 / "tasks"),
        Group(v2 / "cgroup.freeze", "0", "1", v2 / "cgroup.events", "frozen 1", v2 / "cgroup.threads"),
    )
    return [group for group in found if group.state.exists()]


def freeze(name: str) -> None:
    """Freeze a container, if it exists, at a moment at which CRIU can save it.

    If there is none within `PATIENCE`, leave it to CRIU, thawed: runc waits for ever for one that is freezing.
    """
    until = time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):  # it has ended
        for group in groups(name):
            while time.monotonic() < until:
                group.freeze()
                if group.settles() and not group.waits_in_vfork():
                    break
                group.thaw()
                time.sleep(_TICK)


def thaw(name: str) -> None:
    """Thaw a container, if it exists, so that its processes can run, or end if killed."""
    with contextlib.suppress(OSError):  # it has ended
        for group in groups(name):
            group.thaw()
