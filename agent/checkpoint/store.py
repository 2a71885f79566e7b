# SPDX-License-Identifier: Apache-2.0
"""The images of a node: folders that only root can read, each with one state, moved from state to state by renames.

The folder of an image is locked (flock) while a save, a restore or a transfer works on it. What runs CRIU inherits the
lock and carries on when its caller dies, so an image that is not locked can be settled by the next agent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.checkpoint import images
from drom.agent.checkpoint.images import (
    NEW,
    RECORD,
    REMOVED,
    RESTORED,
    RESTORING,
    WHOLE,
    CheckpointError,
    Image,
    Quota,
)
from drom.agent.system.ancestors import fault_above
from drom.agent.system.files import lock_folder, read_plain
from drom.agent.system.mounts import remove_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_RECORD = 1 << 20
"""Most bytes of an image's record: `images.MOST_BINDS` of the longest paths."""
TOOLS = "tools"
"""The folder in a store for what CRIU and runc need (`tools.prepare`)."""


@dataclass(slots=True)
class Entry:
    """An image in the store, and its state. While it is taken, `lock` is a descriptor that locks it."""

    image: Image
    state: str
    folder: Path
    lock: int = -1

    @property
    def path(self) -> Path:
        """The folder of the image in its present state."""
        return self.folder / f"{self.image.name}{self.state}"

    def rename(self, state: str) -> None:
        """Change the state, durably. Raises `CheckpointError`, also if another has changed it."""
        try:
            self.path.rename(self.folder / f"{self.image.name}{state}")
            self.state = state
            sync(self.folder)
        except OSError as error:
            msg = f"the image of job {self.image.job} cannot be renamed: {error.strerror}."
            raise CheckpointError(msg) from error

    def look(self) -> None:
        """Read the state again, which CRIU changes: from NEW to WHOLE, and from RESTORING to RESTORED."""
        state = {NEW: WHOLE, RESTORING: RESTORED}[self.state]
        if (self.folder / f"{self.image.name}{state}").is_dir():
            self.state = state

    def remove(self) -> None:
        """Remove the image, unless CRIU changes its state at the same time."""
        with contextlib.suppress(CheckpointError):
            self.rename(REMOVED)
            remove_folder(self.path)

    def release(self) -> None:
        """Unlock the image."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def size(self) -> int:
        """Return the bytes of its files; 0 if its state has just changed."""
        try:
            return sum(one.lstat().st_size for one in self.path.iterdir())
        except OSError:
            return 0


class ImageStore:
    """The images below `path`, which is created and locked, within a quota. Raises `CheckpointError`.

    One thread uses it.
    """

    def __init__(self, path: Path, quota: Quota) -> None:
        self.path = path
        self._quota = quota
        try:
            if fault := fault_above(path, os.geteuid()):
                msg = f"{fault}, and so may replace {path}: choose another folder for images."
                raise CheckpointError(msg)
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = path.lstat()
            if about.st_uid != os.geteuid() or path.is_symlink():
                msg = f"{path} is a link or belongs to another user: choose another folder for images."
                raise CheckpointError(msg)
            if others := [one.name for one in path.iterdir() if not images.parse_name(one.name) and one.name != TOOLS]:
                msg = f"{path} contains other files, such as {others[0]}: choose an empty folder for images."
                raise CheckpointError(msg)
            path.chmod(0o700)  # the memory of jobs is in it
            lock = lock_folder(path)
        except OSError as error:
            msg = f"cannot use {path}: {error.strerror}: choose a folder for images that root may write."
            raise CheckpointError(msg) from error
        if lock is None:
            msg = f"another agent uses {path}: give each its own folder for images."
            raise CheckpointError(msg)
        self._lock = lock

    def close(self) -> None:
        """Unlock the store for the next agent; images stay."""
        os.close(self._lock)

    def entries(self) -> list[Entry]:
        """Return all images, by job. What has no readable record and is not locked is removed."""
        return sorted(self._read(), key=lambda one: (one.image.job, one.image.generation))

    def _read(self) -> Iterator[Entry]:
        for path in self.path.iterdir():
            name = images.parse_name(path.name)
            if name is None:
                continue
            image = _record(path)
            if image and (image.job, image.generation) == name[:2] and name[2] != REMOVED:
                yield Entry(image, name[2], self.path)
            elif (lock := _try_lock(path)) is not None:
                remove_folder(path)
                os.close(lock)

    def begin(self, image: Image, estimate: int) -> Entry:
        """Return a new and locked image with a reservation of bytes. Raises `CheckpointError`, and then adds nothing.

        A job has at most one image in the store.
        """
        entries = self.entries()
        if any(one.image.job == image.job for one in entries):
            msg = f"job {image.job} has an image already: restore or remove that first."
            raise CheckpointError(msg)
        free = shutil.disk_usage(self.path).free
        use = images.used(((one.image, _amount(one)) for one in entries), image.uid, free - _unwritten(entries))
        reserved = images.reservation(estimate, use, self._quota, image.uid)
        entry = Entry(dataclasses.replace(image, reserved=reserved), NEW, self.path)
        try:
            entry.path.mkdir(mode=0o700)
            entry.lock = _must_lock(entry)
            write(entry.path / RECORD, images.to_json(entry.image).encode())
        except OSError as error:
            entry.remove()
            entry.release()
            msg = f"the image of job {image.job} cannot be created: {error.strerror}."
            raise CheckpointError(msg) from error
        return entry

    def take(self, job: int, generation: int, state: str, wanted: str) -> Entry:
        """Return a job's image in `state`, locked and moved to the state `wanted`: only one caller gets it.

        Raises `CheckpointError` if there is no such image, or it is in use.
        """
        for entry in self.entries():
            if (entry.image.job, entry.image.generation, entry.state) == (job, generation, state):
                entry.lock = _must_lock(entry)
                try:
                    entry.rename(wanted)
                except CheckpointError:
                    entry.release()
                    raise
                return entry
        msg = f"job {job} has no image {generation} here that can be taken: it was restored, moved or removed."
        raise CheckpointError(msg)

    def take_unlocked(self) -> Iterator[Entry]:
        """Yield all images that nobody works on, locked until the next one."""
        for entry in self.entries():
            lock = _try_lock(entry.path)
            if lock is not None:
                entry.lock = lock
                try:
                    yield entry
                finally:
                    entry.release()

    def remove(self, job: int, generation: int) -> None:
        """Remove a job's image unless it is in use. Raises `CheckpointError` if it is."""
        for entry in self.entries():
            if (entry.image.job, entry.image.generation) == (job, generation):
                entry.lock = _must_lock(entry)
                entry.remove()
                entry.release()


def commit(entry: Entry) -> None:
    """Write the files of a new image through to the disk, and then make it whole. Raises OSError."""
    for path in (*entry.path.iterdir(), entry.path):
        sync(path)
    entry.rename(WHOLE)


def sync(path: Path) -> None:
    """Write a file or folder through to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(path: Path, data: bytes) -> None:
    """Write a new file that only root can read. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)


def _amount(entry: Entry) -> int:
    """Return the bytes that an image takes, or has reserved while it is new."""
    return max(entry.size(), entry.image.reserved if entry.state == NEW else 0)


def _unwritten(entries: list[Entry]) -> int:
    """Return the bytes that new images have reserved and not written yet."""
    return sum(_amount(one) - one.size() for one in entries)


def _record(path: Path) -> Image | None:
    try:
        return images.from_json(json.loads(read_plain(path / RECORD, LONGEST_RECORD)))
    except (OSError, ValueError, CheckpointError):
        return None


def _try_lock(path: Path) -> int | None:
    try:
        return lock_folder(path)
    except OSError:  # removed or renamed meanwhile
        return None


def _must_lock(entry: Entry) -> int:
    lock = _try_lock(entry.path)
    if lock is None:
        msg = f"the image of job {entry.image.job} is in use: wait until that has ended."
        raise CheckpointError(msg)
    return lock
