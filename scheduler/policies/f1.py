# SPDX-License-Identifier: Apache-2.0
"""F1: the score log10(r) * n + 8.70e2 * log10(s), the lowest first, with EASY backfilling.

r is the requested time and s the submission, both in seconds, and n the number of cores. Carastan-Santos and de Camargo
found F1 to F4 by regression over simulated schedules: "Obtaining Dynamic Scheduling Policies with Simulation and
Machine Learning" (SC17). s counts as the log does, and at least 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, State

FIXED = True


def score(state: State, job: int, _options: Floats) -> float:
    """Return log10(r) * n + 8.70e2 * log10(s)."""
    jobs = state.jobs
    r, n, s = jobs.requested[job], jobs.cores[job], max(1, jobs.submit[job])
    return float(np.log10(r) * n + 8.70e2 * np.log10(s))
