# SPDX-License-Identifier: Apache-2.0
"""Connections to the registration socket: each sends one request, and gets an answer at once or when cores are free.

Connections without a request are closed. The registrar decides what the answers are.
"""

from __future__ import annotations

import os
import socket
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
        self._visits = Connections(path, socket.SOCK_SEQPACKET, share, RegistrationConnection, self)

    def open(self) -> None:
        """Accept connections."""
        self._loop.watch(self._visits.fd, self._visits.serve)

    def close(self) -> None:
        """Close the socket. Waiting launchers register again if another agent starts."""
        self._loop.unwatch(self._visits.fd)
        self._visits.end()

    # --- requests -----------------------------------------------------------------------------------------------------

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
            self._visits.close(visit)
            if visit.task and visit.task.started:
                self._offer_answered(visit, visit.task, accepts=data == b"")
            elif visit.task and not visit.task.arrival.attached:  # one that is attached runs already
                self._registrar.launcher_left(visit.task)
            return
        try:
            self._receive(visit, data)
        except (registration.BadRequest, Refused, MailboxError) as refusal:
            self._refuse(visit, str(refusal))
        except OSError as error:
            self._refuse(
                visit, f"the agent cannot register this program now ({os.strerror(error.errno or 0)}): try again later."
            )

    def _receive(self, visit: RegistrationConnection, data: bytes) -> None:
        peer = proc.peer_identity(visit.socket)
        if peer is None:
            raise Refused("the agent cannot see this process: run it in the agent's pid namespace.")
        try:
            request = registration.parse_request(data)
            visit.registrant = Registrant(request.kind, peer.identity, peer.uid)
            self._send(visit, self._registrar.handle_request(request, peer))
        finally:
            os.close(peer.pidfd)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _send(self, visit: RegistrationConnection, answer: Answer) -> bool:
        """Send an answer; return whether the process has received CPUs or a role."""
        if isinstance(answer, Granted):
            sent = self._send_last(visit, answer.reply, answer.fds)
            if answer.arrived and not sent:
                self._registrar.launcher_left(answer.task)
            return sent
        if isinstance(answer, Offered):
            return self._offer(visit, answer)
        if isinstance(answer, Waiting):
            visit.awaits(answer.task)
        elif isinstance(answer, Refusal):
            self._refuse(visit, answer.sentence)
        elif isinstance(answer, Unmanaged):
            self._send_last(visit, layout.pack_reply("unmanaged", text=answer.sentence))
        return False

    def _send_last(self, visit: RegistrationConnection, reply: bytes, fds: tuple[int, ...] = ()) -> bool:
        """Send the last reply of a connection, with descriptors, and close it; return False if it cannot be sent."""
        sent = connections.send(visit.socket, reply, fds)
        self._visits.close(visit)
        return sent

    def _refuse(self, visit: RegistrationConnection, sentence: str) -> None:
        self._report.refused(sentence)
        self._send_last(visit, layout.pack_reply("refused", text=sentence))

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

    def _offer(self, visit: RegistrationConnection, offer: Offered) -> bool:
        """Offer a process the role of a task's responder; return False if it cannot be sent."""
        visit.awaits(offer.task)
        try:
            sent = connections.send(visit.socket, offer.reply, (offer.registry, offer.mailbox))
        finally:
            os.close(offer.mailbox)
        if not sent:
            self._visits.close(visit)
        self._responders.offered(offer.task, offer.process, sent=sent)
        return sent

    def _offer_answered(self, visit: RegistrationConnection, task: Task, *, accepts: bool) -> None:
        """Handle the answer of a process that was offered a role.

        Several of its threads may have received the offer: it declines when the last of them has declined.
        """
        who = visit.registrant.process if visit.registrant else None
        others = [o for o in self._waiting_for(task) if who and o.registrant and o.registrant.process == who]
        if accepts:
            for other in others:
                self._visits.close(other)
        elif who and not others:
            self._responders.declined(task, who)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _waiting_for(self, task: Task) -> list[RegistrationConnection]:
        return [visit for visit in self._visits if visit.task is task]

    def started(self, task: Task) -> None:
        """Answer the processes that wait for a task that has its first grant; end it if its launcher has gone."""
        self._registrar.bind_attached(task)
        waiting = [(visit, visit.registrant) for visit in self._waiting_for(task) if visit.registrant]
        taken = False
        for visit, registrant in waiting:
            taken |= self._send(visit, self._registrar.answer_waiting(task, registrant))
        if not taken and any(registrant.launches(task) for _, registrant in waiting):
            self._registrar.launcher_left(task)

    def forgotten(self, task: Task) -> None:
        """Remove the mailbox and the connections of a task that is over."""
        self._registrar.forgotten(task)
        for visit in self._waiting_for(task):
            self._visits.close(visit)

    # --- what is due --------------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """Return when a launcher is to receive the reason for its wait; None if each has."""
        since = [visit.since for visit in self._visits if visit.is_untold()]
        return min(since) + TELL_WAITING if since else None

    def run(self, now: float) -> None:
        """Send waiting launchers the reason for the wait, and close connections without a request."""
        self._visits.tend(now)
        for visit in self._visits:
            task = visit.task
            if task and visit.is_untold() and now >= visit.since + TELL_WAITING:
                task.told_waiting = True
                text = self._node.grants.why_waiting(task)
                connections.send(visit.socket, layout.pack_reply("waiting", text=text))
