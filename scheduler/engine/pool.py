# SPDX-License-Identifier: Apache-2.0
"""A pool of processors: jobs hold a number of them, run as fast as a speedup curve says, and every change has a cost.

Work is counted in seconds times the speed on the size that a job requests, so that a job on its own size takes its run
time. A change from p to q processors costs time without progress, in millionths of a second:

    stall + hold * max(p, q) + transfer * max(1 / large, 1 / small - 1 / large)

where hold differs for shrinking and expanding, and transfer is the time to send all data of a job through one link
(`drom.scheduler.policies.change_cost`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.node_shares import account, begin, note_change
from drom.scheduler.engine.state import (
    BAD_SHARE,
    EXPAND,
    FREE,
    NO_FAULT,
    NO_ROOM,
    NOT_RUNNING,
    RESIZES,
    SHRINK,
    STALL,
    TRANSFER,
    WRONG_CLASS,
)
from drom.scheduler.engine.whole_nodes import in_work
from drom.scheduler.interface import MALLEABLE, RIGID, RUNNING, WAITING, lean
from drom.scheduler.policies.change_cost import change_cost

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World


@lean
def allot(world: World, job: int, processors: int, now: int) -> int:
    """Give a job this many processors of the pool, starting it if it waits; return the fault, or NO_FAULT."""
    s, jobs = world.scalars, world.jobs
    before, cls = jobs.held[job], jobs.cls[job]
    if jobs.state[job] not in (WAITING, RUNNING):
        return NOT_RUNNING
    if processors < 1:
        return BAD_SHARE
    if processors - before > s[FREE]:
        return NO_ROOM
    if (cls == RIGID and processors != jobs.nodes[job]) or (cls != MALLEABLE and before > 0):
        return WRONG_CLASS
    s[FREE] -= processors - before
    jobs.held[job] = processors
    if before == 0:
        begin(world, job, processors, now)
    elif processors != before:
        account(world, job, now)
        price = in_work(cost(world, before, processors), world.speed[processors])
        world.left[job] += price
        jobs.lost[job] += price
        jobs.lent[job] += processors < before
        s[RESIZES] += 1
    note_change(world, job)
    return NO_FAULT


@lean
def cost(world: World, before: int, after: int) -> int:
    """Return the cost of a change of processors, in millionths of a second."""
    terms = world.stall
    hold = terms[SHRINK] if after < before else terms[EXPAND]
    return int(hold * max(before, after) + change_cost(terms[STALL], terms[TRANSFER], before, after))
