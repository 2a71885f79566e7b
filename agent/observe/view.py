# SPDX-License-Identifier: Apache-2.0
"""What snapshots, metrics and pages see of an agent that runs. Its daemon is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading

    from agent.ipc.mailboxes import Mailboxes
    from agent.model.cores import Core
    from agent.node.node import Node
    from agent.observe.guarded import Guard
    from agent.observe.job_rates import Pacing
    from agent.observe.log import Log
    from agent.observe.reporter import Report
    from agent.observe.snapshot import Snapshot
    from agent.system.unmanaged_load import Watch
    from agent.topology.availability import Rereading


class ViewSettings(Protocol):
    """The settings of an agent that are shown."""

    @property
    def observe(self) -> bool:
        """Whether the agent only observes."""


class Explainer(Protocol):
    """Explains the state of jobs."""

    def explained(self, name: str) -> dict[str, object]:
        """Return why the job of that name has what it has. Raises `Refused` where there is none."""


class AgentView(Protocol):
    """An agent that runs. Hold `lock` while reading anything but `settings` and `rows`."""

    lock: threading.Lock
    node: Node
    mailboxes: Mailboxes
    rereading: Rereading
    report: Report
    guard: Guard
    log: Log
    pacing: Pacing
    watch_load: Watch
    rows: list[Core]

    @property
    def settings(self) -> ViewSettings:
        """What the agent was started with."""

    @property
    def obeying(self) -> Explainer:
        """The handler of orders."""

    def snapshot(self) -> Snapshot:
        """Return the state of all tasks, made at most a moment ago."""
