# SPDX-License-Identifier: Apache-2.0
"""F2: the score sqrt(r) * n + 2.56e4 * log10(s), the lowest first, with EASY backfilling; r, n and s are those of `f1`.

Carastan-Santos and de Camargo, "Obtaining Dynamic Scheduling Policies with Simulation and Machine Learning" (SC17).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, State

FIXED = True


def score(state: State, job: int, _options: Floats) -> float:
    """Return sqrt(r) * n + 2.56e4 * log10(s)."""
    jobs = state.jobs
    r, n, s = jobs.requested[job], jobs.cores[job], max(1, jobs.submit[job])
    return float(np.sqrt(r) * n + 2.56e4 * np.log10(s))
