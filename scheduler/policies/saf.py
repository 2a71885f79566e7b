# SPDX-License-Identifier: Apache-2.0
"""Smallest area first: the queue in order of requested time times cores, with EASY backfilling.

Carastan-Santos, de Camargo, Trystram and Zrigui, "One Can Only Gain by Replacing EASY Backfilling: A Simple Scheduling
Policies Case Study" (CCGRID 2019). Large jobs may starve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, State

FIXED = True


def score(state: State, job: int, _options: Floats) -> float:
    """Return the requested core-seconds."""
    jobs = state.jobs
    return float(jobs.requested[job]) * float(jobs.cores[job])
