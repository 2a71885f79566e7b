# SPDX-License-Identifier: Apache-2.0
"""Who is connected to a ZeroMQ socket of this node; connections beyond a user's share are closed.

ZeroMQ lets everybody in until descriptors run out, and then aborts the process. Its monitor tells of connections by
descriptor, and the kernel whose they are. ZeroMQ waits while some thousand of these events are unread: nobody is fast
enough to use up the descriptors where more than `NEEDED` are free.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, cast

import zmq

from agent.processes import peer_credentials

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PER_LOOK = 256
"""Comings and goings that one look takes in at most: who comes and goes without end must not hold up the loop."""
BEHIND = 1001
"""Events that wait to be read when ZeroMQ stops: its own end of the monitor takes 1000, ours one."""
NEEDED = 3 * BEHIND
"""Descriptors that must be free for two crowds, so that one that is in a hurry cannot use them up."""
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


class Crowd:
    """The connections of `sock`, bound at `path`; `share` returns how many of them a user may have."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], sock: zmq.Socket[bytes], path: Path, share: Callable[[int], int]
    ) -> None:
        self._sock = sock
        self._monitor = watch(context, sock)
        self.fd = int(self._monitor.getsockopt(zmq.FD))
        self._path = os.fspath(path)
        self._share = share
        self._who: dict[int, tuple[int, int]] = {}
        self._many: Counter[int] = Counter()

    def close(self) -> None:
        """Let nobody in any more, and look no longer: ZeroMQ must not wait for us when the socket is closed."""
        with suppress(zmq.ZMQError):
            self._sock.unbind(f"ipc://{self._path}")
        while self.look():
            pass
        self._monitor.close(linger=0)

    def expel(self, pid: int) -> None:
        """Close the connections of a process."""
        for fd in [fd for fd, who in self._who.items() if who[0] == pid]:
            self._close(fd, pid)

    def look(self) -> bool:
        """Take in who has come and gone; say whether there may be more."""
        return hear(self._monitor, self._heed)

    def _heed(self, event: int, fd: int) -> None:
        self._forget(fd)
        if event == zmq.EVENT_ACCEPTED:
            self._take_in(fd)

    def _take_in(self, fd: int) -> None:
        if (who := self._peer(fd)) is None:
            return
        pid, uid = self._who[fd] = who
        self._many[uid] += 1
        if self._many[uid] > self._share(uid):
            self._close(fd, pid)

    def _forget(self, fd: int) -> None:
        if (who := self._who.pop(fd, None)) is None:
            return
        self._many[who[1]] -= 1
        if not self._many[who[1]]:
            del self._many[who[1]]

    def _peer(self, fd: int) -> tuple[int, int] | None:
        """Return pid and uid of who connected, or None where the number is another file's by now."""
        with suppress(OSError), connection_of(fd) as connection:
            if connection.family == socket.AF_UNIX and connection.getsockname() == self._path:
                return peer_credentials(connection)[:2]
        return None

    def _close(self, fd: int, pid: int) -> None:
        """Close the connection with this number, if it is still that of the process."""
        if (who := self._peer(fd)) and who[0] == pid:
            with suppress(OSError), connection_of(fd) as connection:
                connection.shutdown(socket.SHUT_RDWR)  # ZeroMQ sees that it has ended, and closes its side


def connection_of(fd: int) -> socket.socket:
    """Return a socket of our own for a descriptor of ZeroMQ's. Raises OSError where that is closed, or no socket."""
    copy = os.dup(fd)
    try:
        return socket.socket(fileno=copy)
    except OSError:  # the number is another file's by now
        os.close(copy)
        raise
