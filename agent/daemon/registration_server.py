# SPDX-License-Identifier: Apache-2.0
"""Connections to the registration socket: each sends one request, and gets an answer at once or when cores are free.

Connections without a request are closed. The registrar decides what the answers are.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

from drom.agent.daemon.registration_answers import Granted, Offered, Refusal, Registrant, Unmanaged, Waiting
from drom.agent.errors import Refused
from drom.agent.ipc import registration
from drom.agent.ipc.mailboxes import MailboxError
from drom.agent.system import connections, proc
from drom.agent.system.connections import Connection, Connections

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.daemon.actuator import Actuator
    from drom.agent.daemon.registrar import Registrar
    from drom.agent.daemon.registration_answers import Answer
    from drom.agent.daemon.responders import Responders
    from drom.agent.model.jobs import Task
    from drom.agent.system.loop import Loop

TELL_WAITING = 0.25
"""Seconds after which a launcher receives the reason for its wait."""


class RegistrationConnection(Connection):
    """A connection; after its request also the process that has sent it, and the task it waits for.

    A process that was offered the role of responder of a running task does not wait: the agent waits for its answer.
    """

    def __init__(self, accepted: socket.socket, pid: int, uid: int, since: float) -> None:
        super().__init__(accepted, pid, uid, since)
        self.registrant: Registrant | None = None
        self.task: Task | None = None

    def awaits(self, task: Task) -> None:
        """Record that the connection lasts until `task` starts, or has its responder."""
        self.task, self.closes_at, self.hears_end = task, None, True

    def is_untold(self) -> bool:
        """Return whether a launcher waits that has not received the reason."""
        waits = self.task and self.registrant and self.registrant.kind == "launch"
        return bool(waits and self.task and not self.task.told_waiting)


class RegistrationServer:
    """The registration socket at `path`, open to every user; `share` returns how many connections a user may have.

    It is the `ActuatorListener` that answers processes whose tasks start, and disconnects those whose tasks are over.
    """

    def __init__(
        self,
        path: Path,
        loop: Loop,
        actuator: Actuator,
        registrar: Registrar,
        responders: Responders,
        *,
        share: Callable[[int], int],
    ) -> None:
        self._loop = loop
        self._node, self._report = actuator.node, actuator.report
        self._registrar = registrar
        self._responders = responders
        # Every user may connect; the result depends on the user id that the kernel reports.
        self._connections = Connections(path, socket.SOCK_SEQPACKET, share, RegistrationConnection, self)

    def open(self) -> None:
        """Accept connections."""
        self._loop.watch(self._connections.fd, self._connections.serve)

    def close(self) -> None:
        """Close the socket. Waiting launchers register again if another agent starts."""
        self._loop.unwatch(self._connections.fd)
        self._connections.end()

    # --- requests -----------------------------------------------------------------------------------------------------

    def hear(self, connection: RegistrationConnection) -> None:
        """Receive the one request of a connection, or detect that the other side has disconnected.

        A process accepts the role of responder by closing the connection. Another message, or an unread offer, means
        that it declines.
        """
        data: bytes | None
        try:
            data = connection.socket.recv(layout.REQUEST.size + 1)
        except BlockingIOError:
            return
        except OSError:
            data = None
        if connection.task or not data:
            self._connections.close(connection)
            if connection.task and connection.task.started:
                self._offer_answered(connection, connection.task, accepts=data == b"")
            elif connection.task and not connection.task.arrival.attached:  # one that is attached runs already
                self._registrar.launcher_left(connection.task)
            return
        try:
            self._receive(connection, data)
        except (registration.BadRequest, Refused, MailboxError) as refusal:
            self._refuse(connection, str(refusal))
        except OSError as error:
            why = os.strerror(error.errno or 0)
            self._refuse(connection, f"the agent cannot register this program now ({why}): try again later.")

    def _receive(self, connection: RegistrationConnection, data: bytes) -> None:
        peer = proc.peer_identity(connection.socket)
        if peer is None:
            raise Refused("the agent cannot see this process: run it in the agent's pid namespace.")
        with ExitStack() as stack:
            stack.callback(os.close, peer.pidfd)
            request = registration.parse_request(data)
            if request.for_parent:
                peer = _parent_of(peer)
                stack.callback(os.close, peer.pidfd)
            connection.registrant = Registrant(request.kind, peer.identity, peer.uid)
            self._send(connection, self._registrar.handle_request(request, peer))

    # --- answers ------------------------------------------------------------------------------------------------------

    def _send(self, connection: RegistrationConnection, answer: Answer) -> bool:
        """Send an answer; return whether the process has received CPUs or a role."""
        if isinstance(answer, Granted):
            sent = self._send_last(connection, answer.reply, answer.fds)
            if answer.arrived and not sent:
                self._registrar.launcher_left(answer.task)
            return sent
        if isinstance(answer, Offered):
            return self._offer(connection, answer)
        if isinstance(answer, Waiting):
            connection.awaits(answer.task)
        elif isinstance(answer, Refusal):
            self._refuse(connection, answer.sentence)
        elif isinstance(answer, Unmanaged):
            self._send_last(connection, layout.pack_reply("unmanaged", text=answer.sentence))
        return False

    def _send_last(self, connection: RegistrationConnection, reply: bytes, fds: tuple[int, ...] = ()) -> bool:
        """Send the last reply of a connection, with descriptors, and close it; return False if it cannot be sent."""
        sent = connections.send(connection.socket, reply, fds)
        self._connections.close(connection)
        return sent

    def _refuse(self, connection: RegistrationConnection, sentence: str) -> None:
        self._report.refused(sentence)
        self._send_last(connection, layout.pack_reply("refused", text=sentence))

    def refusal(self, uid: int, has: int | None) -> bytes:
        """Return the reply to a process for which there is no room; see `drom.agent.system.connections.Handler`."""
        sentence = "too many programs are registering: try again in a moment."
        if has is not None:
            sentence = f"user {uid} has {has} programs registering already: wait until some of them have started."
        self._report.refused(sentence)
        return layout.pack_reply("refused", text=sentence)

    def closed(self, connection: RegistrationConnection) -> None:
        """Do nothing: the code that closes the connection handles its task."""

    # --- responders ---------------------------------------------------------------------------------------------------

    def _offer(self, connection: RegistrationConnection, offer: Offered) -> bool:
        """Offer a process the role of a task's responder; return False if it cannot be sent."""
        connection.awaits(offer.task)
        try:
            sent = connections.send(connection.socket, offer.reply, (offer.registry, offer.mailbox))
        finally:
            os.close(offer.mailbox)
        if not sent:
            self._connections.close(connection)
        self._responders.offered(offer.task, offer.process, sent=sent)
        return sent

    def _offer_answered(self, connection: RegistrationConnection, task: Task, *, accepts: bool) -> None:
        """Handle the answer of a process that was offered a role.

        Several of its threads may have received the offer: it declines when the last of them has declined.
        """
        who = connection.registrant.process if connection.registrant else None
        others = [o for o in self._waiting_for(task) if who and o.registrant and o.registrant.process == who]
        if accepts:
            for other in others:
                self._connections.close(other)
        elif who and not others:
            self._responders.declined(task, who)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _waiting_for(self, task: Task) -> list[RegistrationConnection]:
        return [connection for connection in self._connections if connection.task is task]

    def started(self, task: Task) -> None:
        """Answer the processes that wait for a task that has its first grant; end it if its launcher has gone."""
        self._registrar.bind_attached(task)
        waiting = [
            (connection, connection.registrant) for connection in self._waiting_for(task) if connection.registrant
        ]
        taken = False
        for connection, registrant in waiting:
            taken |= self._send(connection, self._registrar.answer_waiting(task, registrant))
        if not taken and any(registrant.launches(task) for _, registrant in waiting):
            self._registrar.launcher_left(task)

    def forgotten(self, task: Task) -> None:
        """Remove the mailbox and the connections of a task that is over."""
        self._registrar.forgotten(task)
        for connection in self._waiting_for(task):
            self._connections.close(connection)

    # --- what is due --------------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Return when a launcher is to receive the reason for its wait; None if each has."""
        since = [connection.since for connection in self._connections if connection.is_untold()]
        return min(since) + TELL_WAITING if since else None

    def run(self, now: float) -> None:
        """Send waiting launchers the reason for the wait, and close connections without a request."""
        self._connections.tend(now)
        for connection in self._connections:
            task = connection.task
            if task and connection.is_untold() and now >= connection.since + TELL_WAITING:
                task.told_waiting = True
                text = self._node.grants.why_waiting(task)
                connections.send(connection.socket, layout.pack_reply("waiting", text=text))


def _parent_of(peer: proc.Peer) -> proc.Peer:
    """Return the parent of a peer; the caller closes its pidfd. Raises `Refused` for a parent that may not be bound."""
    parent = proc.parent_of(peer)
    if parent is None:
        raise Refused("the process that started this one is gone or another user's: register one of your own.")
    if parent.identity.pid == 1 or parent.identity in proc.ancestry(os.getpid()):
        os.close(parent.pidfd)
        raise Refused("the process that started this one is an ancestor of the agent: register a program.")
    return parent
