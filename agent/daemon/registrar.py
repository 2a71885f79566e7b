# SPDX-License-Identifier: Apache-2.0
"""Handles registrations: adds tasks, answers processes, sets responders."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.daemon.process_watch import first_process
from drom.agent.daemon.registration_server import RegistrationServer
from drom.agent.enforcement import affinity
from drom.agent.ipc.mailboxes import MailboxError
from drom.agent.system import proc

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.config.exclusions import Exclusions
    from drom.agent.control.quotas import UserQuotas
    from drom.agent.daemon.actuator import Actuator
    from drom.agent.daemon.registration_server import RegistrationConnection
    from drom.agent.ipc import registration
    from drom.agent.ipc.mailboxes import Mailboxes
    from drom.agent.model.jobs import Arrival, Task
    from drom.agent.system.loop import Loop
    from drom.agent.system.proc import Identity


class Registrar:
    """Handles requests at the registration socket `path`. `end` gets tasks that leave before they start, and why."""

    def __init__(
        self,
        path: Path,
        loop: Loop,
        actuator: Actuator,
        mailboxes: Mailboxes,
        end: Callable[[Task, str], None],
        *,
        observes: bool,
        exclude: Exclusions,
        quotas: UserQuotas,
    ) -> None:
        # Every user may connect; the result depends on the user id that the kernel reports.
        self._registration = RegistrationServer(path, loop, self, self._connection_limit)
        self._quotas = quotas
        self._actuator = actuator
        self._node = actuator.node
        self._registry = actuator.registry
        self._registry_fd = os.open(actuator.registry.path, os.O_RDONLY | os.O_CLOEXEC)
        self._watcher = actuator.watcher
        self._mailboxes = mailboxes
        self._visited = actuator.report.user_event
        self._end = end
        self._observes = observes
        self.exclude = exclude
        self._images: dict[int, tuple[bytes, ...]] = {}
        """The programs that responders executed when they became responders, by slot."""

    def _connection_limit(self, uid: int) -> int:
        return self._quotas.connections(uid, proc.raise_fd_limit())

    def open(self) -> None:
        """Accept connections."""
        self._registration.open()

    def tend(self) -> None:
        """Send waiting launchers the reason for the wait, and close connections without a request."""
        self._registration.tend()

    def next_look(self, now: float) -> float | None:
        """Return when `tend` has something to send, or None."""
        return self._registration.next_look(now)

    def close(self) -> None:
        """Close the registration socket."""
        self._registration.close()
        os.close(self._registry_fd)

    def handle_request(self, visit: RegistrationConnection, request: registration.Request, peer: proc.Peer) -> None:
        """Handle a registration request. Raises `Refused` or `MailboxError` with the sentence to answer."""
        named = self._node.find(*request.task) if request.task else None
        above = self._watcher.task_above(peer.identity.pid, named)
        task = self._host_of(request, peer, above, named)
        if task is None and (reason := self.exclude.reason(peer.uid, _names(request, peer))):
            self._visited(peer.uid, "excluded", uid=peer.uid, pid=peer.identity.pid, reason=reason)
            self._registration.reply_unmanaged(visit, reason)
            return
        visit.kind, visit.who = request.kind, peer.identity
        arrives = task is None and self._node.find(peer.identity.pid, peer.identity.start_time) is None
        if task is None:
            task = self._arrive(request, peer, above)
        if task.started:
            if not self._answer(visit, task) and arrives and _launches(visit, task):
                self._end(task, "left")
        elif self._observes:
            # It counts as waiting, but runs meanwhile.
            self._registration.reply_unmanaged(
                visit, f"this agent only observes. It would wait: {self.why_waiting(task)}"
            )
        else:
            visit.awaits(task)

    def _host_of(
        self, request: registration.Request, peer: proc.Peer, above: Task | None, named: Task | None
    ) -> Task | None:
        """Return the task that the registering process is part of; None if it is to be a task of its own.

        It is the task `above`, from which the process descends, whichever user owns it, or, if its parents have ended,
        the started task of the same user that it has `named`. A program launched inside a task of its own user is a
        task of its own.
        """
        if request.kind == "attach":
            ours = named is not None and named.started and named.arrival.uid == peer.uid
            return above or (named if ours else None)
        if above is None or above.arrival.uid == peer.uid or first_process(above) == peer.identity:
            return None
        self._visited(peer.uid, "joined", job=above.job, pid=peer.identity.pid, uid=peer.uid)
        return above

    def _arrive(self, request: registration.Request, peer: proc.Peer, above: Task | None) -> Task:
        who = peer.identity
        known = self._node.find(who.pid, who.start_time)
        if known:
            return known
        before = proc.thread_masks([who.pid]).get(who.pid, 0)
        arrival = request.arrival(who.pid, who.start_time, peer.uid, before, proc.command(who.pid))
        if above and request.kind == "launch":
            arrival = replace(arrival, within=first_process(above))
        task = self.register_task(arrival, os.dup(peer.pidfd))
        if request.kind == "attach" and task.started and self._actuator.binds:
            self._actuator.bind_threads({task.slot: task.granted})
        return task

    def register_task(self, arrival: Arrival, pidfd: int) -> Task:
        """Add a task with the process of `pidfd` as its first one; the pidfd is closed when the task is over.

        Raises `Refused`, `MailboxError` or OSError with the pidfd closed and nothing changed.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, pidfd)
            has = [task.arrival.uid for task in self._node.tasks.values()].count(arrival.uid)
            self._quotas.admit_task(arrival.uid, has)
            number = self._mailboxes.make(arrival.uid, self._node.next_slot)
            undo.callback(self._mailboxes.remove, number)
            task, actions = self._node.arrive(arrival, time.monotonic())
            if first_process(task) != (who := proc.Identity(arrival.pid, arrival.start_time)):
                self._visited(arrival.uid, "joined", job=task.job, pid=who.pid, uid=arrival.uid)
                self._actuator.execute(actions)
                return task
            undo.pop_all()
        task.mailbox = number
        self._registry.register(task, self._node.jobs[task.job])
        self._watcher.watch(task, first_process(task), pidfd)
        self._visited(arrival.uid, "arrived", job=task.job, pid=arrival.pid, uid=arrival.uid)
        self._actuator.execute(actions)
        return task

    def _answer(self, visit: RegistrationConnection, task: Task) -> bool:
        """Answer a process after the first grant of its task; return whether the answer was sent."""
        if visit.kind == "attach" and visit.who:
            return self._set_responder(visit, task, visit.who)
        who = visit.who.pid if visit.who else task.arrival.pid
        # Bound before the grant is sent: a launcher that bound itself late could undo a shrink that came meanwhile.
        bound = affinity.bind(lambda: {who}, task.granted) if self._actuator.binds else None
        late = bound is not None and bound.failed
        return self._registration.answer(visit, self._reply("granted", task, binds_itself=late), [])

    def _reply(self, status: str, task: Task, *, binds_itself: bool = True) -> bytes:
        most = self._node.cores.cpus_at_most(self._node.jobs[task.job].task_max)
        return layout.pack_reply(
            status,
            slot=task.slot,
            mask=task.granted,
            mask_bits=self._registry.mask_bits,
            max_cpus=0 if self._observes else most,
            epoch=task.epoch,
            task=(task.arrival.pid, task.arrival.start_time),
            flags=(0 if self._actuator.binds else layout.HEADER_EMULATED) | (0 if binds_itself else layout.REPLY_BOUND),
        )

    def _set_responder(self, visit: RegistrationConnection, task: Task, who: Identity) -> bool:
        """Send a process the registry, and the mailbox if no other is the responder; return whether that was sent."""
        if self._observes:
            self._registration.refuse(visit, "this agent only observes: the program runs unmanaged.")
            return False
        sits = self._became_responder(task, who)
        first = self._node.set_responder(task.slot, who.pid, who.start_time)
        fds = [self._registry_fd]
        if first:
            try:
                if not sits:
                    self._images[task.slot] = proc.memory_image(who.pid)
                    self._clear_mailbox(task, visit.uid)
                fds.append(self._mailboxes.open(task.mailbox))
            except (OSError, MailboxError) as error:
                self.clear_responder(task)
                why = os.strerror(error.errno or 0) if isinstance(error, OSError) else error
                self._registration.refuse(visit, f"the task's mailbox cannot be opened: {why}".rstrip(".") + ".")
                return False
        try:
            if first:
                sent = self._registration.offer_responder(visit, task, self._reply("granted", task), fds)
            else:
                sent = self._registration.answer(visit, self._reply("follower", task), fds)
        finally:
            for fd in fds[1:]:
                os.close(fd)
        if first:
            if sent:
                self._watcher.follow(task, who)
                self._visited(task.arrival.uid, "responder_set", job=task.job, pid=who.pid)
            else:
                self.clear_responder(task)
            self._actuator.save()
        return sent

    def _clear_mailbox(self, task: Task, uid: int) -> None:
        """Empty the mailbox of a task for its next responder, of user `uid`. Raises OSError or `MailboxError`.

        If the last one was of another user the mailbox is replaced, as processes of that user may still write to it.
        """
        if self._mailboxes.is_of(task.mailbox, uid):
            self._mailboxes.clear(task.mailbox)
            return
        last, task.mailbox = task.mailbox, self._mailboxes.make(uid, task.slot)
        self._actuator.save()
        self._mailboxes.remove(last)

    def _became_responder(self, task: Task, who: Identity) -> bool:
        """Return whether a process is the task's responder already, and attaches once more."""
        mail = self._mailboxes.read(task.mailbox)
        left = mail is None or mail.applied == layout.EPOCH_RETIRED
        return task.responder == (who.pid, who.start_time) and not left and not self._has_executed(task)

    def _has_executed(self, task: Task) -> bool:
        """Return whether the responder of a task has executed another program since it became responder.

        If that program was not recorded, the first call records it and returns False.
        """
        image = proc.memory_image(task.responder[0]) if task.responder else ()
        return self._images.setdefault(task.slot, image) != image

    def responder_confirmed(self, task: Task, who: Identity | None, *, sits: bool) -> None:
        """Remove a responder that has declined the role. Several of its threads may have received the offer."""
        others = [visit for visit in self._registration.waiting_for(task) if visit.who == who]
        if sits:
            for visit in others:
                self._registration.close_connection(visit)
        elif who and not others and task.responder == (who.pid, who.start_time):
            self._leaves(task, who.pid)

    def enforced(self, task: Task) -> None:
        """Remove a responder that has executed another program since, which may not handle grants.

        A program with libdrom becomes responder again.
        """
        if self._node.tasks.get(task.slot) is task and task.responder and self._has_executed(task):
            self._leaves(task, task.responder[0])

    def _leaves(self, task: Task, pid: int) -> None:
        self._visited(task.arrival.uid, "responder_left", job=task.job, pid=pid)
        self.clear_responder(task)

    def clear_responder(self, task: Task) -> None:
        """Clear the task's responder. From now on the agent binds the whole task to the grant, whatever its masks."""
        self._actuator.execute(self._node.responder_left(task.slot, time.monotonic()))

    def started(self, task: Task) -> None:
        """Answer the processes that wait for a task that has its first grant; bind a task that runs already."""
        if task.arrival.attached and self._actuator.binds and self._actuator.bind_threads({task.slot: task.granted}):
            self._node.bind_failed(task.slot, time.monotonic())
        visits, taken = self._registration.waiting_for(task), False
        for visit in visits:
            if visit.kind == "attach" and self._actuator.binds:
                self._actuator.bind_threads({task.slot: task.granted})
            taken |= self._answer(visit, task)
        if not taken and any(_launches(visit, task) for visit in visits):
            self._end(task, "left")

    def forgotten(self, task: Task) -> None:
        """Remove the mailbox and the connections of a task that is over."""
        self._mailboxes.remove(task.mailbox)
        for visit in self._registration.waiting_for(task):
            self._registration.close_connection(visit)

    def launcher_left(self, task: Task) -> None:
        """Remove a task after its launcher disconnected before the start; a task that runs already stays."""
        if not task.arrival.attached:
            self._end(task, "left")

    def refused(self, sentence: str) -> None:
        """Record a refused registration."""
        self._actuator.report.refused(sentence)

    def why_waiting(self, task: Task) -> str:
        """Return a sentence that says what a task without a grant waits for."""
        return self._node.why_waiting(task)


def _launches(visit: RegistrationConnection, task: Task) -> bool:
    """Return whether a connection is that of the launcher of a task."""
    return visit.kind == "launch" and visit.who is not None and visit.who.pid == task.arrival.pid


def _names(request: registration.Request, peer: proc.Peer) -> list[str]:
    """Return the names of a program: that which a launcher will run, or executable and command of an attached one."""
    if request.kind == "launch":
        return [request.program]
    pid = peer.identity.pid
    return [proc.executable(pid), proc.command(pid)]
