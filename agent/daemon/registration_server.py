# SPDX-License-Identifier: Apache-2.0
"""Connections to the registration socket: each sends one request, and gets an answer at once or when cores are free.

Connections without a request are closed. The `Host` handles the requests.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Protocol

from drom.agent.errors import Refused
from drom.agent.ipc import registration
from drom.agent.ipc.mailboxes import MailboxError
from drom.agent.system import connections, proc
from drom.agent.system.connections import Connection, Connections

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.model.jobs import Task
    from drom.agent.system.loop import Loop
    from drom.agent.system.proc import Identity, Peer

TELL_WAITING = 0.25
"""Seconds after which a launcher receives the reason for its wait."""


class RegistrationConnection(Connection):
    """A connection; after its request also the process, the kind of request, and the task it waits for.

    A process that was offered the role of responder of a running task does not wait: the agent waits for its answer.
    """

    def __init__(self, accepted: socket.socket, pid: int, uid: int, since: float) -> None:
        super().__init__(accepted, pid, uid, since)
        self.kind = ""
        self.who: Identity | None = None
        self.task: Task | None = None

    def awaits(self, task: Task) -> None:
        """Record that the connection lasts until `task` starts, or has its responder."""
        self.task, self.closes_at, self.hears_end = task, None, True


class RequestHandler(Protocol):
    """Handles registration requests."""

    def handle_request(self, visit: RegistrationConnection, request: registration.Request, peer: Peer) -> None:
        """Handle a request. Raises `Refused` or `MailboxError` with the sentence to answer."""

    def launcher_left(self, task: Task) -> None:
        """Handle the disconnection of the launcher of a task that has not started."""

    def responder_confirmed(self, task: Task, who: Identity | None, *, sits: bool) -> None:
        """Handle the answer of a process that was offered the role of a task's responder: whether it accepts."""

    def refused(self, sentence: str) -> None:
        """Record a refusal."""

    def why_waiting(self, task: Task) -> str:
        """Return a sentence that says what a task waits for."""


class RegistrationServer:
    """The registration socket at `path`, open to every user; `share` returns how many connections a user may have."""

    def __init__(self, path: Path, loop: Loop, host: RequestHandler, share: Callable[[int], int]) -> None:
        self._loop = loop
        self._host = host
        self._visits = Connections(path, socket.SOCK_SEQPACKET, share, RegistrationConnection, self)

    def open(self) -> None:
        """Accept connections."""
        self._loop.watch(self._visits.fd, self._visits.serve)

    def close(self) -> None:
        """Close the socket. Waiting launchers register again if another agent starts."""
        self._loop.unwatch(self._visits.fd)
        self._visits.end()

    def waiting_for(self, task: Task) -> list[RegistrationConnection]:
        """Return the connections that wait for a task."""
        return [visit for visit in self._visits if visit.task is task]

    def answer(self, visit: RegistrationConnection, reply: bytes, fds: list[int]) -> bool:
        """Send the last reply of a connection, with descriptors, and close it; return False if it cannot be sent."""
        sent = connections.send(visit.socket, reply, fds)
        self.close_connection(visit)
        return sent

    def offer_responder(self, visit: RegistrationConnection, task: Task, reply: bytes, fds: list[int]) -> bool:
        """Offer a process the role of a task's responder; return False if it cannot be sent.

        Otherwise the answer is passed to `Host.answered`.
        """
        visit.awaits(task)
        sent = connections.send(visit.socket, reply, fds)
        if not sent:
            self.close_connection(visit)
        return sent

    def refuse(self, visit: RegistrationConnection, sentence: str) -> None:
        """Send a refusal."""
        self._host.refused(sentence)
        self.answer(visit, layout.pack_reply("refused", text=sentence), [])

    def reply_unmanaged(self, visit: RegistrationConnection, sentence: str) -> None:
        """Send the reply that the agent leaves this program alone."""
        self.answer(visit, layout.pack_reply("unmanaged", text=sentence), [])

    def close_connection(self, visit: RegistrationConnection) -> None:
        """Close a connection, if it is still open."""
        self._visits.close(visit)

    def next_look(self, now: float) -> float | None:
        """Return when `tend` has something to send, or None."""
        untold = any(v.kind == "launch" and v.task and not v.task.told_waiting for v in self._visits)
        return now + TELL_WAITING if untold else None

    def tend(self) -> None:
        """Send waiting launchers the reason for the wait, and close connections without a request."""
        now = time.monotonic()
        self._visits.tend(now)
        for visit in self._visits:
            task = visit.task
            untold = task and visit.kind == "launch" and not task.told_waiting
            if task and untold and now - visit.since >= TELL_WAITING:
                task.told_waiting = True
                text = self._host.why_waiting(task)
                connections.send(visit.socket, layout.pack_reply("waiting", text=text))

    def refusal(self, uid: int, has: int | None) -> bytes:
        """Return the reply to a process for which there is no room; see `drom.agent.system.connections.Handler`."""
        sentence = "too many programs are registering: try again in a moment."
        if has is not None:
            sentence = f"user {uid} has {has} programs registering already: wait until some of them have started."
        self._host.refused(sentence)
        return layout.pack_reply("refused", text=sentence)

    def closed(self, connection: RegistrationConnection) -> None:
        """Do nothing: the code that closes the connection handles its task."""

    def hear(self, connection: RegistrationConnection) -> None:
        """Receive the one request of a connection, or detect that the other side has disconnected.

        A process accepts the role of responder by closing the connection. Another message, or an unread offer, means
        that it declines.
        """
        visit = connection
        data: bytes | None
        try:
            data = visit.socket.recv(layout.REQUEST.size + 1)
        except BlockingIOError:
            return
        except OSError:
            data = None
        if visit.task or not data:
            self.close_connection(visit)
            if visit.task and visit.task.started:
                self._host.responder_confirmed(visit.task, visit.who, sits=data == b"")
            elif visit.task:
                self._host.launcher_left(visit.task)
            return
        try:
            self._receive(visit, data)
        except (registration.BadRequest, Refused, MailboxError) as refusal:
            self.refuse(visit, str(refusal))
        except OSError as error:
            self.refuse(
                visit, f"the agent cannot register this program now ({os.strerror(error.errno or 0)}): try again later."
            )

    def _receive(self, visit: RegistrationConnection, data: bytes) -> None:
        peer = proc.peer_identity(visit.socket)
        if peer is None:
            raise Refused("the agent cannot see this process: run it in the agent's pid namespace.")
        try:
            self._host.handle_request(visit, registration.parse_request(data), peer)
        finally:
            os.close(peer.pidfd)
