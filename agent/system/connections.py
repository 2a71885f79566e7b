# SPDX-License-Identifier: Apache-2.0
"""The connections to one AF_UNIX socket of the agent, with bounds on what every user may occupy there.

Protocols (`drom.agent.daemon.registration_server`, `drom.agent.control.zmtp`, `drom.agent.execution.step_requests`) are
built on this: a handler reads messages and answers them. This module accepts connections, counts them, serves them in
turn, and closes them if they take too long. Connections are identified by their objects, as a descriptor number may
belong to another connection a moment later. Nothing that a peer or the kernel does raises out of `serve`.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from drom.agent.system.proc import peer_credentials, raise_fd_limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

BACKLOG = 8
"""Connections that the kernel queues until they are accepted: behind a flood, others wait for as many. If the queue is
full, a process that connects waits in the kernel, unless its socket is non-blocking."""
SILENCE = 5.0
"""Seconds that a new connection may stay open without a message."""
RESERVED_FDS = 1001
"""Descriptors that must be free for urgent connections: 1000 events wait at ZeroMQ's end and one at ours."""
RESERVE = 32 + RESERVED_FDS
"""Descriptors that connections leave for the agent's own work and its other sockets; if there are few, half of them."""
ACCEPT_PAUSE = 0.5
"""Seconds for which no connection is accepted after the kernel has refused one, for example for lack of descriptors."""
TURN_SECONDS = 0.0005
"""Seconds after which a turn is over."""
LOOK = 0.5
"""Seconds between two checks for connections that have taken too long."""
MOST_HELD = 2 << 20
"""Most bytes of messages and answers kept for one user at one socket."""
MOST_IN_ALL = 16 << 20
"""Most bytes kept at one socket for all users together."""
DISCARDED = 1 << 16
"""Bytes read from a connection before it is refused: closing it with unread bytes would lose the refusal."""


class Connection:
    """A connection of process `pid` and user `uid`, as the kernel reports them, accepted at `since`.

    Times are seconds of CLOCK_MONOTONIC. The connection is closed at `closes_at`, unless that is None by then.
    """

    patience: float | None = None
    """Seconds that bytes may be kept for the connection before it is closed; None: no limit."""

    hears_end: bool = False
    """Whether the handler reads from the connection after the peer has closed it. Otherwise the peer's last messages
    are not read, as no answer would reach it."""

    def __init__(self, accepted: socket.socket, pid: int, uid: int, since: float) -> None:
        self.socket = accepted
        self.fd = accepted.fileno()
        self.pid, self.uid = pid, uid
        self.since = since
        self.closes_at: float | None = since + SILENCE
        self.unsent = bytearray()
        """Bytes of answers that the peer has not accepted yet."""
        self.held = 0
        """Bytes kept for this connection, as counted for its user."""
        self.held_since = 0
        self.served = 0
        """When bytes were first kept, and when the connection was last served: numbers that only grow."""
        self.watched = select.EPOLLIN

    @property
    def size(self) -> int:
        """Bytes kept for the connection now."""
        return len(self.unsent)


C = TypeVar("C", bound=Connection)
C_contra = TypeVar("C_contra", bound=Connection, contravariant=True)


class Handler(Protocol[C_contra]):
    """A protocol, which reads messages from connections and answers them."""

    def hear(self, connection: C_contra) -> None:
        """Read from a connection that is readable. It is closed when this raises OSError or ValueError."""

    def closed(self, connection: C_contra) -> None:
        """Record that a connection has been closed."""

    def refusal(self, uid: int, has: int | None) -> bytes:
        """Return the message to a refused connection of user `uid`.

        `has` is the number of the user's other connections, None if the refusal is for lack of descriptors.
        """


@dataclass(slots=True, eq=False)
class _User(Generic[C]):
    """The connections of one user, and the bytes kept for them; `served` as in `Connection`."""

    connections: dict[C, None] = field(default_factory=dict)
    held: int = 0
    served: int = 0


def remove(path: Path) -> None:
    """Remove the socket at `path`; anything else of that name stays. Raises OSError."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()


def listen(path: Path, mode: int, kind: int = socket.SOCK_SEQPACKET, backlog: int = BACKLOG) -> socket.socket:
    """Return a listening, non-blocking socket at `path`, which the caller has locked; an old socket is replaced.

    Raises OSError, also if something other than a socket is there.
    """
    remove(path)
    listening = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    try:
        listening.bind(os.fspath(path))
        path.chmod(mode)
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


def send(connection: socket.socket, message: bytes, fds: Sequence[int] = ()) -> bool:
    """Send one message with descriptors through a SOCK_SEQPACKET socket.

    Return False if the peer is gone or has not read earlier messages.
    """
    try:
        if fds:
            socket.send_fds(connection, [message], list(fds))
        else:
            connection.send(message)
    except OSError:
        return False
    return True


class Connections(Generic[C]):
    """The connections to a socket of type `kind` at `path`, each created by `make`, greeted and passed to `handler`.

    `make` has the parameters of `Connection`, and `greeting` is sent to every connection first. `share` returns how
    many connections a user may have. `fd` is readable while `serve` has work. Raises OSError.
    """

    def __init__(
        self,
        path: Path,
        kind: int,
        share: Callable[[int], int],
        make: Callable[[socket.socket, int, int, float], C],
        handler: Handler[C],
        *,
        greeting: bytes = b"",
        mode: int = 0o666,
        backlog: int = BACKLOG,
        most_held: int = MOST_HELD,
    ) -> None:
        self._share, self._make, self._handler = share, make, handler
        self._greeting, self._most_held = greeting, most_held
        self._users: dict[int, _User[C]] = {}
        self._open: dict[int, C] = {}
        """The open connections by descriptor number, as epoll reports these."""
        self._held = 0
        self._ticks = count(1)
        self._paused_until: float | None = None
        """When the listening socket is watched again, if the kernel has refused a connection or a watch."""
        self._look_at = 0.0
        limit = raise_fd_limit()
        self._last_fd = limit - min(RESERVE, limit // 2)
        self._listening = listen(path, mode, kind, backlog)
        with ExitStack() as opened:
            opened.callback(self._listening.close)
            self._epoll = select.epoll()
            opened.callback(self._epoll.close)
            self._epoll.register(self._listening, select.EPOLLIN)
            opened.pop_all()
        self.fd = self._epoll.fileno()

    def __iter__(self) -> Iterator[C]:
        """Return the open connections."""
        return iter(list(self._open.values()))

    def is_open(self, connection: C) -> bool:
        """Return whether a connection is open."""
        return self._open.get(connection.fd) is connection

    def serve(self, seconds: float = TURN_SECONDS) -> None:
        """Serve messages, users in turn, for at most `seconds`, and accept connections for as many seconds of CPU time.

        Newly accepted connections get a turn of their own, so that a short connection does not wait behind lasting
        ones.
        """
        now = time.monotonic()
        until = now + seconds
        self.tend(now)
        while True:
            ready, called = self._ready()
            self._attend_all(ready, until)
            if called:  # after the messages: a connection that has ended makes room for another
                self._accept(time.thread_time() + seconds)
                accepted = [connection for connection in self._ready()[0] if not connection.served]
                self._attend_all(accepted, time.monotonic() + seconds)
            if called or not ready or time.monotonic() >= until:
                return

    def tend(self, now: float) -> None:
        """Close the connections that have taken too long, and resume accepting others if that is due."""
        if self._paused_until is not None and now >= self._paused_until:
            listens = self._watch(self._listening.fileno())
            self._paused_until = None if listens else now + ACCEPT_PAUSE
        if now >= self._look_at:
            self._look_at = now + LOOK
            for connection in [c for c in self._open.values() if c.closes_at is not None and now >= c.closes_at]:
                self.close(connection)

    def _ready(self) -> tuple[list[C], bool]:
        """Return the connections with work, one of each user, then the next of each, and whether new ones wait."""
        found, called = [], False
        for fd, events in self._poll():
            if fd == self._listening.fileno():
                called = True
            elif connection := self._open.get(fd):
                if events & select.EPOLLHUP and not connection.hears_end:
                    self.close(connection)
                else:
                    found.append(connection)
            else:
                self._unwatch(fd)
        found.sort(key=lambda connection: connection.served)
        ranks: dict[int, int] = {}
        turns = []
        for connection in found:
            rank = ranks[connection.uid] = ranks.get(connection.uid, -1) + 1
            turns.append((rank, self._users[connection.uid].served, connection.served, connection.fd, connection))
        return [connection for *_, connection in sorted(turns, key=lambda turn: turn[:-1])], called

    def _attend_all(self, ready: list[C], until: float) -> None:
        """Serve the first of the `ready` connections, and further ones until the time `until`."""
        for connection in ready:
            if self.is_open(connection):
                self._attend(connection)
            if time.monotonic() >= until:
                return

    def _attend(self, connection: C) -> None:
        connection.served = self._users[connection.uid].served = next(self._ticks)
        if connection.unsent:
            self.flush(connection)
            return
        try:
            self._handler.hear(connection)
        except (OSError, ValueError):
            self.close(connection)

    def _accept(self, until: float) -> None:
        while time.thread_time() < until:
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:  # no room, or a filter's refusal
                self._unwatch(self._listening.fileno())
                self._paused_until = time.monotonic() + ACCEPT_PAUSE
                return
            accepted.setblocking(False)
            self._take_in(accepted)

    def _take_in(self, accepted: socket.socket) -> None:
        pid, uid, _ = peer_credentials(accepted)
        user = self._users.get(uid)
        has = len(user.connections) if user else 0
        crowded = accepted.fileno() > self._last_fd
        try:
            if crowded or has >= self._share(uid):
                self._refuse(accepted, self._handler.refusal(uid, None if crowded else has))
                return
            if self._greeting:
                accepted.send(self._greeting)
        except OSError:  # the peer has hung up
            accepted.close()
            return
        connection = self._make(accepted, pid, uid, time.monotonic())
        self._users.setdefault(uid, _User()).connections[connection] = None
        self._open[connection.fd] = connection
        if not self._watch(connection.fd):
            self.close(connection)

    @staticmethod
    def _refuse(accepted: socket.socket, sentence: bytes) -> None:
        with accepted:
            if sentence:
                with suppress(BlockingIOError):
                    accepted.recv(DISCARDED)
                accepted.send(sentence)

    # --- answers ------------------------------------------------------------------------------------------------------

    def flush(self, connection: C) -> None:
        """Send as many of the unsent bytes as the peer accepts now. It is not read from before it has accepted all."""
        if not self.is_open(connection):
            return
        try:
            with suppress(BlockingIOError):
                while connection.unsent:
                    del connection.unsent[: connection.socket.send(connection.unsent)]
            wanted = select.EPOLLOUT if connection.unsent else select.EPOLLIN
            if connection.watched != wanted:
                self._epoll.modify(connection.fd, wanted)
                connection.watched = wanted
        except OSError:
            self.close(connection)
            return
        self.hold(connection)

    def hold(self, connection: C) -> None:
        """Record how many bytes are kept for a connection.

        If they are too many, the connections for which bytes have been kept longest are closed: those of this user, or
        of the user with the most bytes.
        """
        user, size = self._users[connection.uid], connection.size
        if not (size and connection.held):
            connection.held_since = next(self._ticks)
            patience = connection.patience if size else None
            connection.closes_at = None if patience is None else time.monotonic() + patience
        self._count(user, connection, size)
        while user.held > self._most_held and self._close_oldest(user, connection):
            pass
        while self._held > MOST_IN_ALL:
            most = max(self._users.values(), key=lambda one: one.held)
            if not self._close_oldest(most, connection):
                return

    def has_room(self, uid: int, size: int) -> bool:
        """Return whether `size` more bytes may be kept for a user."""
        user = self._users.get(uid)
        return (user.held if user else 0) + size <= self._most_held and self._held + size <= MOST_IN_ALL

    def _count(self, user: _User[C], connection: C, size: int) -> None:
        user.held += size - connection.held
        self._held += size - connection.held
        connection.held = size

    def _close_oldest(self, user: _User[C], spared: C) -> bool:
        """Close the user's connection, not `spared`, with bytes kept longest; return False if there is none."""
        holding = [c for c in user.connections if c.held and c is not spared]
        if holding:
            self.close(min(holding, key=lambda c: c.held_since))
        return bool(holding)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def close(self, connection: C) -> None:
        """Close a connection, if it is still open."""
        if not self.is_open(connection):
            return
        user = self._users[connection.uid]
        self._count(user, connection, 0)
        del self._open[connection.fd], user.connections[connection]
        if not user.connections:
            del self._users[connection.uid]
        connection.unsent.clear()
        self._unwatch(connection.fd)
        connection.socket.close()
        self._handler.closed(connection)

    def end(self) -> None:
        """Close all connections and the socket. Later calls of `serve` and `end` do nothing."""
        for connection in list(self._open.values()):
            self.close(connection)
        self._epoll.close()
        self._listening.close()

    # --- the kernel's watches -----------------------------------------------------------------------------------------

    def _poll(self) -> list[tuple[int, int]]:
        return [] if self._epoll.closed else self._epoll.poll(0)

    def _watch(self, fd: int) -> bool:
        """Watch a descriptor; return whether it is watched now, as the kernel may have no room for it."""
        try:
            self._epoll.register(fd, select.EPOLLIN)
        except OSError:
            return False
        return True

    def _unwatch(self, fd: int) -> None:
        with suppress(OSError):
            self._epoll.unregister(fd)
