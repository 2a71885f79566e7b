# SPDX-License-Identifier: Apache-2.0
"""The images of a node: folders that only root can read, each with one state, moved from state to state by renames.

The folder of an image is locked (flock) while a save, a restore or a transfer works on it, and while a restored filler
runs. What runs CRIU inherits the lock and carries on when its caller dies, so any process of the node may settle an
image that is not locked. One agent owns the store; the processes that it starts for fillers open it as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
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
from drom.agent.checkpoint.tools import SYNCS
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
LEAST_FREE = 1 << 20
"""Bytes of a disk that suffice for the files of runc and CRIU beside an image."""
PATIENCE = 10.0
"""Seconds to wait for another process that adds an image."""


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
            raise images.failure(msg, error) from error

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

    With `owns` false it is the store of a running agent, or of one that has died: it is not locked.
    """

    def __init__(self, path: Path, quota: Quota, *, owns: bool = True) -> None:
        self.path = path
        self._quota = quota
        self._lock = -1
        if owns:
            self._own(path)

    def _own(self, path: Path) -> None:
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
        if self._lock >= 0:
            os.close(self._lock)

    def is_empty(self) -> bool:
        """Return whether there are no images, and none that are to be removed."""
        return all(path.name == TOOLS for path in self.path.iterdir())

    def remove_all(self) -> None:
        """Remove an empty store."""
        for name in ("runc", "bundles", ""):
            remove_folder(self.path / TOOLS / name)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def entries(self) -> list[Entry]:
        """Return all images, by job."""
        found = [Entry(image, state, self.path) for _, image, state in self._folders() if image and state != REMOVED]
        return sorted(found, key=lambda one: (one.image.job, one.image.generation))

    def sweep(self) -> None:
        """Remove folders that are not locked and have no readable record, or are to be removed."""
        with self._adding():
            for path, image, state in list(self._folders()):
                if (image is None or state == REMOVED) and (lock := _try_lock(path)) is not None:
                    remove_folder(path)
                    os.close(lock)

    def _folders(self) -> Iterator[tuple[Path, Image | None, str]]:
        """Yield the folders of images, what is recorded of each (None: nothing readable), and its state."""
        for path in self.path.iterdir():
            if name := images.parse_name(path.name):
                image = _record(path)
                same = image and (image.job, image.generation) == name[:2]
                yield path, image if same else None, name[2]

    @contextlib.contextmanager
    def _adding(self) -> Iterator[None]:
        """Exclude other processes that add images, or count them, meanwhile. Raises `CheckpointError`."""
        until = time.monotonic() + PATIENCE
        folder = self.path / TOOLS
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            while (lock := lock_folder(folder)) is None:
                if time.monotonic() > until:
                    msg = f"another process has used {self.path} for {PATIENCE:.0f} s: try again later."
                    raise CheckpointError(msg)
                time.sleep(0.01)
        except OSError as error:
            raise images.failure(f"cannot use {self.path}: {error.strerror}.", error) from error
        try:
            yield
        finally:
            os.close(lock)

    def begin(self, image: Image, estimate: int) -> Entry:
        """Return a new and locked image with a reservation of bytes. Raises `CheckpointError`, and then adds nothing.

        A job has at most one image in the store, besides the one that it was restored from.
        """
        with self._adding():
            return self._begin(image, estimate)

    def _begin(self, image: Image, estimate: int) -> Entry:
        entries = self.entries()
        mine = [one for one in entries if one.image.job == image.job]
        if any(one.state != RESTORED or one.image.generation >= image.generation for one in mine):
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
            raise images.failure(f"the image of job {image.job} cannot be created: {error.strerror}.", error) from error
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
        """Yield each image that is not locked; it is locked until the next one is yielded."""
        for entry in self.entries():
            lock = _try_lock(entry.path)
            if lock is not None:
                entry.lock = lock
                try:
                    yield entry
                finally:
                    entry.release()

    def find(self, job: int, generation: int) -> Entry | None:
        """Return a job's image, None if it is not here."""
        return next((one for one in self.entries() if (one.image.job, one.image.generation) == (job, generation)), None)

    def in_use(self, job: int) -> bool:
        """Return whether an image of a job is locked."""
        unlocked = {entry.path for entry in self.take_unlocked()}
        return any(one.image.job == job and one.path not in unlocked for one in self.entries())

    def remove(self, job: int, generation: int) -> None:
        """Remove a job's image, if it is here. Raises `CheckpointError` if it is in use."""
        if entry := self.find(job, generation):
            entry.lock = _must_lock(entry)
            entry.remove()
            entry.release()


def is_full(path: Path) -> bool:
    """Return whether the disk of a path has so little room that runc and CRIU may not be able to write their files."""
    return shutil.disk_usage(path).free < LEAST_FREE


def commit(entry: Entry) -> None:
    """Write the files of a new image through to the disk, and then make it whole. Raises OSError."""
    from concurrent.futures import ThreadPoolExecutor  # is slow to import

    with ThreadPoolExecutor(SYNCS) as pool:
        for _ in pool.map(sync, (*entry.path.iterdir(), entry.path)):
            pass  # raises what a thread has raised
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
    lock = None
    with contextlib.suppress(OSError):  # removed or renamed meanwhile
        lock = lock_folder(path)
        if lock is None or os.path.samestat(os.fstat(lock), path.lstat()):
            return lock
    if lock is not None:
        os.close(lock)
    return None


def _must_lock(entry: Entry) -> int:
    lock = _try_lock(entry.path)
    if lock is None:
        msg = f"the image of job {entry.image.job} is in use: wait until that has ended."
        raise CheckpointError(msg)
    return lock
