# SPDX-License-Identifier: Apache-2.0
"""`drom simulate --policy resources`: a log on equal nodes, decided before each call of the policy.

Jobs have whole nodes. The machine is therefore modelled as one node whose only resource is nodes, which is exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.allocation.backfill import Held, Machine, Requests, decide
from drom.scheduler.engine.present import present_jobs
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Floats


class ResourceGuide:
    """Decides when the waiting jobs of a simulation start. It has no memory between calls."""

    def __init__(self, options: Mapping[str, float]) -> None:
        self._depth, self._by_walltime = int(options["depth"]), bool(options["order"])

    def __call__(self, world: World, now: int) -> Floats:
        """Return the start of each job, of shape ``(jobs,)``: now, the second of its reservation, or NEVER."""
        jobs = world.jobs
        running, waiting = present_jobs(world, now)
        if self._by_walltime:
            waiting = waiting[np.lexsort((jobs.requested[waiting], -jobs.priority[waiting]))]
        capacity = np.full((1, 1), len(world.nodes.up), np.int64)
        held = Held(
            np.maximum(jobs.start[running] + jobs.requested[running], now + 1),
            np.zeros(len(running), np.int64),
            jobs.nodes[running].reshape(-1, 1),
        )
        requests = Requests(
            np.ones(len(waiting), np.int64),
            np.ones(len(waiting), np.int64),
            jobs.requested[waiting],
            np.zeros(len(waiting), np.int64),
            jobs.nodes[waiting].reshape(-1, 1),
        )
        machine = Machine(capacity, capacity - held.amount.sum(), np.zeros((1, 1), np.int64))
        start = np.full(len(world.queue), NEVER, np.float64)
        start[waiting] = decide(now, machine, requests, held, self._depth).start
        return start
