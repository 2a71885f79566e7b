# SPDX-License-Identifier: Apache-2.0
"""WFP3: old jobs first, the more so the shorter and the wider they are, with EASY backfilling.

Tang, Lan, Desai and Buettner, "Fault-Aware, Utility-Based Job Scheduling on Blue Gene/P Systems" (CLUSTER 2009): the
job with the greatest (w / r)^3 * n is first, where w is its wait and r its requested time, and n its cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, State


def score(state: State, job: int, _options: Floats) -> float:
    """Return -(w / r)^3 * n; it falls as the job waits."""
    jobs = state.jobs
    ratio = (state.now - jobs.submit[job]) / jobs.requested[job]
    return -float(ratio * ratio * ratio * jobs.cores[job])
