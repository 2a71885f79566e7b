# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ's protocol on sockets of this node, spoken by the agent itself: ZMTP 3.0 (https://rfc.zeromq.org/spec/23/).

libzmq bounds neither the frames of a message nor what somebody subscribes to, lets everybody in until descriptors run
out, and then aborts the process. Here a stranger takes up what he is given: so many connections, on each the one
message that he is saying, and what he has not read.
"""

from __future__ import annotations

import select
import socket
import time
from collections import Counter
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from agent import door
from agent.processes import peer_credentials
from dromlib.signals import slot_of
from dromlib.subscription import COMMAND, GREETING, IS_READY, LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

MORE = 1
"""Bit of a frame's first byte: the message goes on."""
PER_TURN = 64
"""Comings, goings and pieces of messages that one turn takes in at most, of all connections in turn."""
PIECES = 8
"""Pieces that are read of one connection before the next has its turn."""
PIECE = 1 << 16
PING, PONG = b"\x04PING", b"\x04PONG"
"""Commands of ZMTP 3.1, which libzmq says to whomever it talks to if it is told to look for heartbeats."""
_TTL, _CONTEXT = 2, 16
"""Bytes of a PING: how long it waits, and at most what its answer repeats."""


def frame(body: bytes, kind: int = 0) -> bytes:
    """Return a frame, which is a whole message unless its `kind` says otherwise."""
    if len(body) < 256:
        return bytes([kind, len(body)]) + body
    return bytes([kind | LONG]) + len(body).to_bytes(8, "big") + body


def _speech(longest: int, command: Callable[[bytes], object]) -> Generator[int, bytes, bytes | None]:
    """Ask for so many bytes of what a peer says first, and return; see `_message`."""
    greeting = yield len(GREETING)
    if not (greeting[0] == 0xFF and greeting[9] == 0x7F and greeting[10] >= 3 and greeting[12:32] == GREETING[12:32]):
        raise ValueError("this is not ZMTP 3 with the mechanism NULL")
    return (yield from _message(longest, command))


def _message(longest: int, command: Callable[[bytes], object]) -> Generator[int, bytes, bytes | None]:
    """Ask for so many bytes after the other of the next message, and return it; None for one of several frames.

    `command` gets the commands that come before it. Raises ValueError for a frame of more than `longest` bytes.
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


class Line:
    """A connection of process `pid` and user `uid`, in the kernel's words."""

    def __init__(self, connection: socket.socket, longest: int) -> None:
        self.pid, self.uid = peer_credentials(connection)[:2]
        self.socket = connection
        self.fd = connection.fileno()
        self.unread = bytearray()
        """What the other side has yet to take."""
        self.watched = select.EPOLLIN
        self._longest = longest
        self._have = bytearray()
        self._speech = _speech(longest, self._obey)
        self._wanted = next(self._speech)

    def read(self) -> tuple[bytes | None] | None:
        """Return the next message, None while there is none. Raises OSError at the end, ValueError for no ZMTP."""
        for _ in range(PIECES):
            try:
                data = self.socket.recv(min(PIECE, self._wanted - len(self._have)))
            except BlockingIOError:
                return None
            if not data:
                raise ConnectionResetError("the other side has hung up")
            self._have += data
            if len(self._have) == self._wanted and (message := self._take()):
                return message
        return None

    def _take(self) -> tuple[bytes | None] | None:
        data, self._have = bytes(self._have), bytearray()
        try:
            self._wanted = self._speech.send(data)
        except StopIteration as whole:
            self._speech = _message(self._longest, self._obey)
            self._wanted = next(self._speech)
            message: bytes | None = whole.value
            return (message,)
        return None

    def _obey(self, command: bytes) -> None:
        """Answer a heartbeat, unless that would pile up."""
        if command.startswith(PING) and not self.unread:
            self.unread += frame(PONG + command[len(PING) + _TTL :][:_CONTEXT], COMMAND)

    def write(self) -> None:
        """Send of what is unread as much as the other side takes now. Raises OSError when it has gone."""
        with suppress(BlockingIOError):
            while self.unread:
                del self.unread[: self.socket.send(self.unread)]


class Exchange:
    """A socket of type `kind` at `path`. `share` returns how many connections a user may have.

    Messages have at most `longest` bytes, and who has not read what was sent to him is not heard. `gone` is called with
    a connection that is closed. `fd` is readable while `serve` has work.
    """

    def __init__(
        self,
        path: Path,
        mode: int,
        kind: bytes,
        share: Callable[[int], int],
        longest: int,
        *,
        gone: Callable[[Line], object] = lambda _: None,
    ) -> None:
        self._share, self._longest, self._gone = share, longest, gone
        about = IS_READY + b"\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        self._hello = GREETING + frame(about, COMMAND)
        self._lines: dict[int, Line] = {}
        self._many: Counter[int] = Counter()
        self._door = door.listen(path, mode, socket.SOCK_STREAM)
        self._unheard = False
        """Whether the listening socket still has to be watched, as the kernel refused it."""
        with ExitStack() as opened:
            opened.callback(self._door.close)
            self._epoll = select.epoll()
            opened.callback(self._epoll.close)
            self._epoll.register(self._door, select.EPOLLIN)
            opened.pop_all()
        self._listener = door.Listener(self._door, self._open, lambda: self._unwatch(self._door.fileno()))
        self.fd = self._epoll.fileno()

    def _open(self) -> None:
        """Watch the listening socket; where the kernel refuses, `serve` tries again."""
        self._unheard = not self._watch(self._door.fileno(), select.EPOLLIN)

    def _watch(self, fd: int, events: int) -> bool:
        """Return whether the descriptor is watched now; the kernel may have no room for it."""
        try:
            self._epoll.register(fd, events)
        except OSError:
            return False
        return True

    def _unwatch(self, fd: int) -> None:
        with suppress(OSError):
            self._epoll.unregister(fd)

    def serve(self, heed: Callable[[Line, bytes | None], object], seconds: float) -> None:
        """Call `heed` with messages that have come (None: one of several frames), for a turn."""
        now = time.monotonic()
        self._listener.tend(now)
        if self._unheard:
            self._open()
        for _ in range(PER_TURN):
            # One at a time: the kernel has the next one first then, so that nobody waits for the same ones each turn.
            ready = self._epoll.poll(0, 1)
            if not ready:
                return
            if ready[0][0] == self._door.fileno():
                self._accept()
            elif line := self._lines.get(ready[0][0]):
                self._attend(line, heed)
            else:
                self._unwatch(ready[0][0])
            if time.monotonic() >= now + seconds:
                return

    def send(self, line: Line, message: bytes) -> None:
        """Send a message; who has gone does not get it."""
        if self._is_open(line):
            line.unread += frame(message)
            self._write(line)

    def _is_open(self, line: Line) -> bool:
        """Return whether a connection is open; the number of a closed one may belong to another."""
        return self._lines.get(line.fd) is line

    def close(self, line: Line) -> None:
        """Close a connection that is still open."""
        if not self._is_open(line):
            return
        del self._lines[line.fd]
        self._many[line.uid] -= 1
        if not self._many[line.uid]:
            del self._many[line.uid]
        self._unwatch(line.fd)
        line.socket.close()
        self._gone(line)

    def end(self) -> None:
        """Close all connections, and let nobody in any more."""
        for line in list(self._lines.values()):
            self.close(line)
        self._epoll.close()
        self._door.close()

    def _accept(self) -> None:
        if (connection := self._listener.accept(time.monotonic())) is None:
            return
        line = Line(connection, self._longest)
        if self._many[line.uid] >= self._share(line.uid):
            connection.close()
            return
        self._many[line.uid] += 1
        self._lines[line.fd] = line
        if not self._watch(line.fd, line.watched):
            self.close(line)
            return
        line.unread += self._hello
        self._write(line)

    def _attend(self, line: Line, heed: Callable[[Line, bytes | None], object]) -> None:
        if line.unread:
            self._write(line)
            return
        try:
            message = line.read()
        except (OSError, ValueError):
            self.close(line)
            return
        if line.unread:
            self._write(line)
        if message and self._is_open(line):
            heed(line, message[0])

    def _write(self, line: Line) -> None:
        try:
            line.write()
            wanted = select.EPOLLOUT if line.unread else select.EPOLLIN
            if line.watched != wanted:
                self._epoll.modify(line.fd, wanted)
                line.watched = wanted
        except OSError:
            self.close(line)


class Signals:
    """The socket on which signals of `slots` slots are published to who has subscribed; who does not read misses some.

    `share` is as in `Exchange`.
    """

    LONGEST = 512
    """Bytes of what a subscriber may say at once."""
    TOPICS = 256
    """Slots that one connection may follow singly; who wants more subscribes to all."""
    UNREAD = 1 << 18
    """Bytes that may wait for a subscriber before he misses signals."""

    def __init__(self, path: Path, mode: int, slots: int, share: Callable[[int], int]) -> None:
        self._slots = slots
        self._wanted: dict[Line, set[int | None]] = {}
        self._listeners: dict[int | None, dict[Line, None]] = {}
        self._exchange = Exchange(path, mode, b"XPUB", share, self.LONGEST, gone=self._gone)
        self.fd = self._exchange.fd

    def serve(self, seconds: float) -> None:
        """Take in who subscribes, for a turn."""
        self._exchange.serve(self._heed, seconds)

    def publish(self, slot: int, message: bytes) -> None:
        """Send a message to who has subscribed to this slot or to all."""
        listeners = self._listeners.get(slot, {}) | self._listeners.get(None, {})
        for line in listeners:
            if len(line.unread) <= self.UNREAD:
                self._exchange.send(line, message)

    def end(self) -> None:
        """Publish nothing any more."""
        self._exchange.end()

    def _heed(self, line: Line, message: bytes | None) -> None:
        """Take in a subscription, or its end: who wants what there is none of, or too much, is sent away."""
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
        """Return which slot a subscription is about, None for all. Raises ValueError for what is no subscription."""
        if not message or message[0] > 1:
            raise ValueError("this is no subscription")
        slot = slot_of(message[1:]) if message[1:] else None
        if slot is not None and slot >= self._slots:
            raise ValueError("there is no such slot")
        return slot

    def _gone(self, line: Line) -> None:
        for slot in self._wanted.pop(line, ()):
            self._forget(line, slot)

    def _forget(self, line: Line, slot: int | None) -> None:
        listeners = self._listeners[slot]
        del listeners[line]
        if not listeners:
            del self._listeners[slot]
