# SPDX-License-Identifier: Apache-2.0
"""Images on their way between two stores."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.checkpoint import images, store, transfer
from drom.agent.checkpoint.images import RESTORING, WHOLE, CheckpointError, NoRoomError, Quota
from drom.agent.checkpoint.store import ImageStore

from tests.agent.checkpoint.test_store import IMAGE, QUOTA, states, whole
from tests.support.file_systems import fill, tiny_tmpfs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.agent.checkpoint.images import Image

DATA = bytes(range(256)) * 9000


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[ImageStore, ImageStore]]:
    """Return a store with an image, and an empty one."""
    one, two = (ImageStore(tmp_path / name, QUOTA) for name in ("one", "two"))
    whole(one, data=DATA)
    yield one, two
    one.close()
    two.close()


def sent(store: ImageStore) -> list[bytes]:
    """Return the messages of an image."""
    messages: list[bytes] = []
    transfer.send(store, 7, 3, messages.append)
    return messages


def received(store: ImageStore, messages: Iterable[bytes], wanted: tuple[int, int, int] = (7, 3, IMAGE.uid)) -> Image:
    """Take an image from these messages, after which the connection breaks."""
    left = iter(messages)

    def get() -> bytes:
        for message in left:
            return message
        raise ConnectionResetError(104, "Connection reset by peer")

    return transfer.receive(store, *wanted, get)


def test_an_image_is_copied(stores: tuple[ImageStore, ImageStore]) -> None:
    """The receiver has the same files and the same record as the sender; no message is longer than a part."""
    one, two = stores
    messages = sent(one)
    found = received(two, messages)

    assert max(map(len, messages)) == transfer.PART
    assert (states(one), states(two)) == ([("7.3", WHOLE)], [("7.3", WHOLE)])
    assert (found.uid, found.pid) == (IMAGE.uid, IMAGE.pid)
    path = two.path / "7.3"
    assert (path / "pages-1.img").read_bytes() == DATA
    assert {one.stat().st_mode & 0o777 for one in path.iterdir()} == {0o600}


def test_what_was_received_is_on_the_disk_before_it_is_whole(
    stores: tuple[ImageStore, ImageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files and the folder of a received image are written through at the same time, and then it is renamed."""
    one, two = stores
    new, synced = two.path / "7.3.new", list[Path]()
    meets = threading.Barrier(len(list((one.path / "7.3").iterdir())) + 1)

    def sync(path: Path) -> None:
        if new in (path, path.parent):
            meets.wait(60)
            assert new.is_dir()
        synced.append(path)

    monkeypatch.setattr(store, "sync", sync)
    received(two, sent(one))

    files = [path.name for path in (two.path / "7.3").iterdir()]
    assert sorted(synced[-meets.parties - 1 : -1]) == sorted([new, *(new / name for name in files)])
    assert synced[-1] == two.path


def test_a_file_that_the_disk_does_not_take_is_not_received(
    stores: tuple[ImageStore, ImageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image with a file that cannot be written through to the disk is removed at the receiver."""
    one, two = stores

    def sync(path: Path) -> None:
        if path.name == "pages-1.img":
            raise OSError(5, "Input/output error")

    messages = sent(one)
    monkeypatch.setattr(store, "sync", sync)
    with pytest.raises(CheckpointError, match="was not received: Input/output error"):
        received(two, messages)

    assert states(two) == []


@pytest.mark.system
def test_a_disk_that_fills_meanwhile_keeps_nothing_of_an_image(
    stores: tuple[ImageStore, ImageStore], tmp_path: Path
) -> None:
    """The image has no room there, which is no fault of its own, and comes once it has."""
    with tiny_tmpfs(tmp_path / "small", "size=4m") as small:
        kept = ImageStore(small / "images", QUOTA)
        messages = sent(stores[0])

        def fills() -> Iterator[bytes]:
            for number, message in enumerate(messages):
                if number == len(messages) - 1:
                    fill(small / "full")
                yield message

        with pytest.raises(NoRoomError, match="was not received: No space left on device"):
            received(kept, fills())
        assert states(kept) == []
        (small / "full").unlink()
        received(kept, messages)
        assert states(kept) == [("7.3", WHOLE)]
        kept.close()


def test_a_link_in_an_image_is_not_followed(stores: tuple[ImageStore, ImageStore]) -> None:
    """Nothing outside the image store is sent to another node."""
    (stores[0].path / "7.3" / "pages-1.img").unlink()
    (stores[0].path / "7.3" / "pages-1.img").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointError, match="was not sent in full: Too many levels of symbolic links"):
        sent(stores[0])


def test_what_a_killed_criu_has_left_is_not_sent(stores: tuple[ImageStore, ImageStore]) -> None:
    """CRIU mounts control groups on a folder in the image, which stays there if it is killed."""
    one, two = stores
    (one.path / "7.3" / ".criu.cgyard.b8gRtJ").mkdir()
    received(two, sent(one))

    assert states(two) == [("7.3", WHOLE)]
    assert not [path.name for path in (two.path / "7.3").iterdir() if path.name.startswith(".")]


def test_an_image_that_is_sent_is_not_restored(stores: tuple[ImageStore, ImageStore]) -> None:
    """Until all of it is written it is in use, and then it can be taken."""

    def put(_: bytes) -> None:
        with pytest.raises(CheckpointError, match="is in use"):
            stores[0].take(7, 3, WHOLE, RESTORING)

    transfer.send(stores[0], 7, 3, put)

    stores[0].take(7, 3, WHOLE, RESTORING).release()


def test_an_image_that_is_cut_is_not_received(stores: tuple[ImageStore, ImageStore]) -> None:
    """A connection that breaks anywhere, a message left out or too long leaves nothing at the receiver."""
    messages = sent(stores[0])
    assert len(messages) > 4
    for place in range(len(messages)):
        for wrong in (messages[:place], messages[:place] + messages[place + 1 :], [*messages[:place], b""]):
            with pytest.raises(CheckpointError):
                received(stores[1], wrong)
            assert states(stores[1]) == []
    with pytest.raises(CheckpointError, match="not valid"):
        received(stores[1], [*messages[:-1], messages[-1] + b"x"])
    assert states(stores[1]) == []


def messages_of(change: dict[str, Any], content: bytes = b"") -> list[bytes]:
    """Return messages whose header has these fields."""
    image = {"image": json.loads(images.to_json(IMAGE)), "files": []}
    header = json.dumps({**image, **change}).encode()
    return [transfer.MAGIC + str(len(header)).encode(), header, content]


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
    """No name leads out of the image's folder, and no number is out of its range."""
    with pytest.raises(CheckpointError, match="not valid"):
        received(stores[1], messages_of(change, b"x"))

    assert states(stores[1]) == []


@pytest.mark.parametrize("header", [b"[" * 100_000, b'{"image":' * 100_000, b"9" * 100_000, b"\xff"])
def test_a_header_that_the_parser_does_not_take_is_rejected(
    stores: tuple[ImageStore, ImageStore], header: bytes
) -> None:
    """Brackets nested too deep, numbers that are too long, and what is no text."""
    with pytest.raises(CheckpointError, match="not valid"):
        received(stores[1], [transfer.MAGIC + b"%d" % len(header), header])

    assert states(stores[1]) == []


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"GET / HTTP/1.0",
        b"drom-image 1 9",
        b"drom-image 2 x",
        b"drom-image 2 99999999",
        b"drom-image 2 " + b"9" * 9,
    ],
)
def test_what_is_no_image_is_rejected(stores: tuple[ImageStore, ImageStore], first: bytes) -> None:
    """Of something else no more than the first message is read."""
    with pytest.raises(CheckpointError, match="is not an image of a job: use the same version"):
        received(stores[1], [first])


@pytest.mark.parametrize("expected", [(8, 3, IMAGE.uid), (7, 4, IMAGE.uid), (7, 3, 0)])
def test_another_image_than_the_expected_is_rejected(
    stores: tuple[ImageStore, ImageStore], expected: tuple[int, int, int]
) -> None:
    """Job, generation and user are those that the scheduler named."""
    with pytest.raises(CheckpointError, match="came in place of"):
        received(stores[1], sent(stores[0]), expected)


def test_an_image_without_room_is_not_received(stores: tuple[ImageStore, ImageStore], tmp_path: Path) -> None:
    """The receiver's quota counts; nothing of the contents is read."""
    small = ImageStore(tmp_path / "small", Quota(1000, 1000))
    messages = sent(stores[0])
    with pytest.raises(CheckpointError, match="does not fit"):
        received(small, messages[:2])
    small.close()


def test_an_image_that_was_not_sent_in_full_stays(stores: tuple[ImageStore, ImageStore]) -> None:
    """A connection that breaks leaves the image as it was."""

    def put(message: bytes) -> None:
        if len(message) > 5000:
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(CheckpointError, match="was not sent in full: Broken pipe"):
        transfer.send(stores[0], 7, 3, put)

    assert states(stores[0]) == [("7.3", WHOLE)]
