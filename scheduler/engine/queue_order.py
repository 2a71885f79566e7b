# SPDX-License-Identifier: Apache-2.0
"""The order of waiting jobs: by falling priority, then by submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.state import QUEUED
from drom.scheduler.interface import WAITING, lean

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World


@lean
def enqueue(world: World, job: int) -> None:
    """Add a job to the queue, behind those of its priority that were submitted before."""
    queue, priority, place = world.queue, world.jobs.priority, world.scalars[QUEUED]
    while place > 0 and is_ahead(priority[job], job, priority[queue[place - 1]], queue[place - 1]):
        queue[place] = queue[place - 1]
        place -= 1
    queue[place] = job
    world.jobs.state[job] = WAITING
    world.scalars[QUEUED] += 1


@lean
def is_ahead(priority: int, job: int, other_priority: int, other: int) -> bool:
    """Return whether a job of a priority comes before another."""
    return bool(priority > other_priority or (priority == other_priority and job < other))


@lean
def compact_queue(world: World) -> None:
    """Remove the jobs that have started from the queue."""
    kept = 0
    for job in world.queue[: world.scalars[QUEUED]]:
        if world.jobs.state[job] == WAITING:
            world.queue[kept] = job
            kept += 1
    world.scalars[QUEUED] = kept
