# SPDX-License-Identifier: Apache-2.0
"""Images on their way between two stores."""

from __future__ import annotations

import hashlib
import io
import json
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.checkpoint import images, transfer
from drom.agent.checkpoint.images import RESTORING, WHOLE, CheckpointError, Quota
from drom.agent.checkpoint.store import ImageStore

from tests.agent.checkpoint.test_store import IMAGE, QUOTA, states, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = bytes(range(256)) * 9000


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[ImageStore, ImageStore]]:
    """Return a store with an image, and an empty one."""
    one, two = (ImageStore(tmp_path / name, QUOTA) for name in ("one", "two"))
    whole(one, data=DATA)
    yield one, two
    one.close()
    two.close()


def sent(store: ImageStore) -> bytes:
    """Return an image as it is sent."""
    stream = io.BytesIO()
    transfer.send(store, 7, 3, stream)
    return stream.getvalue()


def test_an_image_is_copied_through_a_pipe(stores: tuple[ImageStore, ImageStore]) -> None:
    """The receiver has the same files and the same record as the sender."""
    one, two = stores
    reads, writes = os.pipe()
    with open(reads, "rb") as source:

        def send() -> None:
            with open(writes, "wb") as sink:
                transfer.send(one, 7, 3, sink)

        sender = threading.Thread(target=send)
        sender.start()
        found = transfer.receive(two, 7, 3, IMAGE.uid, source)
        sender.join()

    assert (states(one), states(two)) == ([("7.3", WHOLE)], [("7.3", WHOLE)])
    assert (found.uid, found.pid) == (IMAGE.uid, IMAGE.pid)
    path = two.path / "7.3"
    assert (path / "pages-1.img").read_bytes() == DATA
    assert {one.stat().st_mode & 0o777 for one in path.iterdir()} == {0o600}


def test_an_image_that_is_sent_is_not_restored(stores: tuple[ImageStore, ImageStore]) -> None:
    """Until all of it is written it is in use, and then it can be taken."""

    class Trying(io.BytesIO):
        def write(self, data: Any) -> int:
            with pytest.raises(CheckpointError, match="is in use"):
                stores[0].take(7, 3, WHOLE, RESTORING)
            return super().write(data)

    transfer.send(stores[0], 7, 3, Trying())

    stores[0].take(7, 3, WHOLE, RESTORING).release()


@pytest.mark.parametrize("where", [0, 20, 300, 70_000, -1])
def test_a_changed_or_cut_image_is_not_received(stores: tuple[ImageStore, ImageStore], where: int) -> None:
    """One wrong byte anywhere, or an early end, leaves nothing at the receiver."""
    stream = sent(stores[0])
    wrong = bytearray(stream)
    wrong[where] ^= 1
    for data in (bytes(wrong), stream[:where]):
        with pytest.raises(CheckpointError):
            transfer.receive(stores[1], 7, 3, IMAGE.uid, io.BytesIO(data))
        assert states(stores[1]) == []


def stream_of(change: dict[str, Any], content: bytes = b"") -> bytes:
    """Return a stream with a valid checksum, whose header has these fields."""
    image = {"image": json.loads(images.to_json(IMAGE)), "files": []}
    header = json.dumps({**image, **change}).encode()
    text = transfer.MAGIC + f"{len(header)}\n".encode() + header + content
    return text + hashlib.sha256(text).digest()


@pytest.mark.parametrize(
    "change",
    [
        {"files": [["../7.3", 1]]},
        {"files": [["/etc/passwd", 1]]},
        {"files": [["image.json", 1]]},
        {"files": [["a", 1], ["a", 1]]},
        {"files": [["a", -1]]},
        {"files": [["a", 1 << 61]]},
        {"files": [["a", "1"]]},
        {"files": [["a"]]},
        {"files": [7]},
        {"files": "a"},
        {"files": [["a", 0]] * (images.MOST_FILES + 1)},
        {"image": None},
    ],
)
def test_a_hostile_header_is_rejected(stores: tuple[ImageStore, ImageStore], change: dict[str, Any]) -> None:
    """No name leads out of the image's folder, and no number is out of its range, though the checksum is right."""
    with pytest.raises(CheckpointError, match="not valid"):
        transfer.receive(stores[1], 7, 3, IMAGE.uid, io.BytesIO(stream_of(change, b"x")))

    assert states(stores[1]) == []


@pytest.mark.parametrize(
    "data", [b"", b"GET / HTTP/1.0\r\n", b"drom-image 1 x\n", b"drom-image 1 99999999999\n", b"x" * 999]
)
def test_what_is_no_image_is_rejected(stores: tuple[ImageStore, ImageStore], data: bytes) -> None:
    """A stream of something else is not read to its end."""
    with pytest.raises(CheckpointError, match="is not an image of a job: use the same version"):
        transfer.receive(stores[1], 7, 3, IMAGE.uid, io.BytesIO(data))


@pytest.mark.parametrize("expected", [(8, 3, IMAGE.uid), (7, 4, IMAGE.uid), (7, 3, 0)])
def test_another_image_than_the_expected_is_rejected(
    stores: tuple[ImageStore, ImageStore], expected: tuple[int, int, int]
) -> None:
    """Job, generation and user are those that the scheduler named."""
    with pytest.raises(CheckpointError, match="came in place of"):
        transfer.receive(stores[1], *expected, io.BytesIO(sent(stores[0])))


def test_an_image_without_room_is_not_received(stores: tuple[ImageStore, ImageStore], tmp_path: Path) -> None:
    """The receiver's quota counts; nothing of the contents is read."""
    small = ImageStore(tmp_path / "small", Quota(1000, 1000))
    stream = io.BytesIO(sent(stores[0]))
    with pytest.raises(CheckpointError, match="does not fit"):
        transfer.receive(small, 7, 3, IMAGE.uid, stream)

    assert stream.tell() < 1000
    small.close()


class Failing(io.BytesIO):
    """A file that fails once it has `most` bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._most:
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(data)


def test_an_image_that_was_not_sent_in_full_stays(stores: tuple[ImageStore, ImageStore]) -> None:
    """A connection that breaks leaves the image as it was."""
    with pytest.raises(CheckpointError, match="was not sent in full: Broken pipe"):
        transfer.send(stores[0], 7, 3, Failing(5000))

    assert states(stores[0]) == [("7.3", WHOLE)]
