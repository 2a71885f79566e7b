"""The subscription that programs read themselves: beside real ZeroMQ, and with what is none."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
import zmq
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dromlib import events, signals, subscription
from dromlib.subscription import GREETING, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 60
SLOT = 7
FRAME_READY = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XPUB"
UNLIKE = bytes(64)


def heard(listening: Subscription) -> bytes:
    """Wait for the next signal."""
    while (message := listening.receive()) is None:
        assert select.select([listening], [], [], SECONDS)[0], "nothing has come"
    return message


def hear_all(listening: Subscription) -> None:
    """Read until there is no more to come."""
    while True:
        heard(listening)


@contextmanager
def publisher(folder: Path) -> Iterator[zmq.Socket[bytes]]:
    """Open a real socket of ZeroMQ where an agent has one."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as sock:
        sock.setsockopt(zmq.LINGER, 0)
        sock.setsockopt(zmq.RCVTIMEO, SECONDS * 1000)
        sock.bind(signals.endpoint(folder))
        yield sock


@contextmanager
def server(folder: Path, says: bytes, piece: int = 1 << 20) -> Iterator[tuple[socket.socket, Subscription]]:
    """Listen where an agent does, and tell the subscriber this, piece by piece."""
    with closing(socket.socket(socket.AF_UNIX)) as door:
        door.bind(signals.endpoint(folder).removeprefix("ipc://"))
        door.listen()
        with Subscription(folder, SLOT) as listening, closing(door.accept()[0]) as line:
            line.sendall(says[:piece])
            yield line, listening


class TestBesideZeroMQ:
    """The other side is ZeroMQ's own."""

    def test_a_signal_of_the_slot_comes_and_no_other(self, tmp_path: Path) -> None:
        """The subscription is of one slot, and a signal is what the agent sent."""
        with publisher(tmp_path) as sock, Subscription(tmp_path, SLOT) as listening:
            assert listening.receive() is None
            while not sock.poll(10):
                listening.receive()
            assert sock.recv() == b"\x01" + signals.topic(SLOT)
            for slot in (SLOT + 1, SLOT):
                sock.send(signals.message(slot, {"event": "granted", "epoch": slot}))
            assert signals.event(heard(listening)) == {"event": "granted", "epoch": SLOT}
            assert listening.receive() is None

    @pytest.mark.parametrize("length", [1, 200, 255, 256, 300, 65_536, 200_000])
    def test_signals_of_any_length(self, tmp_path: Path, length: int) -> None:
        """Frames of more than 255 bytes have a longer head."""
        with publisher(tmp_path) as sock, Subscription(tmp_path, SLOT) as listening:
            while not sock.poll(10):
                listening.receive()
            texts = [signals.message(SLOT, {"text": letter * length}) for letter in "ab"]
            for text in texts:
                sock.send(text)
            assert [heard(listening), heard(listening)] == texts

    def test_the_agent_hears_that_it_is_over(self, tmp_path: Path) -> None:
        """ZeroMQ takes the subscription back when the subscriber has gone."""
        with publisher(tmp_path) as sock:
            with Subscription(tmp_path, SLOT) as listening:
                while not sock.poll(10):
                    listening.receive()
                assert sock.recv().startswith(b"\x01")
            assert sock.recv() == b"\0" + signals.topic(SLOT)

    def test_a_listener_connects_to_the_next_agent(self, tmp_path: Path) -> None:
        """Who waits in a loop hears the agent that comes after the first one has gone."""

        async def drive() -> None:
            listener = events.Listener((str(tmp_path), SLOT))
            for _ in range(2):
                with publisher(tmp_path) as sock:
                    while not sock.poll(0):
                        await asyncio.wait_for(listener.hint(), SECONDS)
                    while not listener._drain():
                        sock.send(signals.message(SLOT, {}))
                        await asyncio.sleep(0.001)
                await asyncio.wait_for(listener.hint(), SECONDS)
            listener.close()

        asyncio.run(drive())


class TestNoAgent:
    """The other side is not what it should be, or no more."""

    def test_nobody_listens(self, tmp_path: Path) -> None:
        """The program is told, and no descriptor stays open."""
        with pytest.raises(FileNotFoundError):
            Subscription(tmp_path, SLOT)

    def test_the_agent_goes(self, tmp_path: Path) -> None:
        """What came before is still read."""
        with server(tmp_path, GREETING + FRAME_READY + b"\0\x02hi") as (line, listening):
            line.shutdown(socket.SHUT_WR)
            assert heard(listening) == b"hi"
            with pytest.raises(ConnectionResetError):
                heard(listening)

    @pytest.mark.parametrize(
        ("says", "why"),
        [
            (UNLIKE, "ZMTP 3"),
            (GREETING[:10] + b"\x01" + GREETING[11:], "ZMTP 3"),
            (GREETING + b"\x02" + b"\xff" * 8, "more than signals"),
            (GREETING + b"\x02" + subscription.LARGEST.to_bytes(8, "big"), "more than signals"),
        ],
    )
    def test_something_else_listens(self, tmp_path: Path, says: bytes, why: str) -> None:
        """No memory is taken for what is no signal."""
        with server(tmp_path, says) as (_, listening), pytest.raises(ConnectionError, match=why):
            heard(listening)

    def test_the_subscription_follows_the_handshake(self, tmp_path: Path) -> None:
        """ZeroMQ takes a subscription for an error as long as it has not told of itself."""
        with server(tmp_path, GREETING) as (line, listening):
            line.settimeout(SECONDS)
            assert line.recv(1000).startswith(GREETING)
            assert listening.receive() is None
            line.sendall(FRAME_READY)
            assert select.select([listening], [], [], SECONDS)[0]
            assert listening.receive() is None
            assert line.recv(1000) == bytes([0, 1 + len(signals.topic(SLOT)), 1]) + signals.topic(SLOT)

    @pytest.mark.parametrize("piece", [1, 2, 63, 64, 65])
    def test_what_comes_in_pieces(self, tmp_path: Path, piece: int) -> None:
        """A signal counts when all of it is there."""
        says = GREETING + FRAME_READY + b"\x02" + (300).to_bytes(8, "big") + b"x" * 300 + b"\0\0"
        with server(tmp_path, says, piece) as (line, listening):
            found = [listening.receive()]
            for at in range(piece, len(says), piece):
                line.sendall(says[at : at + piece])
                assert select.select([listening], [], [], SECONDS)[0]
                found.append(listening.receive())
            assert [message for message in [*found, listening.receive()] if message is not None] == [b"x" * 300, b""]

    @given(says=st.binary(max_size=400), greets=st.booleans())
    @example(says=GREETING + FRAME_READY, greets=False)
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_any_bytes(self, tmp_path_factory: pytest.TempPathFactory, says: bytes, greets: bool) -> None:
        """Whatever comes is a signal, not yet one, or an OSError, and then the connection's end is one."""
        with server(tmp_path_factory.mktemp("any"), GREETING * greets + says) as (line, listening):
            line.close()
            with pytest.raises(OSError, match=r"agent|Broken pipe|reset"):
                hear_all(listening)
