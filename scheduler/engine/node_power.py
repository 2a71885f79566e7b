# SPDX-License-Identifier: Apache-2.0
"""Nodes that are turned off when they have had no job for a while, and on again for a job, which then waits for them.

When a node is off follows from when it last had a job, so that this is counted when it gets the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.state import OFF_AFTER, OFF_TIME, WAKE_UP, WAKES
from drom.scheduler.interface import NOBODY, lean

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World


@lean
def sleeps(world: World) -> bool:
    """Return whether nodes without jobs are turned off."""
    return len(world.empty_since) > 0


@lean
def count_off(world: World, node: int, now: int) -> bool:
    """Count for how long a node without jobs has been off; return whether it is."""
    off = now - world.empty_since[node] - world.scalars[OFF_AFTER]
    world.scalars[OFF_TIME] += max(0, off)
    return bool(off > 0)


@lean
def wake(world: World, node: int, now: int) -> int:
    """Turn on a node, if it is off, and return in how many seconds another job can start there.

    A guest starts with the job for which its node wakes up.
    """
    owner = world.nodes.resident[node, 0]
    if owner != NOBODY:
        return max(0, int(world.jobs.start[owner] - now))
    if not count_off(world, node, now):
        return 0
    world.scalars[WAKES] += 1
    return int(world.scalars[WAKE_UP])
