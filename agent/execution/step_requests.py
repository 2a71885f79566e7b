# SPDX-License-Identifier: Apache-2.0
"""The socket at which a job's own launcher requests processes on other nodes: drom-step remote stands in for ssh.

A request is one message of strings that each end in a NUL: job, attempt, a number of its own, host, folder, command.
The answer is a status, or a 1 and a sentence. The connection lasts as long as the command; closing it ends the command.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from drom.agent.system import connections
from drom.agent.system.connections import Connection, Connections

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.system.loop import Loop

LARGEST = 128 << 10
"""Maximum number of bytes of a request."""
NUMBER = re.compile(r"[0-9a-f]{32}")
_WHOLE = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Request:
    """A command that a process of user `uid` wants to run on `host`; `number` identifies the request."""

    job: int
    attempt: int
    number: str
    host: str
    folder: str
    command: str
    uid: int


class Host(Protocol):
    """Handles requests."""

    def asked(self, request: Request) -> None:
        """Handle a request, which may be known already."""

    def hung_up(self, request: Request) -> None:
        """Handle the disconnection of the process that sent a request."""


def parse(data: bytes, uid: int) -> Request | None:
    """Return the request in a message, None if it is malformed."""
    words = data.decode(errors="surrogateescape").split("\0")
    if len(words) != 7 or words[-1] or not (_WHOLE.fullmatch(words[0]) and _WHOLE.fullmatch(words[1])):
        return None
    number, host, folder, command = words[2:6]
    if not (NUMBER.fullmatch(number) and 0 < len(host) <= 255 and folder.startswith("/") and command):
        return None
    return Request(int(words[0]), int(words[1]), number, host, folder, command, uid)


class Caller(Connection):
    """A connection, and its request once that has been received."""

    request: Request | None = None
    size = 0

    def asks(self, request: Request, size: int) -> None:
        """Record a request of `size` bytes, which lasts until it is answered."""
        self.request, self.size, self.closes_at, self.hears_end = request, size, None, True


class StepRequestServer:
    """The socket at `path`, open to every user; `share` returns how many connections a user may have."""

    def __init__(self, path: Path, loop: Loop, host: Host, share: Callable[[int], int]) -> None:
        self._path = path
        self._loop = loop
        self._host = host
        self._waiting: dict[str, Caller] = {}
        self._callers = Connections(path, socket.SOCK_SEQPACKET, share, Caller, self)
        self._loop.watch(self._callers.fd, self._callers.serve)

    @property
    def waiting(self) -> list[Request]:
        """The requests that have no answer yet."""
        return [caller.request for caller in self._waiting.values() if caller.request]

    def answer(self, number: str, text: str) -> None:
        """Answer a request, if its process is still connected."""
        if caller := self._waiting.get(number):
            self._answer(caller, text)

    def tend(self, now: float) -> None:
        """Close connections without a request in time, and accept again if there was no room for connections."""
        self._callers.tend(now)

    def close(self) -> None:
        """Close the socket. Waiting processes send their request to the next agent."""
        self._loop.unwatch(self._callers.fd)
        self._callers.end()
        self._path.unlink(missing_ok=True)

    def refusal(self, uid: int, has: int | None) -> bytes:
        """Return the answer to a process for which there is no room; see `drom.agent.system.connections.Handler`."""
        if has is None:
            return b"1 the agent has no descriptors left for this command: try again in a moment."
        return f"1 user {uid} has {has} commands on other nodes already: wait until some have ended.".encode()

    def closed(self, connection: Caller) -> None:
        """Remove the request of a closed connection; see `drom.agent.system.connections.Handler`."""
        if connection.request:
            del self._waiting[connection.request.number]

    def hear(self, connection: Caller) -> None:
        """Receive the one request of a connection, or detect that the other side has disconnected."""
        try:
            data = connection.socket.recv(LARGEST + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if connection.request:
            self._callers.close(connection)
            self._host.hung_up(connection.request)
            return
        request = parse(data, connection.uid)
        if request is None or request.number in self._waiting:
            self._callers.close(connection)
        elif not self._callers.has_room(connection.uid, len(data)):
            self._answer(
                connection,
                f"1 the waiting commands of user {connection.uid} are too long together: wait until some have started.",
            )
        else:
            connection.asks(request, len(data))
            self._callers.hold(connection)
            self._waiting[request.number] = connection
            self._host.asked(request)

    def _answer(self, caller: Caller, text: str) -> None:
        connections.send(caller.socket, text.encode(errors="surrogateescape")[:1000])
        self._callers.close(caller)
