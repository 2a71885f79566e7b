# SPDX-License-Identifier: Apache-2.0
"""Estimates from measured rates: what a mate loses to a guest, what its nodes gain, and which share it should give.

A guest with g of the c cores of a node is assumed to run at g / c of its full speed there, as nothing is known of it.
With a mate whose speed falls from v(s) to v(s - g) a node does ``v(s - g) + g / c - v(s)`` more than without the guest:
0 if speed is in proportion to cores, more if the mate scales worse. A mate gives the share with the greatest gain,
within bounds. Gains count in steps, so that noise decides nothing; a job without measurements has no gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import lean, rare
from drom.scheduler.policies.scaling import lost, speed

if TYPE_CHECKING:
    from drom.scheduler.interface import State

STEPS = 20
"""Steps in the speed that a whole node has for a job."""
PARTS = 8
"""A share is the configured one, or differs from it by a multiple of so small a part of a node."""

NOTHING = 0.001
"""Seconds that are only what rates are rounded by."""


@lean
def is_known(state: State, job: int) -> bool:
    """Return whether the scaling of a job has been measured."""
    return speed(state.rates, job, state.cores, state.cores) >= 0


@rare
def gain(state: State, job: int, has: int, share: int) -> int:
    """Return the gain of a node in steps when a job with `has` cores of it gives `share` of them to a guest."""
    if not is_known(state, job):
        return 0
    less = lost(state.rates, job, has, has - share, state.cores)
    return int(STEPS + (share / state.cores - less) * STEPS + 0.5) - STEPS


@rare
def waste(state: State, job: int, has: int, share: int) -> int:
    """Return how far the gain is below the greatest possible gain; it is never negative."""
    return max(0, STEPS - gain(state, job, has, share))


@rare
def delay(state: State, job: int, has: int, share: int, seconds: int) -> int:
    """Return how much longer a mate takes because of a guest of `seconds` seconds, rounded up."""
    less = lost(state.rates, job, has, has - share, state.cores) * seconds
    return int(less) + (less - int(less) > NOTHING)


@rare
def share_of(state: State, job: int, usual: int, least: int, most: int) -> int:
    """Return the cores that a mate gives of a whole node; of equal gains the share nearest to the usual one."""
    if not is_known(state, job):
        return usual
    part, best = max(1, state.cores // PARTS), usual
    found = gain(state, job, state.cores, usual)
    for distance in range(part, state.cores, part):
        for share in (usual - distance, usual + distance):
            more = gain(state, job, state.cores, share) if least <= share <= most else found
            if more > found:
                best, found = share, more
    return best
