# SPDX-License-Identifier: Apache-2.0
"""What a node knows of its scheduler's jobs, on disk: a folder per attempt, so that no crash loses any.

    start.json   what is to be started, and in which boot; it appears complete, before anything is started
    pid          of drom-step, before it starts anything, and of the program once that runs
    status.new   blanks, so that a full disk keeps no status from being written
    status       how it ended, written by drom-step, complete
    cores        the number of cores ordered since
    group        the control group that limits its memory, if there is one, before that is made
    save         of a filler: the last order to save it (`drom.agent.execution.filler`)
    report       of a filler: how far it has come
    notified     there once it was sent the signal that it gets before its limit
    step.N       the folder of a step, a command that is started within the attempt: it has these files too

The folder itself is locked (flock) from before drom-step is started until drom-step has died. These files and the
lock together give the state of the attempt: see `Folder.state`.

A loss of power ends the programs too. It must not lose the status of attempts that had ended before: drom-step
writes everything through to the disk when it writes a status, which delays no other process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.enforcement import memory_limits
from drom.agent.execution.protocol import Start, as_json, from_json
from drom.agent.system.ancestors import fault_above
from drom.agent.system.files import lock_folder

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Iterator

STATUS_SIZE = 512
"""Bytes kept for a status; as in drom-step."""
NEVER, BEGINNING, RUNNING, OVER, LOST = "never", "beginning", "running", "over", "lost"
"""States of an attempt. never: drom-step started nothing, and is dead. beginning: it lives, and will start the program.
running: it has started the program, or is about to. over: it has written a status. lost: it has died without a status,
or the machine was booted again."""


OURS = re.compile(r"[1-9]\d{0,17}\.[1-9]\d{0,8}", re.ASCII)
"""The name of an attempt's folder: the number of its job and of the attempt."""
_REPLACED = ("cores", "save", "report")
_ONCE = ("start.json", "start.new", "pid", "status", "status.new", "group", "notified")
FILES = frozenset({*_ONCE, *_REPLACED, *(f"{one}.new" for one in _REPLACED)})
"""The files in the folder of an attempt."""
STEP = "step."
"""How the name of a step's folder begins."""
FIELDS = frozenset(one.name for one in fields(Start))


class SpoolError(DromError):
    """Raised when a spool cannot be used; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Status:
    """How an attempt ended. `refused` is what drom-step could not do, with its errno, if the program never ran."""

    status: int = -9
    time: float = 0.0
    cpu_seconds: float = 0.0
    max_rss: int = 0
    refused: str = ""
    errno: int = 0


def status_in(text: bytes) -> Status | None:
    """Return the status in a text that drom-step has written, None if there is none."""
    try:
        return Status(**json.loads(text))
    except (ValueError, TypeError):
        return None


class Folder:
    """The folder of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, start: Start, boot: str) -> None:
        """Write down what is to be started. Raises OSError, and then adds nothing to the spool."""
        self.path.mkdir(mode=0o700)
        try:
            (self.path / "status.new").write_bytes(b" " * STATUS_SIZE)
            text = json.dumps({"boot": boot, "start": as_json(start)}, default=as_json).encode()
            (self.path / "start.new").write_bytes(text)
            (self.path / "start.new").rename(self.path / "start.json")
        except OSError:
            self.remove()
            raise

    def lock(self) -> int | None:
        """Return a descriptor that locks the folder while it, or a copy of it, is open; None if already locked."""
        return lock_folder(self.path)

    def is_locked(self) -> bool:
        """Return whether the attempt's drom-step lives, or is about to be started."""
        fd = self.lock()
        if fd is not None:
            os.close(fd)
        return fd is None

    def state(self, boot: str) -> str:
        """Return the state of the attempt, as seen in the boot `boot`: one of the states above."""
        if (self.path / "status").exists():
            return OVER
        if self._boot() != boot:
            return LOST
        if self.is_locked():
            return RUNNING if self.pids() else BEGINNING
        if (self.path / "status").exists():  # written after the first check, before the lock was released
            return OVER
        return LOST if self.pids() else NEVER

    def pids(self) -> list[int]:
        """Return the pids of drom-step and of the program, as far as they are recorded."""
        try:
            text = (self.path / "pid").read_bytes()
        except OSError:
            return []
        return [int(line) for line in re.findall(rb"^(\d{1,7})\n", text, re.MULTILINE)]

    def began(self) -> float:
        """Return when the program was started (unix seconds); 0.0 if it was not, as far as is recorded."""
        with contextlib.suppress(OSError):
            if len(self.pids()) > 1:
                return (self.path / "pid").stat().st_mtime
        return 0.0

    def status(self) -> Status | None:
        """Return how the attempt ended, or None if no status was written, or it cannot be read."""
        try:
            return status_in((self.path / "status").read_bytes())
        except OSError:
            return None

    def exists(self) -> bool:
        """Return whether anything may have been started."""
        return (self.path / "start.json").exists()

    def start(self) -> Start | None:
        """Return what was to be started, as far as this version knows its fields; None if it cannot be read."""
        try:
            found = self._began()["start"]
            return from_json(Start, {name: found[name] for name in found.keys() & FIELDS})
        except (OSError, KeyError, ValueError, AttributeError):
            return None

    def order(self, cores: int) -> None:
        """Write down how many cores were ordered. Raises OSError."""
        (self.path / "cores.new").write_text(f"{cores}\n", encoding="ascii")
        (self.path / "cores.new").rename(self.path / "cores")

    def cores(self) -> int | None:
        """Return how many cores were ordered last, None if no order has changed the number since the start."""
        try:
            return int((self.path / "cores").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None

    def notify_once(self) -> bool:
        """Record that the attempt is sent the signal before its limit; return whether it was not sent it before."""
        try:
            (self.path / "notified").touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # the disk is full: a signal that comes twice does less harm than none
            return True
        return True

    def confine(self, group: Path, memory: int) -> None:
        """Make the control group that limits the memory of the attempt to so many bytes. Raises OSError."""
        (self.path / "group").write_bytes(os.fsencode(group))
        memory_limits.make(group, memory)

    def group(self) -> Path | None:
        """Return the control group that limits the memory of the attempt, None if there is none."""
        try:
            return Path(os.fsdecode((self.path / "group").read_bytes()))
        except OSError:
            return None

    def remove(self) -> None:
        """Remove the folder and its contents, and its control group, as far as possible."""
        if group := self.group():
            memory_limits.remove(group)
        with contextlib.suppress(OSError):
            (self.path / "start.json").unlink()  # first: what remains then counts as never begun
        shutil.rmtree(self.path, ignore_errors=True)

    def _began(self) -> dict[str, Any]:
        value = json.loads((self.path / "start.json").read_bytes())
        return value if isinstance(value, dict) else {}

    def _boot(self) -> str:
        try:
            return str(self._began().get("boot"))
        except (OSError, ValueError):
            return ""


class Spool:
    """The folders of all attempts on a node, below `path`, which is created and locked. Raises `SpoolError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if fault := fault_above(path, os.geteuid()):
                raise SpoolError(f"{fault}, and so may replace {path}: choose another --spool.")
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_uid != os.geteuid() or path.lstat().st_uid not in (0, os.geteuid()):
                msg = f"{path} belongs to another user: choose another --spool."
                raise SpoolError(msg)
            if others := [one.name for one in path.iterdir() if not _is_attempt(one)]:
                msg = f"{path} contains other files, such as {others[0]}: choose an empty folder with --spool."
                raise SpoolError(msg)
            path.chmod(0o700)  # environments are in it
            lock = lock_folder(path)
        except OSError as error:
            msg = f"cannot use {path}: {os.strerror(error.errno or 0)}: choose a folder you may write with --spool."
            raise SpoolError(msg) from error
        if lock is None:
            msg = f"another agent uses {path}: give each its own --spool."
            raise SpoolError(msg)
        self._lock = lock

    def folder(self, job: int, attempt: int) -> Folder:
        """Return the folder of an attempt, whether it exists or not."""
        return Folder(self.path / f"{job}.{attempt}")

    def list_attempts(self) -> Iterator[Folder]:
        """Yield the folder of each attempt that may have begun; remove the others."""
        for path in sorted(self.path.iterdir()):
            folder = Folder(path)
            if folder.exists():
                yield folder
            else:
                folder.remove()

    def close(self) -> None:
        """Unlock the spool for the next agent; remove it if it is empty."""
        with contextlib.suppress(OSError):
            self.path.rmdir()
        os.close(self._lock)


def _is_attempt(path: Path) -> bool:
    """Return whether a path is the folder of an attempt, also of one that was never begun. Raises OSError."""
    if not OURS.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
        return False
    names = {one.name for one in path.iterdir() if not one.name.startswith(STEP)}
    return "start.json" in names or names <= FILES
