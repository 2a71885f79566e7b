# SPDX-License-Identifier: Apache-2.0
"""Nodes that go down and come back, and the jobs that fail with them.

A job fails when one of its nodes goes down, and leaves all its nodes. It is lost, or joins the queue again at its place
by submission, with the limit that it asked for. Its next start goes on from its last checkpoint, which was made when it
had done a multiple of CHECKPOINT seconds of its work, and first takes it RESTART seconds more; without a checkpoint it
begins anew. The work since the checkpoint is wasted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.end_order import move, pop
from drom.scheduler.engine.node_power import count_off, sleeps
from drom.scheduler.engine.node_shares import end_job, full_rate, needed_from_start, update_ends, work_unit
from drom.scheduler.engine.queue_order import enqueue
from drom.scheduler.engine.state import (
    BEGUN,
    BLOCK_BITS,
    CHECKPOINT,
    DOWN,
    FAILED,
    FAILED_JOB,
    FAILURES,
    FREE,
    IS_UP,
    LOSES,
    NODE,
    ON_NODE,
    OUTAGE,
    QUEUED,
    RUNNERS,
    SUBMISSIONS,
    WASTED,
    WHEN,
)
from drom.scheduler.interface import NEVER, NOBODY, NODE_DOWN, NODE_UP, lean, rare

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World


@lean
def next_change(world: World) -> int:
    """Return the second at which a node next goes down or comes back; NEVER if there is none, or no job is left."""
    s = world.scalars
    if s[OUTAGE] == len(world.outages):
        return NEVER
    left = s[RUNNERS] + s[QUEUED] > 0 or s[SUBMISSIONS] < len(world.jobs.submit)
    return int(world.outages[s[OUTAGE], WHEN]) if left else NEVER


@rare
def change_nodes(world: World, now: int) -> int:
    """Take down and bring back the nodes for which that is due; return the kinds of events."""
    s, kinds = world.scalars, 0
    while s[OUTAGE] < len(world.outages) and world.outages[s[OUTAGE], WHEN] <= now:
        node, is_up = world.outages[s[OUTAGE], NODE], world.outages[s[OUTAGE], IS_UP]
        s[OUTAGE] += 1
        while world.nodes.resident[node, 0] != NOBODY:
            fail_job(world, world.nodes.resident[node, 0], node, now)
        if sleeps(world):
            if not is_up:
                count_off(world, node, now)
            world.empty_since[node] = now
        change = 1 if is_up else -1
        world.nodes.up[node] = is_up
        s[FREE] += change
        s[DOWN] -= change
        world.free_in_block[node >> BLOCK_BITS] += change
        kinds |= NODE_UP if is_up else NODE_DOWN
    update_ends(world, now)
    return kinds


@rare
def fail_job(world: World, job: int, node: int, now: int) -> None:
    """End a running job because of a node; unless such jobs are lost, put it into the queue again."""
    s, jobs, row = world.scalars, world.jobs, world.failures[world.scalars[FAILURES]]
    begun = needed_from_start(world, job) * full_rate(world, job)
    row[FAILED_JOB], row[BEGUN], row[FAILED], row[ON_NODE] = job, min(now, jobs.start[job]), now, node
    s[FAILURES] += 1
    move(world, job, NOBODY)  # to the top, for pop
    pop(world)
    end_job(world, job, now)
    # A job that waits for a node to wake has done nothing yet.
    row[WASTED] = max(0, begun - world.left[job]) // work_unit(world)
    if s[LOSES]:
        return
    row[WASTED] -= save(world, job) * full_rate(world, job) // work_unit(world)
    jobs.start[job] = jobs.ends[job] = jobs.planned[job] = world.end[job] = NEVER
    jobs.limit[job] = jobs.requested[job]
    jobs.lost[job] = jobs.shared[job] = world.given[job] = 0
    world.nodes.place[world.nodes.first[job] : world.nodes.first[job + 1]] = NOBODY
    enqueue(world, job)


@rare
def save(world: World, job: int) -> int:
    """Record the last checkpoint of a job that has failed; return how many more seconds of work it has."""
    interval, before = world.scalars[CHECKPOINT], world.kept[job]
    if interval == 0:
        return 0
    done = world.run[job] - (-(-world.left[job] // full_rate(world, job)))
    world.kept[job] = max(before, done - done % interval)
    return int(world.kept[job] - before)
