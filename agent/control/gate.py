# SPDX-License-Identifier: Apache-2.0
"""Orders between nodes: an agent's TCP endpoint with CURVE keys."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq
from drom.agent.control import keys
from drom.agent.control.access import MOST_CONNECTIONS
from drom.agent.control.messages import MAX_MESSAGE
from drom.agent.control.remote import HANDSHAKE_MS, LAST_PORT, _has_port, watch_peer
from drom.agent.control.zmq_monitor import connection_of, drain_events, monitor, next_message, received
from drom.agent.errors import ControlError
from drom.agent.system.proc import raise_fd_limit

if TYPE_CHECKING:
    from drom.agent.control.keys import Keys
    from drom.agent.control.zmq_monitor import RouterMessage

WAITING = 8
"""Most messages of one connection that wait to be read; a peer that sends more has to wait."""
SEALED = 33
"""Bytes that CURVE adds to a frame: a name, a number, a tag and a flag (https://rfc.zeromq.org/spec/26/)."""
ROOM = 8 << 20
"""Bytes that may also wait in the kernel: a peer that has sent more since its last message sends one without end."""
DEAD_MS = 20_000
"""Milliseconds without an answer of a machine after which its connections are closed."""
COUNT_EVERY = 0.5
"""Seconds between two counts of the received bytes."""
SILENT = 2
SILENT_EACH = 4
"""Divisors of the number of all connections: the quotients are the most connections without a message yet, in all and
from one address."""
UNREAD = 16
"""Most answers that wait to be read by a peer; further ones are lost."""


@dataclass(slots=True)
class _Caller:
    """A connection from the address `origin`: its bytes received up to the last message, and whether there was one."""

    origin: bytes
    received: int = 0
    known: bool = False


class RemoteEndpoint:
    """The endpoint of an agent for the peers of its keys: a ROUTER at `address` (``HOST:PORT``).

    Connections beyond `most` (0: an eighth of the descriptors, and no more than a user of this node has) are closed by
    `look`, which has work when `fd` is readable: ZeroMQ accepts all connections until descriptors run out, and then
    aborts the process. Connections without a message yet, such as those of unknown peers, for which ZeroMQ waits, have
    lower limits (`SILENT`, `SILENT_EACH`): the oldest one is closed for the next. A peer is disconnected if it sends a
    frame of more than `longest` bytes, or endless frames, of which ZeroMQ keeps all until the last. A peer that does
    not read loses the messages after `unread` ones.

    Raises `ControlError` with a sentence that names the address's `option` if the address cannot be bound.
    """

    def __init__(
        self,
        address: str,
        own: Keys,
        most: int = 0,
        *,
        longest: int = MAX_MESSAGE,
        unread: int = UNREAD,
        option: str = "--remote-listen",
    ) -> None:
        if not _has_port(address):
            raise ControlError(_not_bound(address, f"a port is at most {LAST_PORT}", option))
        self._most = most or min(MOST_CONNECTIONS, max(1, raise_fd_limit() // 8))
        self._bound = ROOM + (WAITING + 2) * (longest + SEALED)
        self._inside: dict[int, _Caller] = {}
        """The connections by descriptor number, as in the events of ZeroMQ, in the order of their acceptance."""
        self._heard: set[int] = set()
        """Connections with a message since the last count."""
        self._count_again = 0.0
        self._context = zmq.Context()
        self._guard = keys.CurveAuthenticator(self._context, own)
        self.sock: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        for name, value in (
            (zmq.LINGER, 0),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
            (zmq.IPV6, 1),
            (zmq.MAXMSGSIZE, longest + SEALED),
            (zmq.RCVHWM, WAITING),
            (zmq.SNDHWM, unread),
        ):
            self.sock.setsockopt(name, value)  # options set after bind do not apply to connections
        watch_peer(self.sock, DEAD_MS)
        keys.guard_server(self.sock, own)
        self._monitor = monitor(self._context, self.sock)
        self.fd = int(self._monitor.getsockopt(zmq.FD))
        try:
            self.sock.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise ControlError(_not_bound(address, zmq.strerror(error.errno or 0), option)) from error
        self.port = int(self.sock.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def read(self) -> RouterMessage | None:
        """Return the next message, None while there is none."""
        heard = next_message(self.sock)
        if heard:
            fd = heard.frame.get(zmq.SRCFD)
            self._heard.add(fd)
            if fd in self._inside:
                self._inside[fd].known = True
        return heard

    def run(self) -> bool:
        """Record new and ended connections and close excess ones; return whether there may be more events."""
        more = drain_events(self._monitor, self._check_key)
        if time.monotonic() >= self._count_again:
            self._count()
            self._count_again = time.monotonic() + COUNT_EVERY
        return more

    def _count(self) -> None:
        """Close the connections with many bytes received since the last whole message."""
        for fd, caller in self._inside.items():
            now = received(fd)
            if fd in self._heard:
                caller.received = now
            elif now - caller.received > self._bound:
                self._reject(fd)
        self._heard.clear()

    def _check_key(self, event: int, fd: int) -> None:
        self._inside.pop(fd, None)
        if event == zmq.EVENT_ACCEPTED:
            caller = _Caller(origin_of(fd))
            if self._make_room(caller):
                self._inside[fd] = caller
            else:
                self._reject(fd)

    def _make_room(self, newest: _Caller) -> bool:
        """Return whether there is room for a new connection, closing a connection without a message if necessary."""
        silent = [fd for fd, caller in self._inside.items() if not caller.known]
        near = [fd for fd in silent if self._inside[fd].origin == newest.origin]
        oldest = None
        if len(near) >= max(1, self._most // SILENT_EACH):
            oldest = near[0]
        elif silent and (len(silent) >= max(1, self._most // SILENT) or len(self._inside) >= self._most):
            oldest = silent[0]
        if oldest is not None:
            del self._inside[oldest]
            self._reject(oldest)
        return len(self._inside) < self._most

    def _reject(self, fd: int) -> None:
        """Close the connection with descriptor number `fd`, unless the number belongs to another file by now."""
        with suppress(OSError), connection_of(fd) as connection:
            if connection.family in _INTERNET and connection.getsockname()[1] == self.port:
                connection.shutdown(socket.SHUT_RDWR)  # ZeroMQ sees that it has ended, and closes its side

    def close(self) -> None:
        """Stop accepting connections and monitoring: ZeroMQ must not wait for us when the socket is closed."""
        self._guard.stop()
        with suppress(zmq.ZMQError):
            self.sock.unbind(self.sock.getsockopt_string(zmq.LAST_ENDPOINT))
        while self.run():
            pass
        self._monitor.close(linger=0)
        self._context.destroy(linger=0)


def _not_bound(address: str, reason: str, option: str) -> str:
    return f"cannot take orders at {address}: {reason}: choose another {option}."


def origin_of(fd: int) -> bytes:
    """Return the peer's address of a connection of ZeroMQ, for IPv6 the network.

    Empty if the connection has ended: its number may belong to any other file by now.
    """
    with suppress(OSError), connection_of(fd) as connection:
        if connection.family not in _INTERNET:
            return b""
        address = connection.getpeername()[0]
        if connection.family == socket.AF_INET6:
            whole = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
            return whole[12:] if whole.startswith(_MAPPED) else whole[:8]
        return socket.inet_aton(address)
    return b""


_INTERNET = {socket.AF_INET, socket.AF_INET6}
_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4 address mapped to IPv6."""
