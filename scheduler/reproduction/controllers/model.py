# SPDX-License-Identifier: Apache-2.0
"""A run of the model: some controllers, each with a partition of nodes and jobs of a workload, on one store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.controllers import events
from drom.scheduler.reproduction.controllers.world import (
    CACHED,
    CONFLICTS,
    MESSAGES,
    NOBODY,
    NONE,
    QUEUED,
    RANDOMS,
    RELEASES,
    RICHEST,
    SEQUENCE,
    STORE_BUSY,
    Costs,
    Options,
    World,
)

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

CACHE = 64
"""The most free counts that a controller has in its cache."""
EVENTS_PER_JOB = 2000
"""The most events, after which a run counts as one that does not end."""


class Workload(NamedTuple):
    """Jobs of the paper that do nothing: their name, the least and most nodes, and how many each controller gets."""

    name: str
    least: int
    most: int
    jobs: int


SMALL, MEDIUM, LARGE = Workload("small", 1, 1, 50), Workload("medium", 1, 50, 50), Workload("large", 25, 75, 20)
WORKLOADS = (SMALL, MEDIUM, LARGE)


class Setup(NamedTuple):
    """Controllers with a core each, the nodes of each, the jobs of each, and the cores of the store.

    All nodes share `cores` cores; with 0 of them each has its own.
    """

    controllers: int
    nodes: int
    jobs: int
    cores: int = 0
    store_cores: int = 1
    order: int = 50
    """Jobs that a user submits at once; the last order of a controller may have fewer."""


class Result(NamedTuple):
    """What came of a run."""

    throughput: float
    """Jobs per second: the sum over controllers, each from its first submission to its last end, as in the paper."""
    seconds: float
    """From the first submission to the last end."""
    messages: float
    """To the store, per job."""
    allocate: float
    """Mean seconds from when a job is first in its queue until it has its nodes."""
    conflicts: float
    """Compare-and-swaps that failed, per job."""
    releases: float
    """How often a job gave back what it had taken, per job."""
    store: float
    """The share of its time in which the store works."""
    busiest: float
    """The share of its time in which the busiest controller works."""
    cpu: float
    """Seconds that all controllers worked."""
    bound: float
    """Jobs per second that the nodes can run, whatever the controllers do."""


def sizes_of(workload: Workload, setup: Setup, seed: int) -> Ints:
    """Return the nodes of all jobs, controller by controller; the same seed gives the same ones."""
    generator = np.random.default_rng(seed)
    most = min(workload.most, setup.controllers * setup.nodes)
    return generator.integers(workload.least, most + 1, setup.controllers * setup.jobs)


def simulate(setup: Setup, sizes: Ints, costs: Costs, options: Options, seed: int = 1) -> Result:
    """Run the jobs with these sizes. Raises SchedulerError for jobs that do not fit, and if the run does not end."""
    total, own = setup.controllers * setup.nodes, setup.controllers == 1 or options.pick == NONE
    needed = sizes.reshape(setup.controllers, setup.jobs).sum(axis=1)
    own = own or bool((needed <= setup.nodes).all())  # no job ever lacks nodes
    if len(sizes) and int(sizes.max()) > (setup.nodes if own else total):
        raise SchedulerError(f"A job of {sizes.max()} nodes does not fit: give partitions more nodes.")
    world = world_of(setup, sizes, costs, options._replace(pick=NONE) if own else options, seed)
    end = float(events.compiled()(world, EVENTS_PER_JOB * len(sizes)))
    if (world.ended < 0).any():
        raise SchedulerError("The controllers do not finish: jobs take nodes of each other forever.")
    return _result(setup, world, end, bound(setup, sizes, costs))


def bound(setup: Setup, sizes: Ints, costs: Costs) -> float:
    """Return the most jobs per second that nodes can run, whatever the controllers do.

    A job of s nodes has them for at least t(s), from its launch until its last node has left it: N / mean(s t(s)).
    """
    times = costs.launch + costs.agent * (sizes > 1)
    held = float((sizes * times).mean()) if len(sizes) else 0.0
    return setup.controllers * setup.nodes / held if held else math.inf


def world_of(setup: Setup, sizes: Ints, costs: Costs, options: Options, seed: int) -> World:
    """Return the state before the first event."""
    controllers, count, order = setup.controllers, len(sizes), min(setup.order, setup.jobs)
    home = np.repeat(np.arange(controllers), setup.jobs)
    place = np.tile(np.arange(setup.jobs), controllers) if options.spread else np.arange(count)
    place = (place // order + 1) * order
    loans = 1 if options.pick == NONE else controllers * setup.nodes + 1
    entries = min(CACHE, controllers - 1) if options.pick in {CACHED, RICHEST} else 1
    counts = np.zeros(SEQUENCE + 1)
    counts[RANDOMS] = 1 + seed % 2147483646

    def whole(length: int, value: int = 0) -> Ints:
        return np.full(length, value, np.int64)

    def cache(value: int) -> Ints:
        return np.full((controllers, entries), value, np.int64)

    return World(
        costs=costs,
        options=options,
        counts=counts,
        order=order,
        cores=np.zeros(setup.cores),
        servers=np.zeros(setup.store_cores),
        nodes=setup.nodes,
        began=np.zeros(controllers),
        beats=whole(controllers),
        rate=np.full(controllers, 1 / (1 - min(0.9, costs.beat * setup.nodes))),
        cpu=np.zeros(controllers),
        busy=np.zeros(controllers),
        free=whole(controllers, setup.nodes),
        version=whole(controllers),
        robbed=whole(controllers),
        turn=whole(controllers, NOBODY),
        load=np.zeros(controllers),
        inbox=whole(controllers, NOBODY),
        inbox_end=whole(controllers, NOBODY),
        outbox=whole(controllers, NOBODY),
        first=whole(controllers, NOBODY),
        last=whole(controllers, NOBODY),
        queued=whole(controllers),
        thief=whole(controllers, NOBODY),
        waiters=whole(controllers, NOBODY),
        big=whole(controllers, NOBODY),
        big_end=whole(controllers, NOBODY),
        lists=np.zeros((controllers, 3), np.int64),
        known=np.zeros((controllers, 3), np.int64),
        wish=np.zeros((controllers, 3), np.int64),
        chosen=whole(controllers, NOBODY),
        taken=whole(controllers, NOBODY),
        due=whole(controllers, NOBODY),
        again=np.zeros(controllers),
        who=cache(NOBODY),
        had=cache(0),
        at=cache(0),
        since=np.full((controllers, entries), -np.inf),
        home=home,
        size=sizes.astype(np.int64),
        phase=whole(count, QUEUED),
        own=whole(count),
        missing=sizes.astype(np.int64),
        tries=whole(count),
        target=whole(count, NOBODY),
        seen=whole(count),
        waits=whole(count, NOBODY),
        stamp=whole(count),
        loans=whole(count, NOBODY),
        arrived=whole(count),
        left=whole(count),
        link=whole(count, NOBODY),
        behind=whole(count, NOBODY),
        submitted=np.multiply(place, costs.submit, dtype=np.float64),
        asked=np.full(count, -1.0),
        allocated=np.full(count, -1.0),
        ended=np.full(count, -1.0),
        lender=whole(loans),
        amount=whole(loans),
        further=np.arange(1, loans + 1),
        given=whole(loans),
        unused=whole(1),
    )


def _result(setup: Setup, world: World, end: float, most: float) -> Result:
    jobs, shape = len(world.size), (setup.controllers, setup.jobs)
    spans = world.ended.reshape(shape).max(axis=1) - world.submitted.reshape(shape).min(axis=1)
    return Result(
        throughput=float((setup.jobs / spans).sum()),
        seconds=float(world.ended.max() - world.submitted.min()),
        messages=float(world.counts[MESSAGES]) / jobs,
        allocate=float((world.allocated - world.asked).mean()),
        conflicts=float(world.counts[CONFLICTS]) / jobs,
        releases=float(world.counts[RELEASES]) / jobs,
        store=float(world.counts[STORE_BUSY]) / end / setup.store_cores,
        busiest=float(world.busy.max()) / end,
        cpu=float(world.busy.sum()),
        bound=most,
    )
