# SPDX-License-Identifier: Apache-2.0
"""The parts of a running agent, as the handlers of orders and of recovery see them. The daemon implements them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from drom.agent.daemon.acknowledgements import AckProcessor
    from drom.agent.daemon.actuator import Actuator
    from drom.agent.daemon.process_watch import ProcessWatcher
    from drom.agent.daemon.registrar import Registrar
    from drom.agent.daemon.registration_server import RegistrationServer
    from drom.agent.daemon.settings import Settings
    from drom.agent.daemon.usable_cpus import UsableCpus
    from drom.agent.execution.no_scheduler import NoScheduler
    from drom.agent.ipc.mailboxes import Mailboxes
    from drom.agent.ipc.registry import Registry
    from drom.agent.model.jobs import Arrival, Task
    from drom.agent.node.node import Node
    from drom.agent.observe.log import Log
    from drom.agent.observe.reporter import EventReporter
    from drom.agent.observe.view import Snapshot


class Context(Protocol):
    """A running agent: its node, the parts that carry out the node's decisions, and those that observe the system."""

    actuator: Actuator
    registrar: Registrar
    registrations: RegistrationServer
    binds: bool
    watcher: ProcessWatcher
    log: Log
    mailboxes: Mailboxes
    node: Node
    acknowledgements: AckProcessor
    registry: Registry
    reload: Callable[[], object]
    report: EventReporter
    usable: UsableCpus
    settings: Settings
    executor: NoScheduler

    def snapshot(self) -> Snapshot:
        """Return the state of all tasks, at most a moment old."""

    def confined(
        self, arrival: Arrival, affinity: int = 0, *, is_named: bool = True, is_confined: bool = False
    ) -> Arrival:
        """Return an arrival with what confines its process."""

    def end(self, task: Task, reason: str) -> None:
        """Remove a task after all its processes have ended."""

    def confine_all(self) -> None:
        """Bind every process of every task to the CPUs of the task."""

    def restore_affinity(self, tasks: Iterable[Task]) -> None:
        """Restore the affinity that the processes of tasks arrived with."""
