# SPDX-License-Identifier: Apache-2.0
"""Decides about registrations: adds tasks, and returns the answers for the processes that register."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from drom.agent.daemon.process_watch import first_process
from drom.agent.daemon.registration_answers import Granted, Offered, Refusal, Registrant, Unmanaged, Waiting
from drom.agent.enforcement import affinity
from drom.agent.errors import Refused
from drom.agent.system import proc
from drom.agent.text import cpu_names

from dromlib import layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.agent.config.exclusions import Exclusions
    from drom.agent.control.access import UserQuotas
    from drom.agent.daemon.actuator import Actuator
    from drom.agent.daemon.registration_answers import Answer
    from drom.agent.daemon.responders import Responders
    from drom.agent.ipc import registration
    from drom.agent.ipc.mailboxes import Mailboxes
    from drom.agent.model.jobs import Arrival, Task


class Registrar:
    """Handles registration requests for the node of `actuator`. `end` gets tasks that leave before they start, and why.

    With `observes` no program is bound or gets grants. Programs that `exclude` names are left alone. `confined` returns
    an arrival with what confines its process (`Context.confined`).
    """

    def __init__(
        self,
        actuator: Actuator,
        mailboxes: Mailboxes,
        responders: Responders,
        end: Callable[[Task, str], None],
        *,
        observes: bool,
        exclude: Exclusions,
        quotas: UserQuotas,
        confined: Callable[..., Arrival],
    ) -> None:
        self._quotas = quotas
        self._confined = confined
        self._actuator = actuator
        self._node = actuator.node
        self._registry = actuator.registry
        self._registry_fd = os.open(actuator.registry.path, os.O_RDONLY | os.O_CLOEXEC)
        self._watcher = actuator.watcher
        self._mailboxes = mailboxes
        self._responders = responders
        self._user_event = actuator.report.user_event
        self._end = end
        self._observes = observes
        self.exclude = exclude

    def close(self) -> None:
        """Close the registry's descriptor, which processes receive."""
        os.close(self._registry_fd)

    def handle_request(self, request: registration.Request, peer: proc.Peer) -> Answer:
        """Return the answer to a registration request. Raises `Refused`, `MailboxError` or OSError."""
        named = self._node.grants.find(*request.task) if request.task else None
        above = self._watcher.task_above(peer.identity.pid, named)
        task = self._host_of(request, peer, above, named)
        if task is None and (reason := self.exclude.reason(peer.uid, _names(request, peer))):
            self._user_event(peer.uid, "excluded", uid=peer.uid, pid=peer.identity.pid, reason=reason)
            return Unmanaged(reason)
        task = task or self._node.grants.find(peer.identity.pid, peer.identity.start_time)
        arrives = task is None
        if task is None:
            arrival = self._arrival(request, peer, above)
            if arrival.cpuset and not self._node.cores.inside(arrival.cpuset):
                reason = f"the kernel lets it use {cpu_names(arrival.cpuset)}, which make up no core managed here."
                self._user_event(peer.uid, "excluded", uid=peer.uid, pid=peer.identity.pid, reason=reason)
                return Unmanaged(reason)
            task = self._arrive(request, peer, arrival)
        if task.started:
            return self._answer(task, Registrant(request.kind, peer.identity, peer.uid), arrives=arrives)
        if self._observes:
            # It counts as waiting, but runs meanwhile.
            return Unmanaged(f"this agent only observes. It would wait: {self._node.grants.why_waiting(task)}")
        return Waiting(task)

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
        self._user_event(peer.uid, "joined", job=above.job, pid=peer.identity.pid, uid=peer.uid)
        return above

    def _arrival(self, request: registration.Request, peer: proc.Peer, above: Task | None) -> Arrival:
        who = peer.identity
        before = proc.thread_masks([who.pid]).get(who.pid, 0)
        arrival = request.arrival(who.pid, who.start_time, peer.uid, before, proc.command(who.pid))
        within = first_process(above) if above and request.kind == "launch" else None
        affinity = above.arrival.restore if above else before
        arrival = replace(arrival, within=within)
        return self._confined(arrival, affinity, is_named=bool(request.job), is_confined=request.is_confined)

    def _arrive(self, request: registration.Request, peer: proc.Peer, arrival: Arrival) -> Task:
        task = self.register_task(arrival, os.dup(peer.pidfd))
        if request.kind == "attach" and task.started:
            self._bind(task)
        return task

    def register_task(self, arrival: Arrival, pidfd: int) -> Task:
        """Add a task with the process of `pidfd` as its first one; the pidfd is closed when the task is over.

        Raises `Refused`, `MailboxError` or OSError with the pidfd closed and nothing changed.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, pidfd)
            has = [task.arrival.uid for task in self._node.tasks.values()].count(arrival.uid)
            self._quotas.admit_task(arrival.uid, has)
            number = self._mailboxes.make(arrival.uid, self._node.grants.next_slot)
            undo.callback(self._mailboxes.remove, number)
            task, actions = self._node.arrive(arrival, time.monotonic())
            if first_process(task) != (who := proc.Identity(arrival.pid, arrival.start_time)):
                self._user_event(arrival.uid, "joined", job=task.job, pid=who.pid, uid=arrival.uid)
                self._actuator.execute(actions)
                return task
            undo.pop_all()
        task.mailbox = number
        self._registry.register(task, self._node.jobs[task.job])
        self._watcher.watch(task, first_process(task), pidfd)
        self._user_event(arrival.uid, "arrived", job=task.job, pid=arrival.pid, uid=arrival.uid)
        self._actuator.execute(actions)
        return task

    def bind_attached(self, task: Task) -> None:
        """Bind a task that has its first grant and runs already, as an order has attached it."""
        if task.arrival.attached and not self._bind(task):
            self._node.grants.bind_failed(task.slot, time.monotonic())

    def answer_waiting(self, task: Task, registrant: Registrant) -> Answer:
        """Return the answer for a process that has waited for a task, which has its first grant now."""
        if registrant.kind == "attach":
            self._bind(task)
        return self._answer(task, registrant)

    def _bind(self, task: Task) -> bool:
        """Bind a task that runs already to its first grant, or to where it rests; return False if that failed."""
        mask = task.granted or self._node.grants.where_it_rests(task)
        return not (self._actuator.binds and self._actuator.bind_threads({task.slot: mask}))

    def _answer(self, task: Task, registrant: Registrant, *, arrives: bool = False) -> Answer:
        """Return the answer for a process of a task that has started; `arrives`: the task has come with the process."""
        if registrant.kind == "attach":
            return self._role(task, registrant)
        # Bound before the grant is sent: a launcher that bound itself late could undo a shrink that came meanwhile.
        binds, mask = self._actuator.binds, self._node.grants.allowed(task)
        bound = affinity.bind(lambda: {registrant.process.pid}, mask) if binds else None
        late = bound is not None and bound.failed
        reply = self._reply("granted", task, binds_itself=late)
        return Granted(task, reply, arrived=arrives and registrant.launches(task))

    def _role(self, task: Task, registrant: Registrant) -> Answer:
        """Make a process the responder of a task, or a follower if another process is the responder."""
        if self._observes:
            return Refusal("this agent only observes: the program runs unmanaged.")
        reply = self._reply("granted", task)
        try:
            mailbox = self._responders.set(task, registrant.process, registrant.uid)
        except Refused as refusal:
            return Refusal(str(refusal))
        if mailbox is None:
            return Granted(task, self._reply("follower", task), (self._registry_fd,))
        return Offered(task, registrant.process, reply, self._registry_fd, mailbox)

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

    def forgotten(self, task: Task) -> None:
        """Remove the mailbox of a task that is over."""
        self._mailboxes.remove(task.mailbox)

    def launcher_left(self, task: Task) -> None:
        """Remove a task after its launcher disconnected without having started a program."""
        self._end(task, "left")


def _names(request: registration.Request, peer: proc.Peer) -> list[str]:
    """Return the names of a program: that which a launcher will run, or executable and command of an attached one."""
    if request.kind == "launch":
        return [request.program]
    pid = peer.identity.pid
    return [proc.executable(pid), proc.command(pid)]
