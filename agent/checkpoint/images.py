# SPDX-License-Identifier: Apache-2.0
"""Images: what is recorded of each, the names that state how far it has come, and how many bytes it may take. Pure.

An image is a folder JOB.GENERATION of files of CRIU. Its suffix is its state:

    .new         being saved, or received from another node; not whole
    (none)       whole: the job's processes are gone
    .restoring   a restore has taken it; no other can
    .restored    its processes run again; it is whole again if they end without another save
    .removed     being removed
"""

from __future__ import annotations

import errno
import json
import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from drom.agent.text import in_words

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Iterable

NEW, WHOLE, RESTORING, RESTORED, REMOVED = ".new", "", ".restoring", ".restored", ".removed"
"""States of an image, which are the suffixes of its folder's name."""
CONTAINER, PROCESSES = "container", "processes"
"""Ways in which an image was saved: by runc, or by CRIU alone."""
RECORD = "image.json"
"""The file of an image's record in its folder."""
MOST_FILES = 65536
"""Most files of an image; CRIU writes about five for each process and one for each thread."""
LARGEST = 1 << 60
"""Most bytes of a file."""
LONGEST_PATH = 4096
MOST_BINDS = 256
"""Most folders of the node that a container sees."""
SLACK = 64 << 20
"""Bytes that a save may take in addition to a quarter more than the estimate: processes grow until they are stopped."""

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk without room."""

_FOLDER = re.compile(r"([1-9]\d{0,17})\.([1-9]\d{0,8})(\.new|\.restoring|\.restored|\.removed|)", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)


class CheckpointError(DromError):
    """Raised when a job cannot be saved, moved or restored; the message is a sentence that says what to do.

    `why` is the message without what became of the job, which it may begin with.
    """

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message


class CrashedError(CheckpointError):
    """Raised when CRIU or runc was killed at work. The processes of the job have been killed."""


class NoRoomError(CheckpointError):
    """Raised when an image has no room: because of a quota, or on a full disk. The job and its image are sound."""


def failure(message: str, cause: Exception | None = None, *, full: bool = False) -> CheckpointError:
    """Return the error to raise with a message: `NoRoomError` if the cause is one, or a full disk; or if `full`."""
    full = full or isinstance(cause, NoRoomError) or (isinstance(cause, OSError) and cause.errno in FULL)
    return (NoRoomError if full else CheckpointError)(message)


@dataclass(frozen=True, slots=True)
class Image:
    """The record of an image.

    `generation` is the number of the save; the job's next save has a higher one. `uid` and `gid` are the job's. `pid`,
    `start_time` (ticks since boot) and `boot` identify the job's first process when it was saved. `reserved` are the
    bytes that the image may take. `binds` are the folders that a container sees of its node.
    """

    job: int
    generation: int
    way: str
    uid: int
    gid: int
    pid: int
    start_time: int
    boot: str
    reserved: int = 0
    binds: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder without the state."""
        return f"{self.job}.{self.generation}"


@dataclass(frozen=True, slots=True)
class Quota:
    """The most bytes of images in the store, and of those of one user."""

    store: int
    user: int


@dataclass(frozen=True, slots=True)
class Use:
    """The bytes that images take or have reserved: `store` all, `user` those of one user; `free` on the disk."""

    store: int
    user: int
    free: int


def parse_name(name: str) -> tuple[int, int, str] | None:
    """Return job, generation and state in the name of a folder; None if it is not that of an image."""
    found = _FOLDER.fullmatch(name)
    return (int(found[1]), int(found[2]), found[3]) if found else None


def is_file_name(name: str) -> bool:
    """Return whether a file of an image may have this name: no separator, and no folder above."""
    return bool(_FILE.fullmatch(name))


def reservation(estimate: int, use: Use, quota: Quota, uid: int) -> int:
    """Return the bytes that an image of `estimate` bytes may take at most. Raises `NoRoomError` if it has no room.

    This is min(room, 1.25 estimate + SLACK), where room = min(store quota - used, user quota - used, free on the disk).
    """
    rooms = {
        f"the image store may hold {in_words(quota.store)}: raise its quota": quota.store - use.store,
        f"user {uid} may have images of {in_words(quota.user)}: raise the quota of users": quota.user - use.user,
        "the disk of the image store is full: free space there": use.free,
    }
    why, room = min(rooms.items(), key=lambda one: one[1])
    if estimate > room:
        msg = f"an image of {in_words(estimate)} does not fit, {in_words(max(room, 0))} are left; {why}."
        raise NoRoomError(msg)
    return min(room, estimate + estimate // 4 + SLACK)


def used(images: Iterable[tuple[Image, int]], uid: int, free: int) -> Use:
    """Return the use of a store, from its images and the bytes that each takes or has reserved."""
    amounts = [(image.uid, amount) for image, amount in images]
    return Use(sum(amount for _, amount in amounts), sum(amount for owner, amount in amounts if owner == uid), free)


def to_json(image: Image) -> str:
    """Return the record of an image as text."""
    return json.dumps(asdict(image))


def from_json(value: object) -> Image:
    """Return the image of a decoded record. Raises `CheckpointError` if a field is missing or not what it must be."""
    if not isinstance(value, dict):
        raise _malformed("a record")
    known = {one.name: value[one.name] for one in fields(Image) if one.name in value}
    for name, found in known.items():
        if not _CHECKS[name](found):
            raise _malformed(name)
    try:
        return Image(**{**known, "binds": tuple(known.get("binds", ()))})
    except TypeError as error:
        raise _malformed("a field") from error


def _malformed(what: str) -> CheckpointError:
    return CheckpointError(f"the record of an image is not valid: {what} is missing or wrong.")


def _is_number(least: int, most: int) -> Any:  # noqa: ANN401 - a predicate
    return lambda found: type(found) is int and least <= found <= most


def _is_path(found: object) -> bool:
    return isinstance(found, str) and found.startswith("/") and len(found) <= LONGEST_PATH and "\0" not in found


_CHECKS: dict[str, Any] = {
    "job": _is_number(1, 10**18 - 1),
    "generation": _is_number(1, 10**9 - 1),
    "way": lambda found: found in (CONTAINER, PROCESSES),
    "uid": _is_number(0, (1 << 32) - 2),
    "gid": _is_number(0, (1 << 32) - 2),
    "pid": _is_number(1, 1 << 22),
    "start_time": _is_number(0, 1 << 62),
    "boot": lambda found: isinstance(found, str) and re.fullmatch("[0-9a-f]{32}", found),
    "reserved": _is_number(0, LARGEST),
    "binds": lambda found: isinstance(found, (list, tuple)) and len(found) <= MOST_BINDS and all(map(_is_path, found)),
}
