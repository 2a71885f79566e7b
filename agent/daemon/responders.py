# SPDX-License-Identifier: Apache-2.0
"""The responders of tasks: the one process of each that reads its grants and acknowledges them in its mailbox."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.ipc.mailboxes import MailboxError
from drom.agent.system import proc

from dromlib import layout

if TYPE_CHECKING:
    from drom.agent.daemon.actuator import Actuator
    from drom.agent.ipc.mailboxes import Mailboxes
    from drom.agent.model.jobs import Task
    from drom.agent.system.proc import Identity


class Responders:
    """Sets and clears the responders of the tasks of `actuator`'s node; `mailboxes` are those of the node."""

    def __init__(self, actuator: Actuator, mailboxes: Mailboxes) -> None:
        self._actuator = actuator
        self._node = actuator.node
        self._watcher = actuator.watcher
        self._mailboxes = mailboxes
        self._user_event = actuator.report.user_event
        self._images: dict[int, tuple[bytes, ...]] = {}
        """The programs that responders executed when they became responders, by slot."""

    def set(self, task: Task, process: Identity, uid: int) -> int | None:
        """Make a process of user `uid` the responder of a task, unless another process is.

        Return an open descriptor of the task's mailbox, which the caller closes; None if another process is the
        responder. Raises `Refused`, with nothing changed, if there is no mailbox for it.
        """
        stays = self._is_responder(task, process)
        if not self._node.grants.set_responder(task.slot, process.pid, process.start_time):
            return None
        try:
            if not stays:
                self._images[task.slot] = proc.memory_image(process.pid)
                self._clear_mailbox(task, uid)
            return self._mailboxes.open(task.mailbox)
        except (OSError, MailboxError) as error:
            self.clear(task)
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else error
            raise Refused(f"the task's mailbox cannot be opened: {why}".rstrip(".") + ".") from error

    def offered(self, task: Task, process: Identity, *, sent: bool) -> None:
        """Record whether a new responder could be sent its role: a process that could not loses it."""
        if sent:
            self._watcher.follow(task, process)
            self._user_event(task.arrival.uid, "responder_set", job=task.job, pid=process.pid)
        else:
            self.clear(task)
        self._actuator.save()

    def declined(self, task: Task, process: Identity) -> None:
        """Remove a responder that has declined the role."""
        if task.responder == (process.pid, process.start_time):
            self._leaves(task, process.pid)

    def enforced(self, task: Task) -> None:
        """Remove a responder that has executed another program since, which may not handle grants.

        A program with libdrom becomes responder again.
        """
        if self._node.tasks.get(task.slot) is task and task.responder and self._has_executed(task):
            self._leaves(task, task.responder[0])

    def clear(self, task: Task) -> None:
        """Clear the task's responder. From now on the agent binds the whole task to the grant, whatever its masks."""
        self._actuator.execute(self._node.responder_left(task.slot, time.monotonic()))

    def _leaves(self, task: Task, pid: int) -> None:
        self._user_event(task.arrival.uid, "responder_left", job=task.job, pid=pid)
        self.clear(task)

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

    def _is_responder(self, task: Task, process: Identity) -> bool:
        """Return whether a process is the task's responder already, and attaches once more."""
        mail = self._mailboxes.read(task.mailbox)
        left = mail is None or mail.applied == layout.EPOCH_RETIRED
        return task.responder == (process.pid, process.start_time) and not left and not self._has_executed(task)

    def _has_executed(self, task: Task) -> bool:
        """Return whether the responder of a task has executed another program since it became responder.

        If that program was not recorded, the first call records it and returns False.
        """
        image = proc.memory_image(task.responder[0]) if task.responder else ()
        return self._images.setdefault(task.slot, image) != image
