# SPDX-License-Identifier: Apache-2.0
"""Connections and messages of a ZeroMQ socket.

ZeroMQ accepts all connections until descriptors run out, and then aborts the process. Its monitor reports connections
by descriptor, and ZeroMQ waits while some thousand of these events are unread: no peer is fast enough to use up the
descriptors if more than `RESERVED_FDS` are free.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

PER_LOOK = 256
"""Most events handled by one call: peers that connect and disconnect endlessly must not delay the loop."""
_EVENT = struct.Struct("=Hi")
_RECEIVED = struct.Struct("=128xQ")
"""The field tcpi_bytes_received of the kernel's tcp_info (linux/tcp.h)."""


class RouterMessage(NamedTuple):
    """A message received at a ROUTER: ZeroMQ's name for the connection, the last frame, and the number of frames."""

    line: bytes
    frame: zmq.Frame
    frames: int

    @property
    def message(self) -> bytes | None:
        """The message; None for one of several frames."""
        return self.frame.bytes if self.frames == 1 else None


def next_message(sock: zmq.Socket[bytes]) -> RouterMessage | None:
    """Return the next message at a ROUTER, None while there is none.

    The message is copied only on access: once its sender is known, it may not be needed.
    """
    try:
        line = sock.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frame, frames = sock.recv(copy=False), 1
    while frame.more:
        frame, frames = sock.recv(copy=False), frames + 1
    return RouterMessage(line.bytes, frame, frames)


def next_event(monitor: zmq.Socket[bytes], flags: int = 0) -> tuple[int, int]:
    """Return the next event of a socket's monitor and its value (zmq_socket_monitor(3)).

    pyzmq's own `zmq.utils.monitor` imports asyncio, which an agent avoids.
    """
    return cast("tuple[int, int]", _EVENT.unpack(monitor.recv_multipart(flags)[0]))


def monitor(context: zmq.Context[zmq.Socket[bytes]], sock: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return the socket from which `hear` reads the connects and disconnects at `sock`."""
    address = f"inproc://watch-{id(sock)}"
    sock.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
    monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 1)
    monitor.connect(address)
    return monitor


def drain_events(monitor: zmq.Socket[bytes], heed: Callable[[int, int], None]) -> bool:
    """Call `heed` with each event and its value; return whether there may be more."""
    try:
        for _ in range(PER_LOOK):
            heed(*next_event(monitor, zmq.NOBLOCK))
    except zmq.Again:
        return False
    return True


def connection_of(fd: int) -> socket.socket:
    """Return a duplicate socket for a descriptor of ZeroMQ. Raises OSError if that is closed or not a socket."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # the number belongs to another file by now
        os.close(copy)
        raise


def received(fd: int) -> int:
    """Return how many bytes a TCP connection of ZeroMQ has received; 0 if it has ended."""
    with suppress(OSError, struct.error), connection_of(fd) as connection:
        about = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        return cast("int", _RECEIVED.unpack(about)[0])
    return 0
