# SPDX-License-Identifier: Apache-2.0
"""What the executor of a scheduler's jobs needs from its agent. The daemon of an agent implements `Host`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from drom.agent.system.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable
    from pathlib import Path

    from drom.agent.model.jobs import Action
    from drom.agent.node.node import Node
    from drom.agent.observe.log import Log
    from drom.agent.system.proc import Stat
    from drom.agent.topology.machine import Topology

T = TypeVar("T")


class HostSettings(Protocol):
    """The settings of the agent that the executor reads."""

    @property
    def runtime_dir(self) -> Path:
        """The agent's runtime directory."""

    @property
    def memory(self) -> int:
        """The memory that the agent reports to schedulers, in MiB."""

    @property
    def topology(self) -> Topology:
        """The agent's machine."""


class Processes(Protocol):
    """The processes of tasks."""

    def scan(self) -> dict[int, Stat]:
        """Return the stat of every process, by pid."""

    def processes_of_all(self, slots: Collection[int], stats: dict[int, Stat] | None = None) -> dict[int, set[int]]:
        """Return the pids of each task's processes, by slot."""


class Actuator(Protocol):
    """Carries out the decisions of the node."""

    def execute(self, actions: list[Action]) -> None:
        """Carry out actions in order."""


class Host(Loop, Protocol):
    """The agent: its node, its log, and its loop."""

    node: Node
    log: Log

    @property
    def settings(self) -> HostSettings:
        """The settings of the agent."""

    @property
    def watcher(self) -> Processes:
        """The object that finds the processes of tasks."""

    @property
    def actuator(self) -> Actuator:
        """The object that carries out the actions of the node."""

    def connection_limit(self, uid: int) -> int:
        """Return how many connections a user may have at a socket."""

    def survive(self, part: str, step: Callable[[], T], key: Hashable = None) -> T | None:
        """Return what `step` returns, or None if it fails; what a failed step left half done is repaired."""
