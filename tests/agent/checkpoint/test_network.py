# SPDX-License-Identifier: Apache-2.0
"""Images on their way over the network, from one process to another."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.checkpoint import network, transfer
from drom.agent.checkpoint.images import WHOLE, CheckpointError
from drom.agent.checkpoint.network import Server, fetch
from drom.agent.checkpoint.store import ImageStore
from drom.agent.checkpoint.tools import Limit, within

from tests.agent.checkpoint.test_store import IMAGE, QUOTA, states, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DATA = os.urandom(transfer.PART * 2 * network.WINDOW + 12345)
WANTED = (IMAGE.job, IMAGE.generation, IMAGE.uid)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[ImageStore, ImageStore]]:
    """Return a store with an image, and an empty one."""
    one, two = (ImageStore(tmp_path / name, QUOTA) for name in ("one", "two"))
    whole(one, data=DATA)
    yield one, two
    one.close()
    two.close()


class Serving(threading.Thread):
    """Serves the image of a store once."""

    def __init__(self, store: ImageStore) -> None:
        super().__init__()
        self._store = store
        self.server = Server("127.0.0.1")
        self.error = ""

    def run(self) -> None:
        """Serve, and keep the error."""
        try:
            self.server.serve(self._store, IMAGE.job, IMAGE.generation)
        except CheckpointError as error:
            self.error = str(error)

    def close(self) -> None:
        """Wait for the end."""
        self.join()
        self.server.close()


def test_an_image_is_fetched(stores: tuple[ImageStore, ImageStore]) -> None:
    """The receiver has the same bytes, and both are whole."""
    with closing(Serving(stores[0])) as serving:
        serving.start()
        fetch(stores[1], WANTED, serving.server.place, within(60))

    assert serving.error == ""
    assert (states(stores[0]), states(stores[1])) == ([("7.3", WHOLE)], [("7.3", WHOLE)])
    assert (stores[1].path / "7.3" / "pages-1.img").read_bytes() == DATA


def test_a_large_image_may_take_longer(stores: tuple[ImageStore, ImageStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow network. Where less than a bound comes in a second, the fetch is given up, also while parts come."""
    send = Server._send

    def slowly(server: Server, message: bytes) -> None:
        time.sleep(0.02)
        send(server, message)

    monkeypatch.setattr(Server, "_send", slowly)
    monkeypatch.setattr(network, "IDLE", 2.0)
    monkeypatch.setattr(network, "SLOWEST", 1 << 40)
    with closing(Serving(stores[0])) as serving:
        serving.start()
        with pytest.raises(CheckpointError, match="the other node sends less than 1024 GiB a second"):
            fetch(stores[1], WANTED, serving.server.place, within(0.3))
    monkeypatch.setattr(network, "SLOWEST", 1 << 20)
    with closing(Serving(stores[0])) as serving:
        serving.start()
        fetch(stores[1], WANTED, serving.server.place, within(0.3))

    assert states(stores[1]) == [("7.3", WHOLE)]


def test_a_save_that_is_ordered_ends_a_fetch(
    stores: tuple[ImageStore, ImageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the image comes: a regular job waits for the node."""
    monkeypatch.setattr(network, "IDLE", 2.0)
    reads, writes = os.pipe()
    asked: list[int] = []

    def and_ring(*about: Any) -> None:
        get = about[-1]
        get()
        os.write(writes, b"!")
        while True:
            asked.append(len(asked))
            get()

    monkeypatch.setattr(transfer, "receive", and_ring)
    with closing(Serving(stores[0])) as serving:
        serving.start()
        with pytest.raises(TimeoutError, match="a save was ordered meanwhile"):
            fetch(stores[1], WANTED, serving.server.place, Limit(within(60).until, reads))

    assert asked == [0], "no message that had come was taken"
    for end in (reads, writes):
        os.close(end)


def test_nobody_fetches_an_image(stores: tuple[ImageStore, ImageStore], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without a client ends, and so does a client without the keys, or that is to stop."""
    monkeypatch.setattr(network, "IDLE", 1.0)
    reads, writes = os.pipe()
    os.write(writes, b"!")
    with closing(Serving(stores[0])) as serving:
        place = serving.server.place
        for wrong in (dataclasses.replace(place, secret="0" * 40), dataclasses.replace(place, key="2" * 40)):
            with pytest.raises(CheckpointError, match="the other node does not send it"):
                fetch(stores[1], WANTED, wrong, within(60))
        with pytest.raises(CheckpointError, match="a save was ordered meanwhile"):
            fetch(stores[1], WANTED, place, Limit(within(60).until, reads))
        with pytest.raises(CheckpointError, match="cannot be fetched from"):
            fetch(stores[1], WANTED, dataclasses.replace(place, key="short"), within(60))
        serving.start()

    assert serving.error.startswith("the image of job 7 was not sent in full: the other node does not fetch it")
    assert states(stores[1]) == []
    for end in (reads, writes):
        os.close(end)
