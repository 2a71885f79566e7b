# SPDX-License-Identifier: Apache-2.0
"""A world whose jobs and nodes come and go: made empty, and moved to larger arrays when they are full.

The simulator knows all jobs beforehand. A live scheduler does not, so its arrays have room to spare, and only jobs that
wait or run are kept when they are made anew. A node that is not there is one that is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scheduler.interface import NOBODY, RUNNING, WAITING
from scheduler.world import BLOCK, CORES, FREE, INSTANT, PENDING, QUEUED, RUNNERS, WORST, World, make_world
from workloads.workload import make_workload

if TYPE_CHECKING:
    from scheduler.interface import Ints

_PER_JOB = ("run", "end", "at", "order", "left", "rate", "cause", "given")


def vacant(jobs: int, places: int, nodes: int, cores: int, layers: int, *, measured: bool) -> World:
    """Return a world without jobs, whose nodes are all down; `measured`: with what jobs are measured to do.

    It has room for so many `jobs`, which together are on `places` nodes, on `nodes` nodes of so many `cores` that as
    many as `layers` jobs share.
    """
    one = np.ones(jobs, np.int64)
    work = make_workload({"submit": one, "run_time": one, "requested_time": one, "allocated": cores * one})
    world = make_world(work, nodes, cores, INSTANT, layers=layers, model=WORST, measured=measured)
    world.nodes.first[:] = 0
    world.nodes.up[:] = 0
    world.free_in_block[:] = 0
    world.scalars[FREE] = 0
    return world._replace(nodes=world.nodes._replace(place=np.full(places, NOBODY, np.int64)))


def moved(world: World, active: Ints, jobs: int, places: int, nodes: int) -> World:
    """Return a world of another size with the jobs in `active`, in this order, and with all that happens on nodes."""
    cores, layers = int(world.scalars[CORES]), world.nodes.resident.shape[1]
    new, count = vacant(jobs, places, nodes, cores, layers, measured=len(world.rates) > 0), len(active)
    for name in world.jobs._fields:
        getattr(new.jobs, name)[:count] = getattr(world.jobs, name)[active]
    for name in _PER_JOB:
        getattr(new, name)[:count] = getattr(world, name)[active]
    if len(world.rates):
        new.rates[:count] = world.rates[active]
    new.scalars[:] = world.scalars
    number = np.full(len(world.queue) + 1, NOBODY, np.int64)
    number[active] = np.arange(count)
    for name, used in (("queue", QUEUED), ("running", RUNNERS), ("heap", PENDING)):
        size = int(world.scalars[used])
        getattr(new, name)[:size] = number[getattr(world, name)[:size]]
    _move_nodes(world, new, active, number)
    allowed = np.zeros((len(world.nodes.allowed), nodes), np.int64)
    allowed[:, : world.nodes.allowed.shape[1]] = world.nodes.allowed
    return new._replace(nodes=new.nodes._replace(allowed=allowed))


def _move_nodes(world: World, new: World, active: Ints, number: Ints) -> None:
    old, house, size = world.nodes, new.nodes, len(world.nodes.up)
    house.first[1 : len(active) + 1] = np.cumsum(world.jobs.nodes[active])
    house.first[len(active) + 1 :] = house.first[len(active)]
    for i, job in enumerate(active):
        house.place[house.first[i] : house.first[i + 1]] = old.place[old.first[job] : old.first[job + 1]]
    house.resident[:size] = number[old.resident]  # the last number is nobody's
    house.share[:size] = old.share
    house.up[:size] = old.up
    new.free_in_block[: -(-size // BLOCK)] = world.free_in_block


def active_jobs(world: World, known: int) -> Ints:
    """Return the jobs among the first `known` that wait or run."""
    state = world.jobs.state[:known]
    return np.flatnonzero((state == WAITING) | (state == RUNNING))


def is_vacant(world: World, node: int) -> bool:
    """Return whether nobody is on a node."""
    return bool(world.nodes.resident[node, 0] == NOBODY)
