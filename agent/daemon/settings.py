# SPDX-License-Identifier: Apache-2.0
"""The settings of an agent, which `drom.agent.daemon.startup` derives from its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.config.exclusions import Exclusions
from drom.agent.control.access import Operators, UserQuotas
from drom.agent.model.layouts import ANY, Layout
from drom.agent.node.node import RULES
from drom.agent.system.unmanaged_load import BusyCoreFilter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drom.agent.control.gate import RemoteEndpoint
    from drom.agent.enforcement.cpusets import TaskCpusets
    from drom.agent.execution.executor import Membership
    from drom.agent.observe.event_log import EventLog
    from drom.agent.policy.site_rules import SiteRules
    from drom.agent.topology.machine import Topology


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an agent. Durations are seconds; the allocation `unit` is a "core" or a "thread".

    `claims` is the file of `drom.agent.ipc.cpu_locks` (None: CPUs are not locked); `memory` is the sum that jobs may
    declare, in bytes (0: not counted). `reread` returns the machine's present state (None: it never changes). `gate`
    receives orders from other nodes (None: there are none), and `membership` names the scheduler (None: none).
    `cpusets` are the control groups of tasks (None: there are and were none). `history` stores events beyond the
    agent's life (None: they are not stored). With `slurm_limits` time limits of Slurm's jobs are lengthened, with
    `slurm_comments` their admin comments say what they use, and with `ignore_slurm` the CPUs of those without a program
    here are handed out.
    """

    runtime_dir: Path
    topology: Topology
    grace: float = 1.0
    rules: SiteRules = RULES
    memory: int = 0
    capacity: int = 1024
    observe: bool = False
    unit: str = "core"
    layout: Layout = ANY
    freeze_file: Path | None = None
    exclude: Exclusions = field(default_factory=Exclusions)
    claims: Path | None = None
    avoidance: BusyCoreFilter = field(default_factory=lambda: BusyCoreFilter(0.0, 0.0))
    reread: Callable[[], Topology] | None = None
    gate: RemoteEndpoint | None = None
    masters: Operators = field(default_factory=Operators.here)
    membership: Membership | None = None
    quotas: UserQuotas = field(default_factory=UserQuotas)
    cpusets: TaskCpusets | None = None
    history: EventLog | None = None
    slurm_limits: bool = False
    slurm_comments: bool = False
    ignore_slurm: bool = False

    @property
    def switch(self) -> Path:
        """The file that freezes the node while it exists."""
        return self.freeze_file or self.runtime_dir / "freeze"
