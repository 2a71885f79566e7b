# SPDX-License-Identifier: Apache-2.0
"""A world in which jobs and nodes come and go: made empty, and moved to larger arrays when they are full.

The simulator knows all jobs beforehand. A live scheduler does not, so its arrays have spare room, and only jobs that
wait or run are kept when the arrays are replaced. A node that has not joined is represented as one that is down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from drom.scheduler.engine.state import (
    CORES,
    FREE,
    INSTANT,
    PENDING,
    QUEUED,
    RUNNERS,
    WORST,
    Leaving,
    World,
    make_world,
)
from drom.scheduler.interface import NOBODY, RUNNING, WAITING, Jobs
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints, Nodes

_PER_JOB = ("run", "end", "at", "order", "left", "rate", "cause", "given", "away", "charged")


def empty_state(jobs: int, places: int, nodes: int, cores: int, layers: int, *, measured: bool) -> World:
    """Return a world without jobs in which all nodes are down; `measured`: with the measured rates of jobs.

    It has room for `jobs` jobs with `places` places on nodes together, and for `nodes` nodes of `cores` cores, each
    shared by at most `layers` jobs. Jobs may leave whole nodes, which costs nothing here: their ends are reported.
    """
    one = np.ones(jobs, np.int64)
    work = make_workload({"submit": one, "run_time": one, "requested_time": one, "allocated": cores * one})
    leaving = Leaving(least=one, curve=np.arange(nodes + 1), stall=np.zeros(4, np.int64))
    world = make_world(work, nodes, cores, INSTANT, layers=layers, model=WORST, measured=measured, leaving=leaving)
    world.nodes.first[:] = 0
    world.nodes.up[:] = 0
    world.free_in_block[:] = 0
    world.scalars[FREE] = 0
    return world._replace(nodes=world.nodes._replace(place=np.full(places, NOBODY, np.int64)))


def resized(world: World, active: Ints, jobs: int, places: int, nodes: int) -> World:
    """Return a world of another size with the jobs in `active`, in this order, and with the state of all nodes."""
    blank = empty_state(1, places, nodes, int(world.scalars[CORES]), world.nodes.resident.shape[1], measured=False)
    number = np.full(len(world.queue) + 1, NOBODY, np.int64)  # the new indices of jobs; the last is NOBODY
    number[active] = np.arange(len(active))

    def column(values: Ints, fill: Ints) -> Ints:
        made = np.full(jobs, fill[0], np.int64)
        made[: len(active)] = values[active]
        return made

    def listed(values: Ints, room: int, used: int) -> Ints:
        made = np.full(room, NOBODY, np.int64)
        made[:used] = number[values[:used]]
        return made

    columns: dict[str, Any] = {name: column(getattr(world, name), getattr(blank, name)) for name in _PER_JOB}
    held = min(jobs, blank.nodes.resident.size)
    blocks = blank.free_in_block
    blocks[: len(world.free_in_block)] = world.free_in_block
    return blank._replace(
        jobs=Jobs(*(column(*pair) for pair in zip(world.jobs, blank.jobs, strict=True))),
        nodes=_moved_nodes(world, blank.nodes, active, number, jobs),
        queue=listed(world.queue, jobs, int(world.scalars[QUEUED])),
        running=listed(world.running, held, int(world.scalars[RUNNERS])),
        heap=listed(world.heap, 2 * held, int(world.scalars[PENDING])),
        changed=np.full(jobs, NOBODY, np.int64),
        rates=_moved_rates(world.rates, number, jobs),
        scalars=world.scalars.copy(),
        **columns,
    )


def _moved_nodes(world: World, house: Nodes, active: Ints, number: Ints, jobs: int) -> Nodes:
    old, size, count = world.nodes, len(world.nodes.up), len(active)
    taken = old.first[active + 1] - old.first[active]
    first = np.full(jobs + 1, taken.sum(), np.int64)
    first[0] = 0
    np.cumsum(taken, out=first[1 : count + 1])
    at = np.arange(first[count]) + np.repeat(old.first[active] - first[:count], taken)
    house.place[: len(at)] = old.place[at]
    house.resident[:size] = number[old.resident]  # NOBODY is the last number
    house.share[:size] = old.share
    house.up[:size] = old.up
    allowed = np.zeros((len(old.allowed), len(house.up)), np.int64)
    allowed[:, :size] = old.allowed
    return house._replace(first=first, allowed=allowed)


def _moved_rates(rates: Ints, number: Ints, jobs: int) -> Ints:
    """Copy the measured rates; most jobs have not run yet, and their rows take no memory."""
    made = np.zeros((jobs if len(rates) else 0, rates.shape[1]), np.int64)
    measured = np.flatnonzero(rates.any(axis=1) & (number[: len(rates)] != NOBODY))
    made[number[measured]] = rates[measured]
    return made


def active_jobs(world: World, known: int) -> Ints:
    """Return the jobs among the first `known` that wait or run."""
    state = world.jobs.state[:known]
    return np.flatnonzero((state == WAITING) | (state == RUNNING))


def is_empty(world: World, node: int) -> bool:
    """Return whether no job is on a node."""
    return bool(world.nodes.resident[node, 0] == NOBODY)
