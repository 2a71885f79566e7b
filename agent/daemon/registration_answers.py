# SPDX-License-Identifier: Apache-2.0
"""What a process receives that registers: the registrar returns one of these, and the registration server sends it.

They are named tuples, as the agent has a goal for its start: dataclasses take longer to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task
    from drom.agent.system.proc import Identity


class Registrant(NamedTuple):
    """A process of user `uid` that has sent a request of a `kind`, "launch" or "attach"."""

    kind: str
    process: Identity
    uid: int

    def launches(self, task: Task) -> bool:
        """Return whether the process is the launcher of a task."""
        return self.kind == "launch" and self.process.pid == task.arrival.pid


class Granted(NamedTuple):
    """The packed `reply` about a started task, sent with open descriptors, after which the connection is closed.

    `arrived`: the task has come by this very request, and ends if its launcher cannot be answered.
    """

    task: Task
    reply: bytes
    fds: tuple[int, ...] = ()
    arrived: bool = False


class Offered(NamedTuple):
    """The role of the responder of a started task, for `process`, which accepts it by closing the connection.

    The packed `reply` is sent with the descriptors of the registry and of the mailbox; the sender closes the latter.
    """

    task: Task
    process: Identity
    reply: bytes
    registry: int
    mailbox: int


class Waiting(NamedTuple):
    """Nothing yet: the connection lasts until the task starts."""

    task: Task


class Refusal(NamedTuple):
    """A sentence that says why the process cannot be registered."""

    sentence: str


class Unmanaged(NamedTuple):
    """A sentence that says why the agent leaves the process alone, which runs all the same."""

    sentence: str


Answer: TypeAlias = "Granted | Offered | Waiting | Refusal | Unmanaged"
