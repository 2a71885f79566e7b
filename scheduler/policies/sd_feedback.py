# SPDX-License-Identifier: Apache-2.0
"""What measured rates say of mates: what one loses to a guest, what its nodes gain, and which share it is to give.

A guest with g of the c cores of a node is taken to do g / c of its full speed there, as nothing is known of it. With a
mate whose speed falls from v(s) to v(s - g) a node does ``v(s - g) + g / c - v(s)`` more than without the guest: none
where speed is in proportion to cores, more where the mate scales worse. The share that a mate gives is where that is
greatest, within bounds. Gains count in steps, so that noise decides nothing; a job of which nothing is known has none.
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
    """Return whether it was measured how a job scales."""
    return speed(state.rates, job, state.cores, state.cores) >= 0


@rare
def gain(state: State, job: int, has: int, share: int) -> int:
    """Return in steps what a node gains when a job that has so many cores of it gives a share of them to a guest."""
    if not is_known(state, job):
        return 0
    less = lost(state.rates, job, has, has - share, state.cores)
    return int(STEPS + (share / state.cores - less) * STEPS + 0.5) - STEPS


@rare
def waste(state: State, job: int, has: int, share: int) -> int:
    """Return how far the gain is from the most that there is; it is never negative."""
    return max(0, STEPS - gain(state, job, has, share))


@rare
def delay(state: State, job: int, has: int, share: int, seconds: int) -> int:
    """Return how much longer a mate takes by a guest of so many seconds, rounded up."""
    less = lost(state.rates, job, has, has - share, state.cores) * seconds
    return int(less) + (less - int(less) > NOTHING)


@rare
def share_of(state: State, job: int, usual: int, least: int, most: int) -> int:
    """Return the cores of a node that a mate with all of them gives: of equals those nearest to the usual share."""
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
