# SPDX-License-Identifier: Apache-2.0
"""Shortest job first: the queue in order of requested time, with EASY backfilling.

SPF of Lelong, Reis and Trystram, "Tuning EASY-Backfilling Queues" (JSSPP 2017). Long jobs may starve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, State

FIXED = True


def score(state: State, job: int, _options: Floats) -> float:
    """Return the requested time in seconds."""
    return float(state.jobs.requested[job])
