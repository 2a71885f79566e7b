# SPDX-License-Identifier: Apache-2.0
"""Connections to the sockets of an agent, and what their peers may do: each legal message, and each way to behave."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from drom.agent.system import connections
from drom.agent.system.connections import ACCEPT_PAUSE, LOOK, SILENCE, Connection, Connections

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Echo:
    """A protocol that answers each message with itself; `heard` are the messages and `over` the closed connections."""

    def __init__(self, path: Path, share: int = 2) -> None:
        self.path = path
        self.heard: list[bytes] = []
        self.over: list[Connection] = []
        self.here = Connections(path, socket.SOCK_SEQPACKET, lambda _: share, Connection, self)

    def hear(self, connection: Connection) -> None:
        """Answer, or close the connection of a peer that has gone."""
        data = connection.socket.recv(1000)
        if not data:
            raise ConnectionResetError
        self.heard.append(data)
        connections.send(connection.socket, data)

    def closed(self, connection: Connection) -> None:
        """Keep it."""
        self.over.append(connection)

    def refusal(self, uid: int, has: int | None) -> bytes:
        """Return a sentence."""
        return f"{uid} has {has}".encode()

    def serve(self) -> None:
        """Deal with all that can be done now, in as many turns as that takes."""
        while self.here._poll():
            self.here.serve()

    def call(self, data: bytes = b"") -> socket.socket:
        """Return a connection, over which a message may have been sent."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.settimeout(10)
        made.connect(str(self.path))
        if data:
            made.send(data)
        return made


@pytest.fixture
def echo(folder: Path) -> Iterator[Echo]:
    """Return a socket to which a user may have two connections."""
    made = Echo(folder / "echo")
    yield made
    made.here.end()


class TestBounds:
    """What is closed, refused and put off."""

    def test_a_user_has_a_share_of_the_connections(self, echo: Echo) -> None:
        """The next one reads a sentence, whether or not it has sent a message, and one that ends makes room."""
        with echo.call(b"1") as first, echo.call(), echo.call(b"3") as third, echo.call() as fourth:
            echo.serve()
            assert third.recv(100) == fourth.recv(100) == f"{os.getuid()} has 2".encode()
            first.close()
            with echo.call(b"5") as fifth:
                echo.serve()
                assert fifth.recv(100) == b"5"
        assert echo.heard == [b"1", b"5"]

    def test_a_silent_connection_is_closed(self, echo: Echo) -> None:
        """One from which no message has come ends after a while."""
        with echo.call() as silent:
            echo.serve()
            echo.here.tend(time.monotonic() + SILENCE - 1)
            assert len(list(echo.here)) == 1
            echo.here.tend(time.monotonic() + SILENCE + LOOK)
            assert silent.recv(10) == b""
        assert len(echo.over) == 1

    @pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOMEM, errno.EPERM, errno.EPROTO, errno.EINVAL])
    def test_an_error_of_accept_is_survived(self, echo: Echo, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
        """The server does not spin: it accepts again after a while, and then the caller is answered."""

        def refuse() -> Any:
            raise OSError(error, os.strerror(error))

        with echo.call(b"1") as caller:
            with monkeypatch.context() as changed:
                refusing = SimpleNamespace(accept=refuse, fileno=echo.here._listening.fileno)
                changed.setattr(echo.here, "_listening", cast("socket.socket", refusing))
                echo.serve()
                assert not echo.here._poll()
            echo.here.tend(time.monotonic() + ACCEPT_PAUSE / 2)
            assert not echo.here._poll()
            echo.here.tend(time.monotonic() + ACCEPT_PAUSE)
            echo.serve()
            assert caller.recv(10) == b"1"

    def test_descriptors_are_left_for_the_agent(self, echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
        """A connection with too high a number is refused, whosever it is."""
        with echo.call() as caller, monkeypatch.context() as changed:
            changed.setattr(echo.here, "_last_fd", 2)
            echo.serve()
            assert caller.recv(100) == f"{os.getuid()} has None".encode()


class TestSocket:
    """Sockets at which others connect, and messages to them."""

    def test_what_is_no_socket_stays(self, tmp_path: Path) -> None:
        """A file of somebody else's is not removed for its name."""
        (tmp_path / "door").write_text("mine", encoding="utf-8")
        with pytest.raises(OSError, match="Address already in use"):
            connections.listen(tmp_path / "door", 0o600)
        assert (tmp_path / "door").read_text(encoding="utf-8") == "mine"

    def test_a_socket_replaces_an_old_one(self, tmp_path: Path) -> None:
        """A name that an agent left when it was killed is taken over, with the mode asked for."""
        connections.listen(tmp_path / "door", 0o666).close()
        with connections.listen(tmp_path / "door", 0o600) as listening:
            assert stat.S_IMODE((tmp_path / "door").stat().st_mode) == 0o600
            with pytest.raises(BlockingIOError):
                listening.accept()

    def test_descriptors_travel_with_a_reply(self) -> None:
        """What is sent with descriptors arrives with them."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with here, there, open("/dev/null", "rb") as null:
            assert connections.send(here, b"hello", [null.fileno()])
            data, fds, _, _ = socket.recv_fds(there, 16, 1)
            assert (data, os.fstat(fds[0]).st_rdev) == (b"hello", os.fstat(null.fileno()).st_rdev)
            os.close(fds[0])

    @pytest.mark.parametrize("reads", [True, False])
    def test_a_peer_that_is_gone_or_deaf_is_told(self, reads: bool) -> None:
        """Sending never waits: it is False for who has hung up or does not read."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(False)
        with here, there:
            if reads:
                there.close()
            sent = [connections.send(here, bytes(4096)) for _ in range(1000)]
            assert not sent[-1]
