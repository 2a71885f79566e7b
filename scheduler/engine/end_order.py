# SPDX-License-Identifier: Apache-2.0
"""Two orders of running jobs: by real end (a binary heap, for the simulator), by predicted end (for policies)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.state import PENDING, RUNNERS
from drom.scheduler.interface import NEVER, NOBODY, lean

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World


@lean
def first_end(world: World) -> int:
    """Return the time at which the next job ends; NEVER if none runs."""
    return int(world.end[world.heap[0]]) if world.scalars[PENDING] > 0 else NEVER


@lean
def is_before(world: World, one: int, other: int) -> bool:
    """Return whether one job ends before another; of equal ends, the job that started first."""
    if world.end[one] != world.end[other]:
        return bool(world.end[one] < world.end[other])
    return bool(world.order[one] < world.order[other])


@lean
def push(world: World, job: int) -> None:
    """Add a job with a known end to the heap."""
    last = world.scalars[PENDING]
    world.scalars[PENDING] = last + 1
    put(world, last, job)
    rise(world, last)


@lean
def pop(world: World) -> int:
    """Remove the job that ends next and return it."""
    job = world.heap[0]
    last = world.scalars[PENDING] - 1
    world.scalars[PENDING] = last
    world.at[job] = NOBODY
    if last > 0:
        put(world, 0, world.heap[last])
        sink(world, 0)
    return int(job)


@lean
def move(world: World, job: int, end: int) -> None:
    """Change the end of a job in the heap."""
    world.end[job] = end
    rise(world, world.at[job])
    sink(world, world.at[job])


@lean
def put(world: World, place: int, job: int) -> None:
    """Write a job at a place of the heap."""
    world.heap[place] = job
    world.at[job] = place


@lean
def rise(world: World, place: int) -> None:
    """Move the job at a place towards the top while it ends before its parent."""
    job = world.heap[place]
    while place > 0 and is_before(world, job, world.heap[(place - 1) // 2]):
        put(world, place, world.heap[(place - 1) // 2])
        place = (place - 1) // 2
    put(world, place, job)


@lean
def sink(world: World, place: int) -> None:
    """Move the job at a place down while a child ends before it."""
    job, size = world.heap[place], world.scalars[PENDING]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and is_before(world, world.heap[child + 1], world.heap[child]):
            child += 1
        if not is_before(world, world.heap[child], job):
            break
        put(world, place, world.heap[child])
        place = child
    put(world, place, job)


@lean
def insert_predicted(world: World, job: int) -> None:
    """Insert a job into the order of predicted ends."""
    s, running = world.scalars, world.running
    place = rank(world, job)
    for i in range(s[RUNNERS], place, -1):
        running[i] = running[i - 1]
    running[place] = job
    s[RUNNERS] += 1


@lean
def remove_predicted(world: World, job: int) -> None:
    """Remove a job from the order of predicted ends."""
    s, running = world.scalars, world.running
    for i in range(rank(world, job), s[RUNNERS] - 1):
        running[i] = running[i + 1]
    s[RUNNERS] -= 1


@lean
def rank(world: World, job: int) -> int:
    """Return the number of running jobs with an earlier predicted end; of equal ends, those that started before."""
    ends, order = world.jobs.ends, world.order
    low, high = 0, world.scalars[RUNNERS]
    while low < high:
        middle = (low + high) // 2
        other = world.running[middle]
        if ends[other] < ends[job] or (ends[other] == ends[job] and order[other] < order[job]):
            low = middle + 1
        else:
            high = middle
    return int(low)
