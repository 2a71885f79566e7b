# SPDX-License-Identifier: Apache-2.0
"""Who comes to a ZeroMQ socket and goes.

ZeroMQ lets everybody in until descriptors run out, and then aborts the process. Its monitor tells of connections by
descriptor, and waits while some thousand of these events are unread: nobody is fast enough to use up the descriptors
where more than `NEEDED` are free.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import TYPE_CHECKING, cast

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable

PER_LOOK = 256
"""Comings and goings that one look takes in at most: who comes and goes without end must not hold up the loop."""
NEEDED = 1001
"""Descriptors that must be free for who is in a hurry: so many events wait, 1000 at ZeroMQ's end and one at ours."""
_EVENT = struct.Struct("=Hi")


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
