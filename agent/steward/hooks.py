# SPDX-License-Identifier: Apache-2.0
"""The socket at which a job's own launcher asks for processes on other nodes: drom-step remote stands in for ssh.

A request is one message of strings that each end in a NUL: job, attempt, a number of its own, host, folder, command.
The answer is a status, or a 1 and a sentence. The connection lasts as long as the command; who hangs up wants it ended.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent import door, processes

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from agent.following import Loop

LARGEST = 128 << 10
"""Bytes of a request."""
NUMBER = re.compile(r"[0-9a-f]{32}")


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
    if len(words) != 7 or words[-1] or not (words[0].isdecimal() and words[1].isdecimal()):
        return None
    number, host, folder, command = words[2:6]
    if not (NUMBER.fullmatch(number) and 0 < len(host) <= 255 and folder.startswith("/") and command):
        return None
    return Request(int(words[0]), int(words[1]), number, host, folder, command, uid)


class Hooks:
    """The socket at `path`, open to every user. `waiting` are the requests that have no answer yet, by number."""

    def __init__(self, path: Path, loop: Loop, host: Host) -> None:
        self._path = path
        self._loop = loop
        self._host = host
        self._door = door.listen(path, 0o666)
        self._callers: dict[str, socket.socket] = {}
        self._unnamed: set[socket.socket] = set()
        self.waiting: dict[str, Request] = {}
        loop.watch(self._door.fileno(), self._accept)

    def answer(self, number: str, text: str) -> None:
        """Answer a request, if who asked is still there."""
        if number in self.waiting:
            del self.waiting[number]
            caller = self._callers.pop(number)
            door.send(caller, text.encode(errors="surrogateescape")[:1000], [])
            self._dismiss(caller)

    def close(self) -> None:
        """Close the socket. Who waits asks the next agent."""
        for caller in [*self._callers.values(), *self._unnamed]:
            self._dismiss(caller)
        self._loop.unwatch(self._door.fileno())
        self._door.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            caller, _ = self._door.accept()
            caller.setblocking(False)
            self._unnamed.add(caller)
            self._loop.watch(caller.fileno(), lambda: self._hear(caller))

    def _hear(self, caller: socket.socket) -> None:
        try:
            data = caller.recv(LARGEST + 1)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if caller not in self._unnamed:
            number = next(number for number, one in self._callers.items() if one is caller)
            del self._callers[number]
            self._dismiss(caller)
            self._host.hung_up(self.waiting.pop(number))
            return
        request = self._request(caller, data)
        if request is None or request.number in self.waiting:
            self._dismiss(caller)
            return
        self._unnamed.discard(caller)
        self._callers[request.number], self.waiting[request.number] = caller, request
        self._host.asked(request)

    def _request(self, caller: socket.socket, data: bytes) -> Request | None:
        peer = processes.peer_identity(caller) if data else None
        if peer is None:
            return None
        os.close(peer.pidfd)
        return parse(data, peer.uid)

    def _dismiss(self, caller: socket.socket) -> None:
        self._unnamed.discard(caller)
        self._loop.unwatch(caller.fileno())
        caller.close()
