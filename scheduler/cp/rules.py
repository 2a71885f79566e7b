# SPDX-License-Identifier: Apache-2.0
"""The rules with which Bridi et al. compare: PBS Professional in two configurations.

Jobs are considered in an order. The first `depth` of those that have to wait get the earliest possible start, and later
ones start now if that delays none of these; PBS Professional calls this number `backfill_depth`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.cp.placement import planned

if TYPE_CHECKING:
    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.cp.placement import Plan, State
    from drom.scheduler.interface import Ints


class Rule(NamedTuple):
    """An order of jobs, and the number of waiting jobs that later ones may not delay."""

    name: str
    by_walltime: bool
    depth: int

    def order(self, state: State, jobs: Jobs) -> Ints:
        """Return the waiting jobs in the order of the rule, ties by submission."""
        if not self.by_walltime:
            return state.waiting
        return state.waiting[np.argsort(jobs.walltime[state.waiting], kind="stable")]

    def __call__(self, state: State, jobs: Jobs) -> Plan:
        """Return a plan with the jobs that the rule starts now; others may be left out."""
        return planned(state, jobs, self.order(state, jobs), self.depth, whole=False)

    def whole(self, state: State, jobs: Jobs) -> Plan:
        """Return the plan of all waiting jobs: those that the rule leaves out follow as early as possible."""
        return planned(state, jobs, self.order(state, jobs), self.depth, whole=True)


FIFO = Rule("PBSFifo", by_walltime=False, depth=10)
WALLTIME = Rule("PBSWalltime", by_walltime=True, depth=400)
RULES = (FIFO, WALLTIME)
