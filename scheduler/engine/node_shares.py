# SPDX-License-Identifier: Apache-2.0
"""Jobs on nodes: where jobs start, how they share the cores of a node, and how fast they run with their share.

A job works at full speed with all cores of its nodes. With less its speed is, by the runtime model (for jobs that leave
whole nodes see `whole_nodes`),

    ideal  (cores it has) / (cores of its nodes): its work can be balanced over them
    worst  min over its nodes of (cores it has there) / (cores of a node): the slowest node limits it

(Equations 5 and 6 of the SD-Policy paper, ICPP 2019, as rates.) A core of a node of another speed counts as so many
cores. Work is counted in seconds times cores of the job's nodes, so that it stays a whole number, and a job ends in the
first second in which all is done, or at its limit.

When a job ends, its share of a node goes to the owner of the node; when the owner ends, its first guest becomes owner.
Only malleable jobs grow: if the owner is not malleable, the next malleable resident gets the share; without one, the
share stays idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.end_order import insert_predicted, move, push, remove_predicted
from drom.scheduler.engine.node_power import sleeps, wake
from drom.scheduler.engine.residual_processes import note_interference, slowed_speed
from drom.scheduler.engine.state import (
    BAD_SHARE,
    BLOCK,
    BLOCK_BITS,
    CHANGES,
    CORES,
    FORESEES,
    FREE,
    JOB,
    LEFT,
    MODEL,
    NO_FAULT,
    NO_ROOM,
    NOT_ITS_NODE,
    RESIDUAL,
    RESIZES,
    RESTART,
    SPEED_UNIT,
    STARTS,
    TOO_SHORT,
    WORST,
    WRONG_CLASS,
    WRONG_PARTITION,
    is_pool,
)
from drom.scheduler.engine.whole_nodes import charge, delay_of_guest, may_leave, moves, rate_on_fewer
from drom.scheduler.interface import ENDED, MALLEABLE, NEVER, NOBODY, RIGID, RUNNING, Ints, lean, rare

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World


@lean
def start_job(world: World, job: int, now: int) -> int:
    """Start a job on the free nodes with the lowest numbers, with all their cores; return the fault, or NO_FAULT."""
    s, need = world.scalars, world.jobs.nodes[job]
    if need > s[FREE]:
        return NO_ROOM
    if world.jobs.partition[job] != NOBODY:
        return WRONG_PARTITION
    resident, share, up = world.nodes.resident, world.nodes.share, world.nodes.up
    given = world.nodes.place[world.nodes.first[job] : world.nodes.first[job + 1]]
    blocks, cores, count, block, delay = world.free_in_block, s[CORES], 0, 0, 0
    while count < need:
        node, wanted = block * BLOCK, count + min(blocks[block], need - count)
        blocks[block] -= wanted - count
        while count < wanted:
            if resident[node, 0] == NOBODY and up[node]:
                if sleeps(world):
                    delay = max(delay, wake(world, node, now))
                resident[node, 0], share[node, 0], given[count] = job, cores, node
                count += 1
            node += 1
        block += 1
    s[FREE] -= need
    take(world, job, cores, now, delay)
    return NO_FAULT


@lean
def place_job(world: World, job: int, nodes: Ints, cores: int, now: int) -> int:
    """Start a job on these nodes with `cores` cores of each; return the fault, or NO_FAULT. A fault changes nothing.

    A node that has been checked is marked in the place of its last guest, so that a node named twice is found full.
    """
    resident, checked, fault = world.nodes.resident, 0, NO_FAULT
    if len(nodes) != world.jobs.nodes[job]:
        return NO_ROOM
    if world.jobs.cls[job] == RIGID and cores < world.scalars[CORES]:
        return WRONG_CLASS
    for node in nodes:
        fault = why_not_on(world, job, node, cores)
        if fault != NO_FAULT:
            break
        resident[node, -1] = job
        checked += 1
    for node in nodes[:checked]:
        resident[node, -1] = NOBODY
    if fault != NO_FAULT:
        return fault
    place, delay = world.nodes.first[job], delay_of_guest(world, nodes) if moves(world) else 0
    for node in nodes:
        if sleeps(world):
            delay = max(delay, wake(world, node, now))
        add_resident(world, job, node, cores)
        world.nodes.place[place] = node
        place += 1
    take(world, job, cores, now, delay)
    note_neighbours(world, job)
    return NO_FAULT


@lean
def why_not_on(world: World, job: int, node: int, cores: int) -> int:
    """Return the fault if a waiting job cannot have this many cores of a node; NO_FAULT if it can."""
    house, partition = world.nodes, world.jobs.partition[job]
    if cores < 1:
        return BAD_SHARE
    if node < 0 or node >= len(house.up) or not house.up[node]:
        return NO_ROOM
    if partition != NOBODY and not house.allowed[partition, node]:
        return WRONG_PARTITION
    if house.resident[node, -1] != NOBODY or cores > world.scalars[CORES] - house.share[node].sum():
        return NO_ROOM
    return NO_FAULT


@lean
def add_resident(world: World, job: int, node: int, cores: int) -> None:
    """Add a job as the last resident of a node."""
    house = world.nodes
    if house.resident[node, 0] == NOBODY:
        world.scalars[FREE] -= 1
        world.free_in_block[node >> BLOCK_BITS] -= 1
    layer, shared = 0, world.jobs.shared
    while house.resident[node, layer] != NOBODY:
        layer += 1
    shared[job] += layer > 0
    shared[house.resident[node, 0]] += layer == 1
    house.resident[node, layer] = job
    house.share[node, layer] = cores


@lean
def take(world: World, job: int, cores: int, now: int, delay: int) -> None:
    """Start a job on nodes that it gets now, once these are on."""
    if sleeps(world):
        world.taken[job] = now
    begin(world, job, cores, now + delay)


@lean
def begin(world: World, job: int, cores: int, now: int) -> None:
    """Start a job at the full speed of its nodes, once it is resident there with `cores` cores of each."""
    s, jobs = world.scalars, world.jobs
    world.given[job], jobs.leaves[job] = cores, jobs.nodes[job]
    jobs.state[job], jobs.start[job], jobs.ends[job] = RUNNING, now, now + jobs.limit[job]
    world.order[job] = s[STARTS]
    s[STARTS] += 1
    world.rate[job], needed = full_rate(world, job), needed_from_start(world, job)
    world.left[job], jobs.since[job] = needed * world.rate[job], now
    if len(world.node_speed) > 0:
        needed = adapt_to_speeds(world, job)
    world.end[job] = min(now + needed, at_the_latest(world, job))
    push(world, job)
    insert_predicted(world, job)


@lean
def needed_from_start(world: World, job: int) -> int:
    """Return the seconds that a job needs with all its resources from its start, or from its last checkpoint."""
    if len(world.kept) == 0 or world.kept[job] == 0:
        return int(world.run[job])
    return int(world.run[job] - world.kept[job] + world.scalars[RESTART])


@lean
def at_the_latest(world: World, job: int) -> int:
    """Return the latest end of a job, even with work left; NEVER if its limit is only a prediction."""
    return NEVER if world.scalars[FORESEES] else int(world.jobs.ends[job])


@lean
def full_rate(world: World, job: int) -> int:
    """Return how much of its work a job does in a second with all the cores that it requests, on nodes of speed 1."""
    size = world.jobs.nodes[job]
    return int(world.speed[size]) if is_pool(world) else int(size * world.scalars[CORES] * work_unit(world))


@lean
def work_unit(world: World) -> int:
    """Return the work of a core in a second on a node of speed 1."""
    return SPEED_UNIT if len(world.node_speed) > 0 else 1


@rare
def adapt_to_speeds(world: World, job: int) -> int:
    """Set the rate of a job that starts on nodes of several speeds; return the seconds that it needs."""
    world.rate[job] = rate_of(world, job)
    return int(-(-world.left[job] // world.rate[job]))


@lean
def resize_job(world: World, job: int, nodes: Ints, cores: int) -> int:
    """Give a running job `cores` cores on each of these nodes; return the fault, which changes nothing, or NO_FAULT."""
    share, lent, left = world.nodes.share, False, 0
    if world.jobs.cls[job] != MALLEABLE:
        return WRONG_CLASS
    for node in nodes:
        layer = layer_of(world, job, node)
        if layer == NOBODY:
            return NOT_ITS_NODE
        if cores < 0 or cores > world.scalars[CORES] - share[node].sum() + share[node, layer]:
            return BAD_SHARE
        if share[node, layer] > cores and 0 < cores < world.jobs.least_cores[job]:
            return BAD_SHARE
        left += share[node, layer] > 0
    if cores == 0 and not may_leave(world, job, left):
        return BAD_SHARE
    for node in nodes:
        layer = layer_of(world, job, node)
        lent |= cores < share[node, layer]
        note_presence(world, job, share[node, layer], cores)
        share[node, layer] = cores
    world.jobs.lent[job] += lent
    note_change(world, job)
    return NO_FAULT


@lean
def note_presence(world: World, job: int, before: int, after: int) -> None:
    """Count a node that a job leaves or returns to, from its cores there before and after."""
    if moves(world):
        world.away[job] += int(after == 0) - int(before == 0)


@lean
def layer_of(world: World, job: int, node: int) -> int:
    """Return the column of a job among the residents of a node; NOBODY if it is not there."""
    if 0 <= node < len(world.nodes.up):
        for layer in range(world.nodes.resident.shape[1]):
            if world.nodes.resident[node, layer] == job:
                return layer
    return NOBODY


@lean
def set_limit(world: World, job: int, limit: int, now: int) -> int:
    """Set the limit of a running job, in seconds from its start; return the fault, or NO_FAULT."""
    jobs = world.jobs
    if jobs.start[job] + limit <= now:
        return TOO_SHORT
    remove_predicted(world, job)
    jobs.limit[job], jobs.ends[job] = limit, jobs.start[job] + limit
    insert_predicted(world, job)
    note_neighbours(world, job)
    return NO_FAULT


@lean
def end_job(world: World, job: int, now: int) -> None:
    """Remove a job from its nodes and give the cores that come free to the owner of each node."""
    resident, share, s, blocks = world.nodes.resident, world.nodes.share, world.scalars, world.free_in_block
    remove_predicted(world, job)
    account(world, job, now)
    if world.jobs.shared[job] > 0:
        note_neighbours(world, job)
    world.jobs.state[job], world.end[job] = ENDED, now
    if moves(world):
        world.away[job] = world.charged[job] = 0
    last, shared, freed = resident.shape[1] - 1, world.jobs.shared, 0
    for node in world.nodes.place[world.nodes.first[job] : world.nodes.first[job + 1]]:
        if resident[node, 1] == NOBODY:
            if sleeps(world):
                world.empty_since[node] = now
            resident[node, 0], share[node, 0] = NOBODY, 0
            blocks[node >> BLOCK_BITS] += 1
            freed += 1
            continue
        layer = 0
        while resident[node, layer] != job:
            layer += 1
        left = share[node, layer]
        for i in range(layer, last):
            resident[node, i], share[node, i] = resident[node, i + 1], share[node, i + 1]
        resident[node, last], share[node, last] = NOBODY, 0
        shared[resident[node, 0]] -= resident[node, 1] == NOBODY
        pass_cores(world, node, left)
    s[FREE] += freed + world.jobs.held[job]
    world.jobs.held[job] = 0


@lean
def pass_cores(world: World, node: int, cores: int) -> None:
    """Give cores that came free on a node to its first resident that may grow."""
    house = world.nodes
    for layer in range(house.resident.shape[1]):
        heir = house.resident[node, layer]
        if heir != NOBODY and world.jobs.cls[heir] == MALLEABLE:
            note_presence(world, heir, house.share[node, layer], house.share[node, layer] + cores)
            house.share[node, layer] += cores
            return


@lean
def note_change(world: World, job: int) -> None:
    """Mark the end of a job for recalculation."""
    s = world.scalars
    for other in world.changed[: s[CHANGES]]:
        if other == job:
            return
    world.changed[s[CHANGES]] = job
    s[CHANGES] += 1


@lean
def note_neighbours(world: World, job: int) -> None:
    """Mark the ends of a job and of all jobs on its nodes for recalculation."""
    note_change(world, job)
    if world.jobs.shared[job] == 0:
        return
    for node in world.nodes.place[world.nodes.first[job] : world.nodes.first[job + 1]]:
        for other in world.nodes.resident[node]:
            if other != NOBODY:
                note_change(world, other)


@lean
def update_ends(world: World, now: int) -> None:
    """Recalculate the ends of all jobs marked for it, and the number of nodes that come free then.

    A job that waits for a container on its nodes does no work until its start, whatever its rate.
    """
    s = world.scalars
    if s[RESIDUAL] > 0:
        note_interference(world)
    for job in world.changed[: s[CHANGES]]:
        if world.jobs.state[job] != RUNNING:
            continue
        account(world, job, now)
        before, world.rate[job] = world.rate[job], rate_of(world, job)
        world.left[job] += max(0, world.jobs.start[job] - now) * (world.rate[job] - before)
        if moves(world):
            charge(world, job)
        if not is_pool(world):
            s[RESIZES] += world.rate[job] != before and world.jobs.start[job] < now
        world.jobs.leaves[job] = nodes_left_last(world, job)
        done = now + max(0, -((boundary(world, job) - world.left[job]) // world.rate[job]))
        move(world, job, min(done, at_the_latest(world, job)))
    s[CHANGES] = 0


@lean
def boundary(world: World, job: int) -> int:
    """Return how much work a job has left when its demand next changes; 0 if it does not change again."""
    if len(world.upcoming) == 0:
        return 0
    row = world.upcoming[job]
    return int(world.phases[row, LEFT]) if world.phases[row, JOB] == job else 0


@lean
def account(world: World, job: int, now: int) -> None:
    """Count the work that a job has done and lost since its shares last changed."""
    passed = now - world.jobs.since[job]
    world.left[job] -= world.rate[job] * passed
    world.jobs.lost[job] += (full_rate(world, job) - world.rate[job]) * passed
    world.jobs.since[job] = now


@lean
def nodes_left_last(world: World, job: int) -> int:
    """Return on how many nodes a job is predicted to be the last; of equal ends, the later submitted job is last."""
    house, ends, count = world.nodes, world.jobs.ends, 0
    for node in house.place[house.first[job] : house.first[job + 1]]:
        count += 1
        for other in house.resident[node]:
            if other != NOBODY and (ends[other] > ends[job] or (ends[other] == ends[job] and other > job)):
                count -= 1
                break
    return count


@lean
def rate_of(world: World, job: int) -> int:
    """Return how much of its work a job does in a second: in cores, or by the speeds of a pool."""
    if is_pool(world):
        return slowed_speed(world, job, world.speed[world.jobs.held[job]])
    house, total, least = world.nodes, 0, NEVER
    for node in house.place[house.first[job] : house.first[job + 1]]:
        share = house.share[node, layer_of(world, job, node)]
        if share == 0:
            continue
        if len(world.node_speed) > 0:
            share *= world.node_speed[node]
        total += share
        least = min(least, share)
    if moves(world) and world.away[job] > 0:
        return rate_on_fewer(world, job, least, total)
    return int(least * world.jobs.nodes[job] if world.scalars[MODEL] == WORST else total)
