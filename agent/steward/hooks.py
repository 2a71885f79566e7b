# SPDX-License-Identifier: Apache-2.0
"""The socket at which a job's own launcher asks for processes on other nodes: drom-step remote stands in for ssh.

A request is one message of strings that each end in a NUL: job, attempt, a number of its own, host, folder, command.
The answer is a status, or a 1 and a sentence. The connection lasts as long as the command; who hangs up wants it ended.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent import door, processes
from agent.reception import SILENCE

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from agent.following import Loop

LARGEST = 128 << 10
"""Bytes of a request."""
NUMBER = re.compile(r"[0-9a-f]{32}")
_WHOLE = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Request:
    """What a process of user `uid` wants run on `host`; `number` tells it from all others."""

    job: int
    attempt: int
    number: str
    host: str
    folder: str
    command: str
    uid: int


class Host(Protocol):
    """Who sees to requests."""

    def asked(self, request: Request) -> None:
        """Take in a request, which may be there already."""

    def hung_up(self, request: Request) -> None:
        """Take in that who asked is gone."""


def parse(data: bytes, uid: int) -> Request | None:
    """Return the request in a message, None where there is none."""
    words = data.decode(errors="surrogateescape").split("\0")
    if len(words) != 7 or words[-1] or not (_WHOLE.fullmatch(words[0]) and _WHOLE.fullmatch(words[1])):
        return None
    number, host, folder, command = words[2:6]
    if not (NUMBER.fullmatch(number) and 0 < len(host) <= 255 and folder.startswith("/") and command):
        return None
    return Request(int(words[0]), int(words[1]), number, host, folder, command, uid)


@dataclass(slots=True, eq=False)
class Caller:
    """A connection: of which user, since when, and what it asks for once it has asked."""

    connection: socket.socket
    uid: int
    since: float
    request: Request | None = None


class Hooks:
    """The socket at `path`, open to every user, who may have as many connections to it as `share` returns."""

    def __init__(self, path: Path, loop: Loop, host: Host, share: Callable[[int], int]) -> None:
        self._path = path
        self._loop = loop
        self._host = host
        self._share = share
        self._door = door.listen(path, 0o666)
        self._silent: set[Caller] = set()
        self._waiting: dict[str, Caller] = {}
        self._many: Counter[int] = Counter()
        self._listener = door.Listener(self._door, self._open, lambda: loop.unwatch(self._door.fileno()))
        self._open()

    def _open(self) -> None:
        self._loop.watch(self._door.fileno(), self._accept)

    @property
    def waiting(self) -> list[Request]:
        """The requests that have no answer yet."""
        return [caller.request for caller in self._waiting.values() if caller.request]

    def answer(self, number: str, text: str) -> None:
        """Answer a request, if who asked is still there."""
        if caller := self._waiting.get(number):
            door.send(caller.connection, text.encode(errors="surrogateescape")[:1000], [])
            self._dismiss(caller)

    def tend(self, now: float) -> None:
        """Close connections that say nothing, and let callers in again where there was no room for them."""
        self._listener.tend(now)
        for caller in [one for one in self._silent if now - one.since > SILENCE]:
            self._dismiss(caller)

    def close(self) -> None:
        """Close the socket. Who waits asks the next agent."""
        for caller in [*self._waiting.values(), *self._silent]:
            self._dismiss(caller)
        self._loop.unwatch(self._door.fileno())
        self._door.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            connection = self._listener.accept(time.monotonic())
        except OSError:
            return
        if connection is None:
            return
        caller = Caller(connection, processes.peer_credentials(connection)[1], time.monotonic())
        has = self._many[caller.uid]
        if has >= self._share(caller.uid):
            with contextlib.suppress(OSError):
                connection.recv(LARGEST + 1)  # a request that is not read is all that the caller would hear of
            sentence = f"1 user {caller.uid} has {has} commands on other nodes already: wait until some have ended."
            door.send(connection, sentence.encode(), [])
            connection.close()
            return
        self._many[caller.uid] += 1
        self._silent.add(caller)
        self._loop.watch(connection.fileno(), lambda: self._hear(caller))

    def _hear(self, caller: Caller) -> None:
        try:
            data = caller.connection.recv(LARGEST + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if caller.request:
            self._dismiss(caller)
            self._host.hung_up(caller.request)
            return
        request = parse(data, caller.uid)
        if request is None or request.number in self._waiting:
            self._dismiss(caller)
            return
        self._silent.discard(caller)
        caller.request = request
        self._waiting[request.number] = caller
        self._host.asked(request)

    def _dismiss(self, caller: Caller) -> None:
        self._silent.discard(caller)
        if caller.request:
            del self._waiting[caller.request.number]
        self._many[caller.uid] -= 1
        self._loop.unwatch(caller.connection.fileno())
        caller.connection.close()
