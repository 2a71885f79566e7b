# SPDX-License-Identifier: Apache-2.0
"""What a live cluster leaves for its caller to do: changes to store, messages to send, and events to log. Pure.

The caller stores first and sends afterwards, so that a node never receives a request that a successor would not know
of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drom.scheduler.live.cluster.jobs import Entry, Job, Node

if TYPE_CHECKING:
    from drom.agent.execution import protocol as say


class Outbox:
    """Changes, messages and events since the last `clear`. Names are those of nodes, times are unix seconds."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        """Jobs to be stored, by number."""
        self.nodes: dict[str, Node | None] = {}
        """Nodes to be stored, by name; None for one that is to be deleted."""
        self.entries: list[Entry] = []
        """Entries to be added to the histories of jobs, and to the log."""
        self.messages: list[tuple[str, say.ToAgent]] = []
        """Messages to be sent, with the names of their nodes."""
        self.warnings: list[tuple[str, dict[str, object]]] = []
        """Events for the log that concern no history of a job, with their fields."""

    @property
    def has_changes(self) -> bool:
        """Whether anything is to be stored."""
        return bool(self.jobs or self.nodes or self.entries)

    def save(self, job: Job) -> None:
        """Add a job to those to be stored."""
        self.jobs[job.number] = job

    def record(self, job: Job, now: float, what: str, **detail: Any) -> None:  # noqa: ANN401 - JSON values
        """Add a job to those to be stored, with an entry for its history: the event `what` happened at `now`."""
        self.save(job)
        self.entries.append(Entry(job.number, now, what, detail))

    def send(self, node: str, message: say.ToAgent) -> None:
        """Add a message to a node."""
        self.messages.append((node, message))

    def warn(self, event: str, **fields: object) -> None:
        """Add an event for the log."""
        self.warnings.append((event, fields))

    def clear(self) -> None:
        """Drop everything, once it is done."""
        for part in (self.jobs, self.nodes, self.entries, self.messages, self.warnings):
            part.clear()
