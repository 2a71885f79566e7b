# SPDX-License-Identifier: Apache-2.0
"""Who comes to a ZeroMQ socket and goes, and what is said there.

ZeroMQ lets everybody in until descriptors run out, and then aborts the process. Its monitor tells of connections by
descriptor, and waits while some thousand of these events are unread: nobody is fast enough to use up the descriptors
where more than `NEEDED` are free.
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
"""Comings and goings that one look takes in at most: who comes and goes without end must not hold up the loop."""
_EVENT = struct.Struct("=Hi")
_RECEIVED = struct.Struct("=128xQ")
"""Of the kernel's tcp_info (linux/tcp.h): tcpi_bytes_received."""


class Heard(NamedTuple):
    """What was said at a ROUTER: ZeroMQ's name for the connection, and the last frame, of how many."""

    line: bytes
    frame: zmq.Frame
    frames: int

    @property
    def message(self) -> bytes | None:
        """The message; None for one of several frames."""
        return self.frame.bytes if self.frames == 1 else None


def next_message(sock: zmq.Socket[bytes]) -> Heard | None:
    """Return what is said next at a ROUTER, None while nothing is.

    Nothing is copied before it is asked for: once it is known who says it, it may not be worth it.
    """
    try:
        line = sock.recv(zmq.NOBLOCK, copy=False)
    except zmq.Again:
        return None
    frame, frames = sock.recv(copy=False), 1
    while frame.more:
        frame, frames = sock.recv(copy=False), frames + 1
    return Heard(line.bytes, frame, frames)


def next_event(monitor: zmq.Socket[bytes], flags: int = 0) -> tuple[int, int]:
    """Return the next event of a socket's monitor and its value (zmq_socket_monitor(3)).

    pyzmq's own `zmq.utils.monitor` brings asyncio, which an agent spares.
    """
    return cast("tuple[int, int]", _EVENT.unpack(monitor.recv_multipart(flags)[0]))


def watch(context: zmq.Context[zmq.Socket[bytes]], sock: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return the socket on which `hear` learns who connects to `sock`, and who goes."""
    address = f"inproc://watch-{id(sock)}"
    sock.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
    monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 1)
    monitor.connect(address)
    return monitor


def hear(monitor: zmq.Socket[bytes], heed: Callable[[int, int], None]) -> bool:
    """Call `heed` with each event and its value; say whether there may be more."""
    try:
        for _ in range(PER_LOOK):
            heed(*next_event(monitor, zmq.NOBLOCK))
    except zmq.Again:
        return False
    return True


def connection_of(fd: int) -> socket.socket:
    """Return a socket of our own for a descriptor of ZeroMQ's. Raises OSError where that is closed, or no socket."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # the number is another file's by now
        os.close(copy)
        raise


def received(fd: int) -> int:
    """Return how many bytes have come by a TCP connection of ZeroMQ's; 0 where it has ended."""
    with suppress(OSError, struct.error), connection_of(fd) as connection:
        about = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        return cast("int", _RECEIVED.unpack(about)[0])
    return 0
