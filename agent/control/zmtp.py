# SPDX-License-Identifier: Apache-2.0
"""The agent's implementation of ZeroMQ's protocol on sockets of this node: ZMTP 3.0 (https://rfc.zeromq.org/spec/23/).

libzmq bounds neither the frames of a message nor subscriptions, accepts connections until descriptors run out, and then
aborts the process. Here `drom.agent.system.connections` bounds what a user may occupy: the number of connections, and
the bytes of unfinished messages and unread answers.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import TYPE_CHECKING

from drom.agent.system.connections import BACKLOG, MOST_HELD, SILENCE, Connection, Connections

from dromlib.signals import slot_of
from dromlib.subscription import COMMAND, GREETING, LONG, ready

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

MORE = 1
"""Bit of a frame's first byte: the message continues."""
PIECES = 8
"""Most pieces read from one connection before the next one has its turn."""
PATIENCE = 30.0
"""Seconds in which a message must arrive completely, and an answer must be read."""
PIECE = 1 << 16
PING, PONG = b"\x04PING", b"\x04PONG"
"""Commands of ZMTP 3.1, which libzmq sends to any peer if heartbeats are configured."""
_TTL, _CONTEXT = 2, 16
"""Bytes of a PING: its timeout, and the most that the answer repeats."""


def frame(body: bytes, kind: int = 0) -> bytes:
    """Return a frame, which is a whole message unless `kind` has other bits."""
    if len(body) < 256:
        return bytes([kind, len(body)]) + body
    return bytes([kind | LONG]) + len(body).to_bytes(8, "big") + body


def _handshake(longest: int, command: Callable[[bytes], object]) -> Generator[int, bytes, bytes | None]:
    """Parse a peer's greeting and its first message: yield the number of bytes needed next; see `_message`."""
    greeting = yield len(GREETING)
    if not (greeting[0] == 0xFF and greeting[9] == 0x7F and greeting[10] >= 3 and greeting[12:32] == GREETING[12:32]):
        raise ValueError("this is not ZMTP 3 with the mechanism NULL")
    return (yield from _message(longest, command))


def _message(longest: int, command: Callable[[bytes], object]) -> Generator[int, bytes, bytes | None]:
    """Parse the next message: yield the number of bytes needed next; return the message, None if it has several frames.

    `command` is called with the commands before it. Raises ValueError for a frame of more than `longest` bytes.
    """
    parts = 0
    while True:
        head = yield 2
        if head[0] & LONG:
            head += yield 7
        length = int.from_bytes(head[1:], "big")
        if length > longest:
            raise ValueError("a frame is too long")
        body = (yield length) if length else b""
        if head[0] & COMMAND:
            command(body)
            continue
        parts += 1
        if not head[0] & MORE:
            return body if parts == 1 else None


class FrameReader(Connection):
    """A connection with ZMTP."""

    def __init__(self, accepted: socket.socket, pid: int, uid: int, since: float, *, longest: int) -> None:
        super().__init__(accepted, pid, uid, since)
        self._longest = longest
        self._have = bytearray()
        self._speech = _handshake(longest, self._obey)
        self._wanted = next(self._speech)
        self._begun = True
        """Whether a message, or the greeting, is incomplete."""
        self.patience = SILENCE

    @property
    def size(self) -> int:
        """Bytes of unsent answers and of the incomplete message; at least 1 while there is such a message."""
        return len(self.unsent) + max(len(self._have), self._begun)

    def read(self) -> tuple[bytes | None] | None:
        """Return the next message in a tuple, None while there is none.

        Raises OSError if the connection has ended, ValueError if the peer does not use ZMTP.
        """
        for _ in range(PIECES):
            try:
                data = self.socket.recv(min(PIECE, self._wanted - len(self._have)))
            except BlockingIOError:
                return None
            if not data:
                raise ConnectionResetError("the other side has closed the connection")
            self._have += data
            self._begun = True
            if len(self._have) == self._wanted and (message := self._take()):
                return message
        return None

    def _take(self) -> tuple[bytes | None] | None:
        data, self._have, self.patience = bytes(self._have), bytearray(), PATIENCE
        try:
            self._wanted = self._speech.send(data)
        except StopIteration as whole:
            self._begun = False
            self._speech = _message(self._longest, self._obey)
            self._wanted = next(self._speech)
            message: bytes | None = whole.value
            return (message,)
        return None

    def discard(self) -> None:
        """Free the data read, as no more will be read; otherwise it would stay until garbage is collected."""
        self._have.clear()
        self._speech.close()

    def _obey(self, command: bytes) -> None:
        """Answer a heartbeat, unless there are unsent answers."""
        self._begun = False
        if command.startswith(PING) and not self.unsent:
            self.unsent += frame(PONG + command[len(PING) + _TTL :][:_CONTEXT], COMMAND)


class ZmtpServer:
    """A socket of type `kind` at `path`. `share` returns how many connections a user may have.

    Messages have at most `longest` bytes, and a peer that has not read its answers is not read from. `most_held` and
    `backlog` are as in `Connections`. `gone` is called with a connection that is closed. An excess connection gets the
    message that `refusal` returns for a user and the number of the user's connections (None: descriptors run out). `fd`
    is readable while `serve` has work.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        kind: bytes,
        share: Callable[[int], int],
        longest: int,
        *,
        gone: Callable[[FrameReader], object] = lambda _: None,
        refusal: Callable[[int, int | None], bytes] = lambda *_: b"",
        most_held: int = MOST_HELD,
        backlog: int = BACKLOG,
    ) -> None:
        self._gone, self._refusal = gone, refusal
        self._heed: Callable[[FrameReader, bytes | None], object] = lambda *_: None
        about = ready(kind)
        self._hello = GREETING + frame(about, COMMAND)
        make = partial(FrameReader, longest=longest)
        self.lines = Connections(
            path,
            socket.SOCK_STREAM,
            share,
            make,
            self,
            greeting=self._hello,
            mode=mode,
            most_held=most_held,
            backlog=backlog,
        )
        self.fd = self.lines.fd

    def serve(self, heed: Callable[[FrameReader, bytes | None], object], seconds: float) -> None:
        """Call `heed` with the messages received (None: one of several frames), for a turn."""
        self._heed = heed
        self.lines.serve(seconds)

    def send(self, line: FrameReader, message: bytes) -> None:
        """Send a message, unless the connection is closed."""
        if self.lines.is_open(line):
            line.unsent += frame(message)
            self.lines.flush(line)

    def close(self, line: FrameReader) -> None:
        """Close a connection that is still open."""
        self.lines.close(line)

    def end(self) -> None:
        """Close all connections, and accept no more."""
        self.lines.end()

    def hear(self, connection: FrameReader) -> None:
        """Read a message; see `drom.agent.system.connections.Handler`."""
        message = connection.read()
        self.lines.flush(connection)
        if message and self.lines.is_open(connection):
            self._heed(connection, message[0])

    def closed(self, connection: FrameReader) -> None:
        """Record that a connection is closed, and call `gone`; see `drom.agent.system.connections.Handler`."""
        connection.discard()
        self._gone(connection)

    def refusal(self, uid: int, has: int | None) -> bytes:
        """Return a greeting and a message; see `drom.agent.system.connections.Handler`."""
        message = self._refusal(uid, has)
        return self._hello + frame(message) if message else b""


class PublisherServer:
    """The socket that publishes the signals of `slots` slots to subscribers; one that does not read misses some.

    `share` is as in `Exchange`.
    """

    LONGEST = 512
    """Most bytes of a subscriber's message."""
    TOPICS = 256
    """Most slots to which one connection may subscribe singly; for more, it subscribes to all."""
    UNREAD = 1 << 18
    """Bytes that may wait for a subscriber before it misses signals."""
    MOST_HELD = 1 << 20
    """Bytes that may wait for all subscribers of one user."""
    BACKLOG = 1024
    """Most connections that wait to be accepted: the sockets of subscribers do not wait for a place there."""

    def __init__(self, path: Path, mode: int, slots: int, share: Callable[[int], int]) -> None:
        self._slots = slots
        self._wanted: dict[FrameReader, set[int | None]] = {}
        self._listeners: dict[int | None, dict[FrameReader, None]] = {}
        self._exchange = ZmtpServer(
            path,
            mode,
            b"XPUB",
            share,
            self.LONGEST,
            gone=self._gone,
            most_held=self.MOST_HELD,
            backlog=self.BACKLOG,
        )
        self.fd = self._exchange.fd

    def serve(self, seconds: float) -> None:
        """Record subscriptions, for a turn."""
        self._exchange.serve(self._heed, seconds)

    def publish(self, slot: int, message: bytes) -> None:
        """Send a message to the subscribers of this slot and of all slots."""
        listeners = self._listeners.get(slot, {}) | self._listeners.get(None, {})
        for line in listeners:
            if len(line.unsent) <= self.UNREAD and self._exchange.lines.has_room(line.uid, len(message)):
                self._exchange.send(line, message)
                line.closes_at = None  # a program that is stopped may read them later

    def end(self) -> None:
        """Stop publishing."""
        self._exchange.end()

    def _heed(self, line: FrameReader, message: bytes | None) -> None:
        """Record a subscription or its end; close the connection if the slot does not exist or it has too many."""
        try:
            slot = self._slot(message)
        except ValueError:
            self._exchange.close(line)
            return
        if message and message[0]:
            self._wanted.setdefault(line, set()).add(slot)
            self._listeners.setdefault(slot, {})[line] = None
        elif slot in self._wanted.get(line, ()):
            self._wanted[line].discard(slot)
            self._forget(line, slot)
        if len(self._wanted.get(line, ())) > self.TOPICS:
            self._exchange.close(line)

    def _slot(self, message: bytes | None) -> int | None:
        """Return the slot of a subscription, None for all. Raises ValueError if the message is not a subscription."""
        if not message or message[0] > 1:
            raise ValueError("this is no subscription")
        slot = slot_of(message[1:]) if message[1:] else None
        if slot is not None and slot >= self._slots:
            raise ValueError("there is no such slot")
        return slot

    def _gone(self, line: FrameReader) -> None:
        for slot in self._wanted.pop(line, ()):
            self._forget(line, slot)

    def _forget(self, line: FrameReader, slot: int | None) -> None:
        listeners = self._listeners[slot]
        del listeners[line]
        if not listeners:
            del self._listeners[slot]
