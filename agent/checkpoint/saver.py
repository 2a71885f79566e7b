# SPDX-License-Identifier: Apache-2.0
"""Saves jobs to the images of a store, and restores them. How far CRIU came is read from the store alone.

A caller that dies leaves its CRIU behind, which completes what it does. `Saver.recover` then brings the image into the
state that the dead caller would have left.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import TYPE_CHECKING, Protocol

from drom.agent.checkpoint import faults, processes
from drom.agent.checkpoint.images import CONTAINER, NEW, PROCESSES, RESTORED, RESTORING, WHOLE, CheckpointError
from drom.agent.checkpoint.store import write
from drom.agent.system import proc
from drom.agent.system.files import read_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from drom.agent.checkpoint.images import Image
    from drom.agent.checkpoint.store import Entry, ImageStore
    from drom.agent.checkpoint.tools import Tools

LONGEST_LOG = 1 << 20
RESTORE_SECONDS = 600.0
"""Seconds after which `Saver.recover` ends a restore. CRIU itself was killed: runc waits for it in vain."""
_TICKS = os.sysconf("SC_CLK_TCK")
_OF_RESTORE = ("restore.log", "runc.log", "pid", "since")
"""Files of a restore in the folder of an image."""


class Way(Protocol):
    """How a job is saved and restored. Methods raise `CheckpointError`."""

    def dump(self, image: Image, folder: Path) -> list[str]:
        """Return the command that saves a job in a folder and ends its processes."""

    def restore(self, image: Image, folder: Path) -> list[str]:
        """Return the command that restores a job."""

    def clean(self, image: Image, folder: Path, since: int) -> None:
        """Kill what is left of a job: its processes that started at `since` (ticks since boot) or later."""


class Saver:
    """Saves to and restores from a store, in the ways that this node has."""

    def __init__(self, store: ImageStore, tools: Tools, ways: Mapping[str, Way]) -> None:
        self._store = store
        self._tools = tools
        self._ways = ways

    def save(self, image: Image) -> Image:
        """Save a job and return its image.

        Raises `CheckpointError` if it cannot be saved; then it goes on, unless CRIU was killed and has ended it.
        """
        way = self._way(image)
        entry = self._store.begin(image, processes.memory(processes.descendants(image.pid)))
        with _released(entry):
            try:
                status = self._tools.run(way.dump(entry.image, entry.path), entry.lock, entry.image.reserved)
            except CheckpointError:
                entry.remove()
                raise
            why = "" if status == 0 else _reason(entry, "dump.log")
            entry.look()
            self._settle_save(entry, ended=status == 0)
            if entry.state != WHOLE:
                fate = "goes on" if _stands(image) else "has ended"
                msg = f"job {image.job} was not saved and {fate}: {why}"
                raise CheckpointError(msg)
        return entry.image

    def restore(self, job: int, generation: int) -> int:
        """Restore a job from its image, and return the number of its first process.

        The image stays, in the state RESTORED, until it is removed. Raises `CheckpointError` if the image is not there
        or cannot be restored; in the latter case it stays whole.
        """
        entry = self._store.take(job, generation, WHOLE, RESTORING)
        with _released(entry):
            try:
                write(entry.path / "since", f"{proc.boot_id().hex()} {_ticks()}".encode())
                command = self._way(entry.image).restore(entry.image, entry.path)
                self._tools.run(command, entry.lock)
                why = _reason(entry, "restore.log")
            except (CheckpointError, OSError) as error:
                why = f"{error}"
            entry.look()
            if entry.state != RESTORED:
                self._settle_restore(entry)
                msg = f"job {job} was not restored, its image stays: {why}"
                raise CheckpointError(msg)
            return restored_pid(entry)

    def recover(self) -> None:
        """Settle the images that earlier callers left behind, but those that their CRIU still works on.

        Call this at the start and from time to time: it ends restores that take longer than `RESTORE_SECONDS`.
        """
        for entry in self._store.entries():
            if entry.state == RESTORING:
                boot, since = _begun(entry)
                if _ticks() - since > RESTORE_SECONDS * _TICKS:
                    self._clean(entry, boot, since)
        for entry in self._store.take_unlocked():
            if entry.state == NEW:
                entry.remove()
            elif entry.state == WHOLE:
                self._settle_save(entry, ended=(entry.path / "stats-dump").exists())
            elif entry.state == RESTORING:
                self._settle_restore(entry)

    def _settle_save(self, entry: Entry, *, ended: bool) -> None:
        """Remove an image that is not whole, or whose job runs. `ended` says that CRIU has ended the processes."""
        if entry.state == NEW or not (ended or _has_ended(entry.image)):
            entry.remove()
        elif not ended:
            self._clean(entry, entry.image.boot, entry.image.start_time)

    def _settle_restore(self, entry: Entry) -> None:
        """Give back an image whose job was not resumed."""
        self._clean(entry, *_begun(entry))
        for name in _OF_RESTORE:
            (entry.path / name).unlink(missing_ok=True)
        entry.rename(WHOLE)

    def _clean(self, entry: Entry, boot: str, since: int) -> None:
        """Kill what is left of a job; nothing is left of an earlier boot."""
        way = self._ways.get(entry.image.way)
        if way and boot == proc.boot_id().hex():
            way.clean(entry.image, entry.path, since)

    def _way(self, image: Image) -> Way:
        try:
            return self._ways[image.way]
        except KeyError:
            tool = {CONTAINER: "runc", PROCESSES: "CRIU"}[image.way]
            msg = f"job {image.job} needs {tool}, which this node lacks: install it, or choose another node."
            raise CheckpointError(msg) from None


def restored_pid(entry: Entry) -> int:
    """Return the number of the first process of a restored job. Raises `CheckpointError` if it is not known."""
    try:
        return int(read_plain(entry.path / "pid", 32))
    except (OSError, ValueError) as error:
        msg = f"job {entry.image.job} was restored, but its process number is not known: end it by hand."
        raise CheckpointError(msg) from error


@contextlib.contextmanager
def _released(entry: Entry) -> Iterator[None]:
    try:
        yield
    finally:
        entry.release()


def _stands(image: Image) -> bool:
    """Return whether the job's first process has not ended."""
    stat = proc.read_stat(image.pid)
    return stat is not None and stat.start_time == image.start_time and stat.state not in "ZX"


def _has_ended(image: Image) -> bool:
    """Return whether the job's first process has ended, which CRIU kills first; a killed process may take a while."""
    pidfd = proc.open_pidfd(image.pid, image.start_time) if image.boot == proc.boot_id().hex() else None
    if pidfd is None:
        return True
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    try:
        return bool(poller.poll(processes.PATIENCE_MS))
    finally:
        os.close(pidfd)


def _reason(entry: Entry, log: str) -> str:
    """Return why CRIU failed, as the end of a sentence."""
    if entry.state == NEW and entry.path.is_dir() and entry.size() > entry.image.reserved:
        return "its image is larger than the store has room for: free space there or raise the quota."
    return faults.of_criu(_text(entry.path / log), faults.of_runc(_text(entry.path / "runc.log")))


def _text(path: Path) -> str:
    try:
        return read_plain(path, LONGEST_LOG).decode(errors="replace")
    except OSError:
        return ""


def _begun(entry: Entry) -> tuple[str, int]:
    """Return in which boot and at how many ticks a restore began; an empty boot if that was not written."""
    boot, _, since = _text(entry.path / "since").partition(" ")
    return (boot, int(since)) if since else ("", 0)


def _ticks() -> int:
    """Return the present time in ticks since boot, as start times of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
