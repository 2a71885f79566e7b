# SPDX-License-Identifier: Apache-2.0
"""The value of the end of a job by its contract.

It is the whole pay-off until the soft deadline, falls linearly to 0 at the hard deadline, and is minus the penalty
after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import HARD, PAYOFF, PENALTY, SOFT, lean

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints


@lean
def worth(contracts: Ints, job: int, end: int) -> int:
    """Return the value if a job ends at this second, rounded down; contracts are those of `State`."""
    soft, hard, payoff = contracts[job, SOFT], contracts[job, HARD], contracts[job, PAYOFF]
    if end <= soft:
        return int(payoff)
    if end <= hard:
        left, span = hard - end, hard - soft
        return int(payoff // span * left + payoff % span * left // span)  # pay-off times seconds is beyond 64 bits
    return int(-contracts[job, PENALTY])
