# SPDX-License-Identifier: Apache-2.0
"""Connections at the door: one request each, an answer at once or when cores are free, and nobody may linger.

What a request leads to is its host's business.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent import door, processes
from agent.crowd import NEEDED
from agent.jobs import Refused
from agent.mailboxes import MailboxError
from dromlib import layout

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from agent.following import Loop
    from agent.jobs import Task
    from agent.processes import Identity, Peer
    from agent.quotas import Quotas

SILENCE = 5.0
"""Seconds a connection may stay without a request."""
RESERVE = 32 + NEEDED
"""Descriptors that guests leave for the agent's own work and for its other sockets; of few they leave the half."""
PER_TURN = 64
"""Connections that are let in before the agent looks at the rest of the world again."""
TELL_WAITING = 0.25
"""Seconds after which a launcher is told why it waits."""


@dataclass(slots=True)
class Visit:
    """A connection: of which user, since when; once it has asked, who asks for what, and the task it waits for.

    Who has been offered the seat of a task that runs waits for nothing: we wait to hear whether he sits there.
    """

    connection: socket.socket
    uid: int
    since: float
    kind: str = ""
    who: Identity | None = None
    task: Task | None = None


class Host(Protocol):
    """Who lets visitors in."""

    def receive(self, visit: Visit, request: door.Request, peer: Peer) -> None:
        """Deal with a request. Raises `Refused` or `MailboxError` with the sentence to answer."""

    def left(self, task: Task) -> None:
        """Take in that the launcher of a task that has not started is gone."""

    def answered(self, task: Task, who: Identity | None, *, sits: bool) -> None:
        """Take in whether a process that was offered the seat of a task has come to sit there."""

    def refused(self, sentence: str) -> None:
        """Take note of a refusal."""

    def why_waiting(self, task: Task) -> str:
        """Return a sentence: what a task waits for."""


class Reception:
    """The door at `path`, open to every user; its descriptor numbers stay below `fd_limit`, shared by `quotas`."""

    def __init__(self, path: Path, fd_limit: int, loop: Loop, host: Host, quotas: Quotas) -> None:
        self._door = door.listen(path, 0o666)
        self._last_fd = fd_limit - min(RESERVE, fd_limit // 2)
        self._loop = loop
        self._host = host
        self._quotas = quotas
        self._visits: dict[int, Visit] = {}
        self._many: Counter[int] = Counter()
        self._listener = door.Listener(self._door, self.open, lambda: loop.unwatch(self._door.fileno()))

    def open(self) -> None:
        """Let visitors in."""
        self._loop.watch(self._door.fileno(), self._accept)

    def close(self) -> None:
        """Close the door. Launchers that wait knock again, in case another agent comes."""
        for visit in list(self._visits.values()):
            self.dismiss(visit)
        self._door.close()

    def waiting_for(self, task: Task) -> list[Visit]:
        """Return the visits that wait for a task."""
        return [visit for visit in self._visits.values() if visit.task is task]

    def answer(self, visit: Visit, reply: bytes, fds: list[int]) -> bool:
        """Send the last reply of a visit, with descriptors; False when nobody takes it."""
        sent = door.send(visit.connection, reply, fds)
        self.dismiss(visit)
        return sent

    def offer(self, visit: Visit, task: Task, reply: bytes, fds: list[int]) -> bool:
        """Offer a process the seat of a task; False when nobody takes it, else the host hears what comes of it."""
        visit.task = task
        sent = door.send(visit.connection, reply, fds)
        if not sent:
            self.dismiss(visit)
        return sent

    def refuse(self, visit: Visit, sentence: str) -> None:
        """Answer with a refusal."""
        self._host.refused(sentence)
        self.answer(visit, layout.pack_reply("refused", text=sentence), [])

    def leave_alone(self, visit: Visit, sentence: str) -> None:
        """Answer that the agent leaves this program alone."""
        self.answer(visit, layout.pack_reply("unmanaged", text=sentence), [])

    def dismiss(self, visit: Visit) -> None:
        """Close a visit's connection, if it is still open."""
        fd = visit.connection.fileno()
        if fd >= 0:
            self._loop.unwatch(fd)
            if self._visits.pop(fd, None):
                self._many[visit.uid] -= 1
            visit.connection.close()

    def next_look(self, now: float) -> float | None:
        """Return when `tend` has something to tell, or None."""
        untold = any(v.kind == "launch" and v.task and not v.task.told_waiting for v in self._visits.values())
        return now + TELL_WAITING if untold else None

    def tend(self) -> None:
        """Tell launchers why they wait, and close connections that say nothing."""
        now = time.monotonic()
        self._listener.tend(now)
        for visit in list(self._visits.values()):
            task = visit.task
            if task is None:
                if now - visit.since > SILENCE:
                    self.dismiss(visit)
            elif visit.kind == "launch" and not task.told_waiting and now - visit.since >= TELL_WAITING:
                task.told_waiting = True
                door.send(visit.connection, layout.pack_reply("waiting", text=self._host.why_waiting(task)), [])

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            for _ in range(PER_TURN):
                if (connection := self._listener.accept(time.monotonic())) is None:
                    return
                visit = Visit(connection, processes.peer_credentials(connection)[1], time.monotonic())
                try:
                    self._check_room(visit)
                except Refused as refusal:
                    self.refuse(visit, str(refusal))
                    continue
                self._many[visit.uid] += 1
                self._visits[connection.fileno()] = visit
                self._loop.watch(connection.fileno(), lambda visit=visit: self._hear(visit))  # type: ignore[misc]

    def _check_room(self, visit: Visit) -> None:
        if visit.connection.fileno() > self._last_fd:
            raise Refused("too many are at the door: try again in a moment.")
        self._quotas.admit_visit(visit.uid, self._many[visit.uid], self._last_fd)

    def _hear(self, visit: Visit) -> None:
        """Take the one request of a connection, or notice that the other side has gone.

        Who sits in the seat that he was offered hangs up. Another message, or an unread offer, says that he cannot.
        """
        data: bytes | None
        try:
            data = visit.connection.recv(layout.REQUEST.size + 1)
        except BlockingIOError:
            return
        except OSError:
            data = None
        if visit.task or not data:
            self.dismiss(visit)
            if visit.task and visit.task.started:
                self._host.answered(visit.task, visit.who, sits=data == b"")
            elif visit.task:
                self._host.left(visit.task)
            return
        try:
            self._receive(visit, data)
        except (door.BadRequest, Refused, MailboxError) as refusal:
            self.refuse(visit, str(refusal))
        except OSError as error:
            self.refuse(visit, f"the agent cannot take you in now ({os.strerror(error.errno or 0)}): try again later.")

    def _receive(self, visit: Visit, data: bytes) -> None:
        peer = processes.peer_identity(visit.connection)
        if peer is None:
            raise Refused("the kernel shows no process of yours to this agent: run it in the agent's pid namespace.")
        try:
            self._host.receive(visit, door.parse_request(data), peer)
        finally:
            os.close(peer.pidfd)
