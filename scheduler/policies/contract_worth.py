# SPDX-License-Identifier: Apache-2.0
"""What the end of a job is worth by its contract: all of its pay-off until the soft deadline, then less of it linearly,
nothing at the hard deadline, and the penalty after it."""  # noqa: D205, D209 - a sentence

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import HARD, PAYOFF, PENALTY, SOFT, lean

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints


@lean
def worth(contracts: Ints, job: int, end: int) -> int:
    """Return what it brings that a job ends at this second, rounded down; contracts are those of `State`."""
    soft, hard, payoff = contracts[job, SOFT], contracts[job, HARD], contracts[job, PAYOFF]
    if end <= soft:
        return int(payoff)
    if end <= hard:
        left, span = hard - end, hard - soft
        return int(payoff // span * left + payoff % span * left // span)  # pay-off times seconds is beyond 64 bits
    return int(-contracts[job, PENALTY])
