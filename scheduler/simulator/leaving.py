# SPDX-License-Identifier: Apache-2.0
"""The model of jobs that may leave whole nodes of theirs: which, how far, how fast they then are, and what it costs.

Speedup is Downey's over nodes (`drom.workloads.speedup`), or linear. The cost is that of
`drom.scheduler.policies.change_cost`, whose defaults are also what `sd` assumes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.engine.state import (
    DATA_MOVED,
    NODE_CHANGES,
    NODE_GUESTS,
    NODE_UNIT,
    SPEED_UNIT,
    STALL,
    TRANSFER,
    Leaving,
)
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import MALLEABLE, MILLION, NEVER
from drom.scheduler.policies import change_cost
from drom.scheduler.simulator.adaptive import SCALE, rule_of, speeds
from drom.workloads.choices import number, read_choices
from drom.workloads.classes import uniform

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Ints
    from drom.workloads.workload import Workload

_SALT = 0x4C454156


class NodeModel(NamedTuple):
    """The parameters of jobs that may leave nodes; times are in seconds."""

    share: float = 1.0
    """The fraction of the malleable jobs that may leave nodes."""
    minimum: float = 0.5
    """The fewest nodes, as a fraction of those that a job asks for."""
    parallelism: float = math.inf
    """Downey's A, in nodes; infinite: linear speedup."""
    sigma: float = 1.0
    """Downey's sigma."""
    stall: float = change_cost.STALL
    """The cost of any change."""
    memory: float = change_cost.MEMORY
    """Megabytes of data on each node that a job asks for."""
    bandwidth: float = change_cost.BANDWIDTH
    """Megabytes that a node sends or receives per second."""

    @property
    def is_linear(self) -> bool:
        """Whether the speed of jobs is in proportion to their nodes."""
        return math.isinf(self.parallelism)

    def leaving(self, work: Workload, classes: Ints, nodes: int, cores: int, seed: int) -> Leaving:
        """Return the settings of the jobs of a cleaned log on a machine of so many nodes of `cores` cores.

        Raises SchedulerError for machines and jobs that are too large.
        """
        job, sizes, seconds = work.job, -(-work.allocated // cores), np.maximum(work.run_time, work.requested_time)
        most = float((sizes.astype(np.float64) * seconds).max(initial=0)) * cores * SPEED_UNIT
        if float(nodes) ** 2 * max(cores * SPEED_UNIT, SCALE) * NODE_UNIT >= NEVER or 2 * most >= NEVER:
            msg = (
                f"--adaptive: jobs that leave nodes cannot be counted on {nodes:,} nodes of {cores:,} cores: leave out "
                "the longest jobs, or choose fewer --nodes or --cores."
            )
            raise SchedulerError(msg)
        chosen = (classes == MALLEABLE) & (uniform(job, seed ^ _SALT) < self.share)
        least = np.clip(np.ceil(self.minimum * sizes - 1e-9), 1, sizes).astype(np.int64)
        terms = np.zeros(4)
        terms[[STALL, TRANSFER]] = self.stall, self.memory / self.bandwidth
        return Leaving(
            least=np.where(chosen, least, sizes),
            curve=np.arange(nodes + 1) if self.is_linear else speeds(nodes, self.parallelism, self.sigma),
            stall=np.rint(terms * MILLION).astype(np.int64),
        )


def parse_leaving(choices: Iterable[str]) -> NodeModel | None:
    """Return the parameters in texts ``NAME=VALUE``, with defaults for those that are not named; None without any.

    Raises SchedulerError for an unknown name and for an invalid value.
    """
    chosen = read_choices("--adaptive", choices, NodeModel._fields, _value, SchedulerError)
    model = NodeModel(**chosen)
    if model.memory > model.bandwidth * change_cost.LONGEST:
        takes = f"memory={model.memory:g} takes more than a day at bandwidth={model.bandwidth:g}"
        raise SchedulerError(f"--adaptive: {takes}: choose less memory, or more bandwidth.")
    return model if chosen else None


def _value(name: str, text: str) -> tuple[float | None, str]:
    """Return a value, None for an invalid one, and the rule that it must satisfy."""
    value = number(text)
    own = {
        "share": (0 <= value <= 1, "a fraction from 0 to 1"),
        "minimum": (0 < value <= 1, "a fraction above 0, at most 1"),
    }
    good, wanted = own.get(name) or rule_of(name, value)
    return (value if good else None), wanted


def figures(world: World, model: object) -> dict[str, Any] | None:
    """Return what came of jobs that may leave nodes, by their model; None if it is another, and none may."""
    if not isinstance(model, NodeModel):
        return None
    s, jobs = world.scalars, world.jobs
    return {
        "jobs": int((jobs.least < jobs.nodes).sum()),
        "starts": int(s[NODE_GUESTS]),
        "changes": int(s[NODE_CHANGES]),
        "moved_mb": float(s[DATA_MOVED]) / NODE_UNIT * model.memory,
    }
