# SPDX-License-Identifier: Apache-2.0
"""The rules that Bridi et al. compare with: PBS Professional in two configurations.

Jobs are taken in an order; the first `depth` of those that have to wait get the earliest start that is left, and later
ones start now if that delays none of these: what PBS Professional calls `backfill_depth`.
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
    """An order, and how many waiting jobs are not delayed by those after them."""

    name: str
    by_walltime: bool
    depth: int

    def order(self, state: State, jobs: Jobs) -> Ints:
        """Return the waiting jobs in the order of the rule, ties by submission."""
        if not self.by_walltime:
            return state.waiting
        return state.waiting[np.argsort(jobs.walltime[state.waiting], kind="stable")]

    def __call__(self, state: State, jobs: Jobs) -> Plan:
        """Return a plan in which those jobs start now that the rule starts; others may be left out."""
        return planned(state, jobs, self.order(state, jobs), self.depth, whole=False)

    def whole(self, state: State, jobs: Jobs) -> Plan:
        """Return the plan of all waiting jobs: those that the rule leaves out follow as early as they can."""
        return planned(state, jobs, self.order(state, jobs), self.depth, whole=True)


FIFO = Rule("PBSFifo", by_walltime=False, depth=10)
WALLTIME = Rule("PBSWalltime", by_walltime=True, depth=400)
RULES = (FIFO, WALLTIME)
