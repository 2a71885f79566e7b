# SPDX-License-Identifier: Apache-2.0
"""Jobs that leave whole nodes of theirs: how fast they are on fewer nodes, and what a change of nodes costs them.

A job that has no core of a node rests there, and stays its owner: it has the cores again when the guest ends. With
cores on n of its N nodes it does ``S(n) / S(N)`` of its work, S being a table of speeds (`World.node_curve`), and the
run-time model holds for the nodes on which it has cores. A change from p to q nodes costs time without progress
(`drom.scheduler.policies.change_cost`), as its data move; a guest starts when the data are off its nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.state import (
    DATA_MOVED,
    MODEL,
    NODE_CHANGES,
    NODE_GUESTS,
    NODE_UNIT,
    STALL,
    TRANSFER,
    WORST,
)
from drom.scheduler.interface import MILLION, NOBODY, lean, rare
from drom.scheduler.policies.change_cost import change_cost, seconds_of

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Ints


@lean
def in_work(millionths: int, speed: int) -> int:
    """Return the work done in `millionths` of a second, rounded down; the plain product may exceed 64 bits."""
    return int(millionths // MILLION * speed + millionths % MILLION * speed // MILLION)


@lean
def moves(world: World) -> bool:
    """Return whether jobs may leave whole nodes."""
    return len(world.away) > 0


@rare
def may_leave(world: World, job: int, count: int) -> bool:
    """Return whether a job may leave `count` more of its nodes."""
    jobs = world.jobs
    return bool(moves(world) and jobs.nodes[job] - world.away[job] - count >= jobs.least[job])


@rare
def rate_on_fewer(world: World, job: int, least: int, total: int) -> int:
    """Return the work per second of a job that has no cores on some of its nodes.

    `least` are the fewest cores on one of the others, `total` those on all.
    """
    size, curve = world.jobs.nodes[job], world.node_curve
    here = size - world.away[job]
    effective = size * NODE_UNIT * curve[here] // curve[size]
    if world.scalars[MODEL] == WORST:
        return int(least * effective // NODE_UNIT)
    return int(total * effective // (here * NODE_UNIT))


@rare
def cost_of_nodes(world: World, job: int) -> int:
    """Return what the change of a job's nodes costs that has not been charged, in millionths of a second."""
    size = world.jobs.nodes[job]
    if world.away[job] == world.charged[job]:
        return 0
    return change_cost(
        world.stall[STALL], world.stall[TRANSFER] * size, size - world.charged[job], size - world.away[job]
    )


@rare
def charge(world: World, job: int) -> None:
    """Charge a job for a change of its nodes since this was last called, at its present speed."""
    s, size, before, after = world.scalars, world.jobs.nodes[job], world.charged[job], world.away[job]
    price = in_work(cost_of_nodes(world, job), world.rate[job])
    world.left[job] += price
    world.jobs.lost[job] += price
    world.charged[job] = after
    s[NODE_CHANGES] += before != after
    s[DATA_MOVED] += NODE_UNIT * size * abs(after - before) // (size - min(before, after))


@rare
def delay_of_guest(world: World, nodes: Ints) -> int:
    """Return in how many seconds all nodes of a job that starts are left by their owners, and count such a start."""
    house, delay, waits = world.nodes, 0, False
    for node in nodes:
        owner = house.resident[node, 0]
        if owner != NOBODY and house.share[node, 0] == 0:
            delay = max(delay, seconds_of(cost_of_nodes(world, owner)))
            waits = True
    world.scalars[NODE_GUESTS] += waits
    return int(delay)
