# SPDX-License-Identifier: Apache-2.0
"""Saves jobs to the images of a store, and restores them. How far CRIU came is read from the store alone.

A caller that dies leaves its CRIU behind, which completes what it does. `Saver.recover` then brings the image into the
state that the dead caller would have left.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import time
from typing import TYPE_CHECKING, Protocol

from drom.agent.checkpoint import faults, processes
from drom.agent.checkpoint.images import (
    CONTAINER,
    MOST_FILES,
    NEW,
    PROCESSES,
    RESTORED,
    RESTORING,
    WHOLE,
    CheckpointError,
    CrashedError,
    failure,
)
from drom.agent.checkpoint.store import is_full, write
from drom.agent.checkpoint.tools import ABANDONED, SIZES, Limit, within
from drom.agent.system import proc
from drom.agent.system.files import open_plain, read_plain

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from drom.agent.checkpoint.images import Image
    from drom.agent.checkpoint.store import Entry, ImageStore
    from drom.agent.checkpoint.tools import Tools

LONGEST_LOG = 1 << 20
"""Bytes of a log that are read, the last ones: CRIU writes more for a job of many processes."""
LONGEST_LINE = 128
"""Bytes of a line with the name and the size of a file."""
RESTORE_SECONDS = 600.0
"""Seconds after which a restore is ended. If CRIU itself was killed, runc waits for it in vain."""
SAVE_SECONDS = 3600.0
ORPHAN_SECONDS = 1.0
"""Seconds after which children of a killed CRIU are looked for."""
ABANDON_SECONDS = 30.0
"""Seconds that CRIU has to leave a job that it was to save."""
_FAILED = "Dumping FAILED"
"""What CRIU logs when it has failed and the processes go on."""
_TICKS = os.sysconf("SC_CLK_TCK")
_OF_RESTORE = ("restore.log", "runc.log", "pid", "since")
"""Files of a restore in the folder of an image."""


class Way(Protocol):
    """How a job is saved and restored. Methods raise `CheckpointError`."""

    def dump(self, image: Image, folder: Path) -> list[str]:
        """Return the command that saves a job in a folder and ends its processes."""

    def thaw(self, image: Image) -> None:
        """Thaw a job that was not saved."""

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

    def save(self, image: Image, limit: Limit | None = None) -> Image:
        """Save a job and return its image.

        Raises `CheckpointError` if it cannot be saved, or not before `limit`; then it goes on. Raises `CrashedError` if
        CRIU was killed, which may have changed the processes: they are killed.
        """
        way = self._way(image)
        limit = limit or within(SAVE_SECONDS)
        entry = self._store.begin(image, processes.memory(processes.descendants(image.pid)))
        with _released(entry):
            try:
                process = self._tools.start(way.dump(entry.image, entry.path), entry.lock, entry.image.reserved)
            except CheckpointError:
                self._discard(entry)
                raise
            ends = _await_end(process, limit, lambda: _is_too_large(entry))
            completes = _has_failed_cleanly(entry) if ends else _abandon(entry, process)
            status = process.wait()
            if crashed := status != 0 and not completes:
                self._clean(entry, entry.image.boot, entry.image.start_time)
            why = "" if status == 0 else _reason(entry, "dump.log", in_time=ends)
            entry.look()
            self._settle_save(entry, ended=status == 0)
            if entry.state != WHOLE:
                fate = "goes on" if _stands(image) else "has ended"
                msg = f"job {image.job} was not saved and {fate}: {why}"
                raise CrashedError(msg, why) if crashed else CheckpointError(msg, why)
        return entry.image

    def restore(self, job: int, generation: int) -> int:
        """Restore a job from its image, and return the number of its first process.

        The image stays, in the state RESTORED, until it is removed. Raises `CheckpointError` if the image is not there
        or cannot be restored; in the latter case it stays whole.
        """
        entry = self.resume(job, generation, within(RESTORE_SECONDS))
        with _released(entry):
            return restored_pid(entry)

    def resume(self, job: int, generation: int, limit: Limit) -> Entry:
        """Restore a job before `limit`, and return its image, which is still locked. Raises as `restore`."""
        entry = self._store.take(job, generation, WHOLE, RESTORING)
        cause: Exception | None = None
        with contextlib.ExitStack() as undo:
            undo.callback(entry.release)
            try:
                _check_files(entry)
                write(entry.path / "since", f"{proc.boot_id().hex()} {_ticks()}".encode())
                process = self._tools.start(self._way(entry.image).restore(entry.image, entry.path), entry.lock)
                in_time = _await_end(process, limit)
                if not in_time:
                    _kill_all(process)
                process.wait()
                entry.look()
                why = _reason(entry, "restore.log", in_time=in_time)
            except (CheckpointError, OSError) as error:
                why, in_time, cause = f"{error}", False, error
            if not in_time or entry.state != RESTORED:
                full = is_full(self._store.path)
                self._settle_restore(entry)
                raise failure(f"job {job} was not restored, its image stays: {why}", cause, full=full)
            undo.pop_all()
        return entry

    def settle(self, job: int) -> None:
        """Kill what restores left of a job, and remove all images but its last whole one. Images in use stay."""
        for entry in self._store.take_unlocked():
            if entry.image.job == job:
                self._settle(entry)
        self._keep_last(job)

    def tidy(self) -> None:
        """Settle all images that are not in use, also those of restored jobs after their keeper has died."""
        self.recover()
        for entry in self._store.take_unlocked():
            self._settle(entry)
        for job in {one.image.job for one in self._store.entries()}:
            self._keep_last(job)
        self._store.sweep()

    def _settle(self, entry: Entry) -> None:
        if entry.state == NEW:
            self._discard(entry)
        elif entry.state in (RESTORING, RESTORED):
            self._settle_restore(entry)

    def _keep_last(self, job: int) -> None:
        """Remove a job's whole images but the last one, unless they are in use."""
        whole = [one for one in self._store.entries() if one.image.job == job and one.state == WHOLE]
        for entry in whole[:-1]:
            with contextlib.suppress(CheckpointError):
                self._store.remove(job, entry.image.generation)

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
                self._discard(entry)
            elif entry.state == WHOLE:
                self._settle_save(entry, ended=(entry.path / "stats-dump").exists())
            elif entry.state == RESTORING:
                self._settle_restore(entry)

    def _settle_save(self, entry: Entry, *, ended: bool) -> None:
        """Remove an incomplete image, or that of a job that still runs. `ended`: CRIU has ended the processes."""
        if entry.state == NEW or not (ended or _has_ended(entry.image)):
            self._discard(entry)
        elif not ended:
            self._clean(entry, entry.image.boot, entry.image.start_time)

    def _discard(self, entry: Entry) -> None:
        """Remove the image of a job that was not saved, and let the job go on."""
        if way := self._ways.get(entry.image.way):
            way.thaw(entry.image)
        entry.remove()

    def _settle_restore(self, entry: Entry) -> None:
        """Make the image of a job that was not resumed available again."""
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


def _await_end(process: subprocess.Popen[bytes], limit: Limit, must_stop: Callable[[], bool] = lambda: False) -> bool:
    """Wait for the end of a child before `limit`, and before `must_stop`; return False if it has not come.

    While CRIU tries what the kernel can do, it has children that stop themselves. If it is killed meanwhile, runc waits
    for such a child.
    """
    while not Limit(min(limit.until, time.monotonic() + ORPHAN_SECONDS), limit.stop).await_end(process):
        if limit.is_over() or must_stop():
            return False
        _kill_orphans(process.pid)
    return True


def _kill_orphans(session: int) -> None:
    """Kill the stopped processes of CRIU in a session that are orphans: their parent is outside of the session."""
    for pid, stat in proc.scan().items():
        if stat.state == "T" and _is_in(pid, session) and not _is_in(stat.ppid, session) and _is_criu(pid):
            _kill(pid, stat)


def _is_in(pid: int, session: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == session
    return False


def _is_criu(pid: int) -> bool:
    return os.path.basename(proc.executable(pid)) == "criu"  # noqa: PTH119 - a text


def _kill(pid: int, stat: proc.Stat) -> None:
    pidfd = proc.open_pidfd(pid, stat.start_time)
    if pidfd is not None:
        processes.kill(pid, pidfd)
        os.close(pidfd)


def _has_failed_cleanly(entry: Entry) -> bool:
    """Return whether CRIU has touched no process of a job, or says at its end that it has left them in order."""
    log = entry.path / "dump.log"
    return not log.exists() or _FAILED in _text(log)


def _abandon(entry: Entry, process: subprocess.Popen[bytes]) -> bool:
    """Make CRIU fail, so that it restores the processes of the job; return False if it had to be killed.

    A killed CRIU leaves its code in the processes. CRIU fails cleanly if it cannot write, and if the script that it
    calls last fails.
    """
    with contextlib.suppress(OSError):  # the image is whole
        write(entry.path / ABANDONED, b"")
    for pid in processes.descendants(process.pid):
        if _is_criu(pid):
            with contextlib.suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
    if within(ABANDON_SECONDS).await_end(process):
        return True
    _kill_all(process)
    return False


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """Kill all descendants of a child, which then ends; kill it too if it does not.

    A runc that is killed while it restores leaves the folders of the node mounted below the bundle.
    """
    for pid in processes.descendants(process.pid) - {process.pid}:
        if stat := proc.read_stat(pid):
            _kill(pid, stat)
    if not within(ABANDON_SECONDS).await_end(process):
        process.kill()


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


def _check_files(entry: Entry) -> None:
    """Raise `CheckpointError` for an image with a file of another size than CRIU wrote, on which it could hang."""
    try:
        lines = read_plain(entry.path / SIZES, MOST_FILES * LONGEST_LINE).decode().splitlines()
    except OSError:
        return  # an older image
    for name, _, size in (line.rpartition(" ") for line in lines):
        file = entry.path / name
        if not file.is_file() or str(file.lstat().st_size) != size:
            msg = f"its image is damaged (file {name}): cancel the job and submit it again."
            raise CheckpointError(msg)


def _reason(entry: Entry, log: str, *, in_time: bool) -> str:
    """Return why CRIU failed, as the end of a sentence."""
    if _is_too_large(entry):
        return "its image is larger than the store has room for: free space there or raise the quota."
    if not in_time:
        return "its time for that was over."
    return faults.of_criu(_text(entry.path / log), faults.of_runc(_text(entry.path / "runc.log")))


def _is_too_large(entry: Entry) -> bool:
    """Return whether a new image is larger than reserved: CRIU bounds each file, not all files together."""
    return entry.state == NEW and entry.size() > entry.image.reserved


def _text(path: Path) -> str:
    """Return the last `LONGEST_LOG` bytes of a file; an empty text if it cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_LOG))
            return file.read(LONGEST_LOG).decode(errors="replace")
    except OSError:
        return ""


def _begun(entry: Entry) -> tuple[str, int]:
    """Return in which boot and at how many ticks a restore began; an empty boot if that was not written."""
    boot, _, since = _text(entry.path / "since").partition(" ")
    return (boot, int(since)) if since else ("", 0)


def _ticks() -> int:
    """Return the present time in ticks since boot, as start times of processes."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS)
