# SPDX-License-Identifier: Apache-2.0
"""UNICEF: old jobs first, the more so the shorter and the narrower they are, with EASY backfilling.

Tang, Lan, Desai and Buettner, "Fault-Aware, Utility-Based Job Scheduling on Blue Gene/P Systems" (CLUSTER 2009): the
job with the greatest w / (log2(n) * r) is first, where w is its wait and r its requested time, and n its cores. For one
core log2(n) is 0, and the least number above 0 takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, State

LEAST = 1e-9


def score(state: State, job: int, _options: Floats) -> float:
    """Return -w / (log2(n) * r); it falls as the job waits."""
    jobs = state.jobs
    wait = state.now - jobs.submit[job]
    return -float(wait / (max(np.log2(jobs.cores[job]), LEAST) * jobs.requested[job]))
