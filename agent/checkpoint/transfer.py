# SPDX-License-Identifier: Apache-2.0
"""Copies an image to the store of another node, through any pair of file objects.

A stream is a line ``drom-image 1 LENGTH``, a JSON text of so many bytes with the image's record and the names and sizes
of its files, the contents of the files, and the SHA-256 of all before. Owner and permissions are not sent: an image
belongs to root in every store, and its record names the user.

The image at the sender is locked meanwhile and stays: the scheduler decides where it is restored, and when each of the
two is removed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from typing import TYPE_CHECKING, BinaryIO

from drom.agent.checkpoint import images
from drom.agent.checkpoint.images import RECORD, WHOLE, CheckpointError, Image
from drom.agent.checkpoint.store import commit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.checkpoint.store import Entry, ImageStore

MAGIC = b"drom-image 1 "
LONGEST_HEADER = 16 << 20
"""Most bytes of the JSON text: `images.MOST_FILES` names, and the longest record."""
_LONGEST_LINE = 64
_CHUNK = 1 << 20


def send(store: ImageStore, job: int, generation: int, file: BinaryIO) -> None:
    """Write a job's image to `file`. Raises `CheckpointError` if it cannot be taken or written."""
    entry = store.take(job, generation, WHOLE, WHOLE)
    try:
        file.write(_write(entry, file))
        file.flush()
    except (OSError, CheckpointError) as error:
        why = getattr(error, "strerror", None) or error
        msg = f"the image of job {job} was not sent in full: {why}."
        raise CheckpointError(msg) from error
    finally:
        entry.release()


def receive(store: ImageStore, job: int, generation: int, uid: int, file: BinaryIO) -> Image:
    """Read the image of a job of the user `uid` from `file` into the store, and return its record.

    Raises `CheckpointError`, and then adds nothing, if the stream ends early, was changed, is another image, or has no
    room in the store.
    """
    stream = _Hashed(file)
    try:
        image, files = _read_header(stream)
        if (image.job, image.generation, image.uid) != (job, generation, uid):
            msg = f"the image of job {image.job}, number {image.generation}, came in place of {job}, {generation}."
            raise CheckpointError(msg)
        entry = store.begin(dataclasses.replace(image, reserved=0), sum(size for _, size in files))
    except OSError as error:
        raise _not_received(job, error.strerror or str(error)) from error
    try:
        for name, size in files:
            _copy_in(stream, entry, name, size)
        stream.check()
        commit(entry)
    except (OSError, CheckpointError) as error:
        entry.remove()
        raise _not_received(job, getattr(error, "strerror", None) or str(error)) from error
    finally:
        entry.release()
    return entry.image


class _Hashed:
    """Reads a stream, and hashes what it has read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def check(self) -> None:
        """Compare the next bytes with the hash of all before. Raises OSError if they differ."""
        expected = self._hash.digest()
        if b"".join(self.parts(len(expected))) != expected:
            raise OSError(0, "it was changed on its way")

    def line(self) -> bytes:
        return self._add(self._file.readline(_LONGEST_LINE))

    def parts(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes in parts. Raises OSError if the stream ends before."""
        while size:
            part = self._add(self._file.read(min(size, _CHUNK)))
            if not part:
                raise OSError(0, "the connection was closed")
            size -= len(part)
            yield part

    def _add(self, data: bytes) -> bytes:
        self._hash.update(data)
        return data


def _write(entry: Entry, file: BinaryIO) -> bytes:
    """Write all but the checksum, and return that."""
    names = sorted(one.name for one in entry.path.iterdir() if one.name != RECORD)
    sizes = [(name, (entry.path / name).lstat().st_size) for name in names]
    header = json.dumps({"image": dataclasses.asdict(entry.image), "files": sizes}).encode()
    total = hashlib.sha256()

    def put(data: bytes) -> None:
        total.update(data)
        file.write(data)

    put(b"%s%d\n" % (MAGIC, len(header)))
    put(header)
    for name, size in sizes:
        with open(entry.path / name, "rb") as source:
            while part := source.read(min(size, _CHUNK)):
                put(part)
                size -= len(part)  # noqa: PLW2901 - what is left
        if size:
            msg = f"{name} has become shorter"
            raise CheckpointError(msg)
    return total.digest()


def _read_header(stream: _Hashed) -> tuple[Image, list[tuple[str, int]]]:
    line = stream.line()
    length = line[len(MAGIC) :].strip()
    if not line.startswith(MAGIC) or not line.endswith(b"\n") or not length.isdigit() or int(length) > LONGEST_HEADER:
        msg = "what was received is not an image of a job: use the same version of drom on both nodes."
        raise CheckpointError(msg)
    try:
        value = json.loads(b"".join(stream.parts(int(length))))
    except ValueError:
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
    return CheckpointError("what was received is not an image of a job: a name or a size of its files is not valid.")


def _copy_in(stream: _Hashed, entry: Entry, name: str, size: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(entry.path / name, flags, 0o600), "wb") as file:
        file.writelines(stream.parts(size))


def _not_received(job: int, why: str) -> CheckpointError:
    return CheckpointError(f"the image of job {job} was not received: {why.rstrip('.')}. Send it again.")
