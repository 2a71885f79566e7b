# SPDX-License-Identifier: Apache-2.0
"""F4: the score r * sqrt(n) + 5.30e5 * log10(s), the lowest first, with EASY backfilling; r, n and s are those of `f1`.

Carastan-Santos and de Camargo, "Obtaining Dynamic Scheduling Policies with Simulation and Machine Learning" (SC17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, State

FIXED = True


def score(state: State, job: int, _options: Floats) -> float:
    """Return r * sqrt(n) + 5.30e5 * log10(s)."""
    jobs = state.jobs
    r, n, s = jobs.requested[job], jobs.cores[job], max(1, jobs.submit[job])
    return float(r * np.sqrt(n) + 5.30e5 * np.log10(s))
