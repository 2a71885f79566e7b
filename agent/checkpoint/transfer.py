# SPDX-License-Identifier: Apache-2.0
"""Copies an image to the store of another node, as a sequence of messages.

The first message is ``drom-image 2 LENGTH``. A JSON text of so many bytes follows, with the image's record and the
names and sizes of its files, and then the contents of the files. The text and each file are sent in messages of at most
`PART` bytes. The network authenticates each message and keeps their order (`drom.agent.checkpoint.network`). Owner and
permissions are not sent: an image belongs to root in every store, and its record names the user.

The image at the sender is locked meanwhile and stays: the scheduler decides where it is restored, and when each of the
two is removed.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
from typing import TYPE_CHECKING, BinaryIO

from drom.agent.checkpoint import images
from drom.agent.checkpoint.images import RECORD, WHOLE, CheckpointError, Image
from drom.agent.checkpoint.store import commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from drom.agent.checkpoint.store import Entry, ImageStore

    Put = Callable[[bytes], object]
    Get = Callable[[], bytes | memoryview]

PART = 1 << 19
"""Most bytes of a message."""
WRITE_BACK = 16 << 20
"""Bytes of a file that are received before Linux is told to write them to the disk, so that `commit` waits for few."""
MAGIC = b"drom-image 2 "
LONGEST_HEADER = 16 << 20
"""Most bytes of the JSON text: `images.MOST_FILES` names, and the longest record."""
_FIRST = re.compile(MAGIC + rb"([0-9]{1,8})")


def send(store: ImageStore, job: int, generation: int, put: Put) -> None:
    """Give the messages of a job's image to `put`. Raises `CheckpointError` if the image cannot be taken or sent.

    An OSError of `put` is among the reasons.
    """
    entry = store.take(job, generation, WHOLE, WHOLE)
    try:
        _put_image(entry, put)
    except (OSError, CheckpointError) as error:
        why = getattr(error, "strerror", None) or error
        msg = f"the image of job {job} was not sent in full: {why}."
        raise CheckpointError(msg) from error
    finally:
        entry.release()


def receive(store: ImageStore, job: int, generation: int, uid: int, get: Get) -> Image:
    """Take the messages of the image of a job of the user `uid` from `get` into the store, and return its record.

    Raises `CheckpointError`, and then adds nothing, if `get` raises OSError, or what comes is another image or is not
    valid, and `NoRoomError` if it has no room in the store.
    """
    try:
        image, files = _read_header(get)
        if (image.job, image.generation, image.uid) != (job, generation, uid):
            msg = f"the image of job {image.job}, number {image.generation}, came in place of {job}, {generation}."
            raise CheckpointError(msg)
        entry = store.begin(dataclasses.replace(image, reserved=0), sum(size for _, size in files))
    except OSError as error:
        raise _not_received(job, error) from error
    try:
        for name, size in files:
            _copy_in(get, entry, name, size)
        commit(entry)
    except (OSError, CheckpointError) as error:
        entry.remove()
        raise _not_received(job, error) from error
    finally:
        entry.release()
    return entry.image


def _put_image(entry: Entry, put: Put) -> None:
    # A killed CRIU leaves folders that begin with a dot.
    names = sorted(one.name for one in entry.path.iterdir() if images.is_file_name(one.name) and one.name != RECORD)
    sizes = [(name, (entry.path / name).lstat().st_size) for name in names]
    header = json.dumps({"image": dataclasses.asdict(entry.image), "files": sizes}).encode()
    put(b"%s%d" % (MAGIC, len(header)))
    _put_parts(io.BytesIO(header), len(header), put)
    for name, size in sizes:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(entry.path / name, flags), "rb", buffering=0) as file:
            if not _put_parts(file, size, put):
                msg = f"{name} has become shorter"
                raise CheckpointError(msg)


def _put_parts(file: BinaryIO | io.FileIO, size: int, put: Put) -> bool:
    """Give the first `size` bytes of a file to `put`; return whether there are so many."""
    while size and (part := file.read(min(size, PART))):
        put(part)
        size -= len(part)
    return not size


def _parts(get: Get, size: int) -> Iterator[bytes | memoryview]:
    """Yield messages that are `size` bytes together. Raises `CheckpointError` if they are not."""
    while size:
        part = get()
        if not 0 < len(part) <= size:
            raise _malformed()
        size -= len(part)
        yield part


def _read_header(get: Get) -> tuple[Image, list[tuple[str, int]]]:
    first = _FIRST.fullmatch(get())
    length = int(first[1]) if first else 0
    if not 0 < length <= LONGEST_HEADER:
        msg = "what was received is not an image of a job: use the same version of drom on both nodes."
        raise CheckpointError(msg)
    try:
        value = json.loads(b"".join(_parts(get, length)))
    except (ValueError, RecursionError):  # brackets may be nested too deep for the parser
        value = None
    if not isinstance(value, dict):
        raise _malformed()
    return images.from_json(value.get("image")), _checked(value.get("files"))


def _checked(files: object) -> list[tuple[str, int]]:
    """Return the names and sizes of files, if they may be those of an image. Raises `CheckpointError`."""
    if not isinstance(files, list) or len(files) > images.MOST_FILES:
        raise _malformed()
    for one in files:
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and type(one[1]) is int):
            raise _malformed()
        if not images.is_file_name(one[0]) or one[0] == RECORD or not 0 <= one[1] <= images.LARGEST:
            raise _malformed()
    if len({name for name, _ in files}) != len(files):
        raise _malformed()
    return [(name, size) for name, size in files]


def _malformed() -> CheckpointError:
    return CheckpointError("what was received is not an image of a job: a name or a size is not valid.")


def _copy_in(get: Get, entry: Entry, name: str, size: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(entry.path / name, flags, 0o600), "wb") as file:
        written = begun = 0
        for part in _parts(get, size):
            file.write(part)
            written += len(part)
            if written - begun >= WRITE_BACK:
                # This begins to write the range; only what is on the disk already is dropped from memory.
                os.posix_fadvise(file.fileno(), begun, written - begun, os.POSIX_FADV_DONTNEED)
                begun = written


def _not_received(job: int, error: OSError | CheckpointError) -> CheckpointError:
    why = getattr(error, "strerror", None) or str(error)
    return images.failure(f"the image of job {job} was not received: {why.rstrip('.')}. Send it again.", error)
