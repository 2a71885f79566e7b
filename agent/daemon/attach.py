# SPDX-License-Identifier: Apache-2.0
"""Checks in ``/proc`` whether a running process may be attached, and gives the reason if not.

Everything is read after a pidfd is opened, so that it applies to that process; psutil opens none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from drom.agent.daemon.process_watch import first_process
from drom.agent.errors import ControlError
from drom.agent.system import proc
from drom.agent.system.proc import Identity

if TYPE_CHECKING:
    from drom.agent.config.exclusions import Exclusions
    from drom.agent.daemon.process_watch import ProcessWatcher
    from drom.agent.model.caller import Caller
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node


@dataclass(frozen=True, slots=True)
class AttachTarget:
    """A process that may be attached: its user, the affinity of its main thread, its command, and an open pidfd."""

    who: Identity
    uid: int
    affinity: int
    command: str
    pidfd: int


class AttachChecker:
    """Checks processes for `node`; those that `exclude` names are left alone.

    `masters` is the text that names the users who may attach any process.
    """

    def __init__(self, node: Node, watcher: ProcessWatcher, exclude: Exclusions, masters: str) -> None:
        self._node = node
        self._watcher = watcher
        self.exclude = exclude
        self._masters = masters
        self._me = os.getpid()

    def check(self, pid: int, caller: Caller, *, everybody: bool) -> AttachTarget:
        """Return the process `pid` if `caller` may attach it; the calling code then closes the pidfd.

        `everybody`: processes of users other than `caller` are permitted too. Raises `ControlError` with a sentence.
        """
        if not caller.key and (caller.pid <= 0 or proc.namespaces(caller.pid) > 1):
            raise ControlError(
                "you are in another pid namespace than the agent: give the order outside that namespace."
            )
        start = proc.start_time(pid)
        pidfd = None if start is None else proc.open_pidfd(pid, start)
        if start is None or pidfd is None:
            raise ControlError(_gone(pid))
        try:
            return self._check(Identity(pid, start), pidfd, caller, everybody=everybody)
        except BaseException:
            os.close(pidfd)
            raise

    def _check(self, who: Identity, pidfd: int, caller: Caller, *, everybody: bool) -> AttachTarget:
        pid = who.pid
        users = proc.users(pid)
        if users is None or not proc.is_alive(pidfd):
            raise ControlError(_gone(pid))
        if proc.is_kernel_thread(pid):
            msg = f"{pid} is a thread of the kernel: attach a program."
            raise ControlError(msg)
        if pid == 1:
            raise ControlError("process 1 is the parent of everything here: attach the programs themselves.")
        if not everybody and set(users) != {caller.uid}:
            msg = f"process {pid} belongs to another user: only {self._masters} may attach it."
            raise ControlError(msg)
        uid = users[1]
        if os.geteuid() not in (0, *users):
            msg = (
                f"process {pid} belongs to user {uid}, and an agent of user {os.geteuid()} cannot bind it: "
                "start an agent as root."
            )
            raise ControlError(msg)
        if proc.namespaces(pid) > 1:
            msg = f"process {pid} is in another pid namespace, as in a container: start an agent there."
            raise ControlError(msg)
        self._check_kin(who)
        command = proc.command(pid)
        if reason := self.exclude.reason(uid, [proc.executable(pid), command]):
            raise ControlError(reason)
        masks = proc.thread_masks([pid])
        if not masks:
            raise ControlError(_gone(pid))
        return AttachTarget(who, uid, masks.get(pid, next(iter(masks.values()))), command, pidfd)

    def _check_kin(self, who: Identity) -> None:
        """Raise `ControlError` for the agent, its ancestors, and processes that are managed already."""
        if who.pid in [one.pid for one in proc.ancestry(self._me)]:
            msg = f"process {who.pid} is the agent or an ancestor of it: attach a descendant."
            raise ControlError(msg)
        task = self.task_above(who)
        if task and first_process(task) == who:
            msg = f"process {who.pid} is already managed as job {task.job}: see `drom explain {task.job}`."
            raise ControlError(msg)
        if task:
            msg = f"process {who.pid} belongs to job {task.job} (pid {task.arrival.pid}), which is already managed."
            raise ControlError(msg)

    def task_above(self, who: Identity) -> Task | None:
        """Return the task that a process belongs to: by descent, or by ``DROM_TASK`` once its parents have ended."""
        if task := self._watcher.task_above(who.pid):
            return task
        named = proc.named_task(who.pid)
        task = self._node.grants.find(named.pid, named.start_time) if named else None
        return task if task and who.pid in self._watcher.processes_of(task)() else None


def _gone(pid: int) -> str:
    return f"no process has the pid {pid}: see `ps -e`."
