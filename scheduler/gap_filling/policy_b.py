# SPDX-License-Identifier: Apache-2.0
"""Policy B: a container runs until a regular job needs its node.

The regular schedule is made as always; it ignores containers on nodes. A job that starts on a node with a container
waits until that is saved, and so do jobs that start there after it. If the policy had planned exactly that start, the
save begins earlier by the time it takes, but not before the plan was known. A container that has nothing to save is
dropped. One that cannot be saved in time is killed, if regular jobs must not wait, or moves live to an empty node, if
there is one and that is quicker. Empty nodes are filled after all other events of an instant, from the lowest number
on.

The loop consists of the same parts as that of `engine.event_loop.advance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.end_order import insert_predicted, remove_predicted
from drom.scheduler.engine.event_loop import (
    FAILED,
    MORE,
    OVER,
    STOPPED,
    apply_answer,
    handle_next,
    is_turn,
    next_instant,
)
from drom.scheduler.engine.node_shares import note_neighbours, set_limit, update_ends
from drom.scheduler.engine.state import BUSY, CHANGES, CORES, EVENTS, FAULT, FREE, NO_FAULT, NOW, WAKE, view
from drom.scheduler.gap_filling.containers import (
    DUE,
    PENDING_COUNT,
    TENANTS,
    arrive,
    attach,
    detach,
    drop,
    is_any_waiting,
    next_arrival,
    put_back,
    take_next,
    time_left,
    work,
)
from drom.scheduler.interface import NEVER, NOBODY, PLACE, PLAN, START, lean

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.scheduler.engine.state import World
    from drom.scheduler.gap_filling.containers import Containers
    from drom.scheduler.interface import Actions, Event, Floats, Ints, State

RESTORE, SAVE, SPEED, MIGRATE, KILL = range(5)
"""Places in the options of filling."""


def advance_filled(  # noqa: PLR0917 - numba wants them by position
    decide: Callable[[State, Event, Floats, Actions], int],
    world: World,
    box: Containers,
    how: Ints,
    options: Floats,
    actions: Actions,
    until: int,
    budget: int,
) -> int:
    """Handle at most `budget` instants, none after `until`, and the containers' own times between them."""
    s = world.scalars
    for _ in range(budget):
        regular = next_instant(world)
        now = min(regular, box.scalars[DUE], next_arrival(box))
        if regular == NEVER:
            return OVER
        if now > until:
            return STOPPED
        s[BUSY] += (len(world.nodes.up) - s[FREE]) * (now - s[NOW])
        s[NOW] = now
        finish(box, now)
        arrive(box, now)
        if regular == now:
            event = handle_next(world, now)
            if event.kinds != 0 and is_turn(world, now):
                s[EVENTS] += 1
                actions.used[:] = 0
                s[WAKE] = decide(view(world), event, options, actions)
                note_plans(world, box, actions)
                apply_answer(world, actions, event.kinds)
                if s[FAULT] != NO_FAULT:
                    return FAILED
                clear(world, box, how, actions)
        if now < next_instant(world) < NEVER:
            fill(world, box, how, now)
    return MORE


@lean
def finish(box: Containers, now: int) -> None:
    """Remove the containers that are complete at `now`, and queue those that have been saved."""
    s, kept = box.scalars, 0
    if s[DUE] > now:
        return
    s[DUE] = NEVER
    for one in box.pending[: s[PENDING_COUNT]]:
        if box.due[one] <= now:
            if box.node[one] == NOBODY:
                put_back(box, one)
            else:
                complete(box, one)
            box.due[one] = NEVER
        if box.due[one] == NEVER:
            box.listed[one] = 0
            continue
        s[DUE] = min(s[DUE], box.due[one])
        box.pending[kept] = one
        kept += 1
    s[PENDING_COUNT] = kept


@lean
def complete(box: Containers, one: int) -> None:
    """Remove a container that has done all its work."""
    box.worked[one] += box.due[one] - box.begin[one]
    box.done[one] = box.saved[one] = box.need[one]
    box.end[one] = box.due[one]
    detach(box, one, box.due[one])


@lean
def await_due(box: Containers, one: int, due: int) -> None:
    """Schedule the next check of a container; NEVER: none."""
    s = box.scalars
    box.due[one] = due
    s[DUE] = min(s[DUE], due)
    if due != NEVER and not box.listed[one]:
        box.listed[one] = 1
        box.pending[s[PENDING_COUNT]] = one
        s[PENDING_COUNT] += 1


@lean
def note_plans(world: World, box: Containers, actions: Actions) -> None:
    """Record when the planned start of a job became known, for each changed plan."""
    jobs = world.jobs.planned
    for row in actions.rows[: min(actions.used[0], len(actions.rows))]:
        if row[0] == PLAN and 0 <= row[1] < len(jobs) and jobs[row[1]] != row[2]:
            box.told[row[1]] = world.scalars[NOW]


@lean
def clear(world: World, box: Containers, how: Ints, actions: Actions) -> None:
    """Remove containers from the nodes of the jobs that have just started, and delay these jobs until that is done.

    A guest begins no earlier than the jobs that wait on its nodes for a container that is still there.
    """
    house, now = world.nodes, world.scalars[NOW]
    for row in actions.rows[: actions.used[0]]:
        if row[0] not in (START, PLACE):
            continue
        job, delay = row[1], 0
        notice = box.told[job] if world.jobs.planned[job] == now else now
        for node in house.place[house.first[job] : house.first[job + 1]]:
            if box.tenant[node] != NOBODY:
                delay = max(delay, evict(world, box, how, box.tenant[node], min(notice, now), now))
            for other in house.resident[node]:
                if other != NOBODY:
                    delay = max(delay, world.jobs.start[other] - now)
        if delay > 0:
            postpone(world, job, delay)
            box.delay[job] = delay


@lean
def evict(  # noqa: PLR0917 - numba wants them by position
    world: World, box: Containers, how: Ints, one: int, notice: int, now: int
) -> int:
    """Remove a container from a node that a regular job gets now; return how long that job has to wait."""
    unsaved, begin = box.done[one] > box.saved[one], box.begin[one]
    stop = max(notice, now - how[SAVE])
    if begin >= stop and not unsaved:
        kill(box, how[SPEED], one, now)
        return 0
    stop = max(stop, begin)
    delay = stop + how[SAVE] - now
    if delay > 0 and how[KILL]:
        kill(box, how[SPEED], one, now)
        return 0
    ready = max(now, begin)
    if ready + how[MIGRATE] < stop + how[SAVE] and delay > 0:
        target = empty_node(world, box)
        if target != NOBODY:
            migrate(box, how, one, target, now)
            return int(ready + how[MIGRATE] - now)
    work(box, one, stop - begin, how[SPEED])
    box.saved[one] = box.done[one]
    box.overhead[one] += how[SAVE]
    box.saves[one] += 1
    detach(box, one, stop + how[SAVE])
    if delay > 0:
        await_due(box, one, stop + how[SAVE])
    else:
        await_due(box, one, NEVER)
        put_back(box, one)
    return int(delay)


@lean
def migrate(box: Containers, how: Ints, one: int, target: int, now: int) -> None:
    """Move a container live to another node; it occupies both until that is done, and does not work meanwhile."""
    ready = max(now, box.begin[one])
    work(box, one, ready - box.begin[one], how[SPEED])
    box.overhead[one] += how[MIGRATE]
    detach(box, one, ready + how[MIGRATE])
    attach(box, one, target, now, ready + how[MIGRATE] - now)
    left = time_left(box, one, how[SPEED])
    await_due(box, one, NEVER if left == NEVER else box.begin[one] + left)


@lean
def kill(box: Containers, speed: int, one: int, now: int) -> None:
    """End a container at once; it continues later from its last save."""
    drop(box, one, now, speed)
    await_due(box, one, NEVER)
    put_back(box, one)


@lean
def postpone(world: World, job: int, delay: int) -> None:
    """Delay the beginning of a job that has just started, on the nodes that it has already.

    Jobs that share these nodes lend cores for that much longer, so their limits grow by what they lose, rounded up.
    """
    jobs, s = world.jobs, world.scalars
    remove_predicted(world, job)
    jobs.start[job] += delay
    jobs.ends[job] += delay
    insert_predicted(world, job)
    world.left[job] += delay * world.rate[job]
    note_neighbours(world, job)
    for other in world.changed[: s[CHANGES]]:
        if other != job:
            set_limit(world, other, jobs.limit[other] - (-delay * world.given[job] // s[CORES]), s[NOW])
    update_ends(world, s[NOW])


@lean
def empty_node(world: World, box: Containers) -> int:
    """Return the first node without any job or container; NOBODY if there is none."""
    for node in range(len(box.tenant)):
        if is_empty(world, box, node):
            return node
    return NOBODY


@lean
def is_empty(world: World, box: Containers, node: int) -> bool:
    """Return whether a node is up and has neither job nor container."""
    return bool(world.nodes.up[node] and world.nodes.resident[node, 0] == NOBODY and box.tenant[node] == NOBODY)


@lean
def fill(world: World, box: Containers, how: Ints, now: int) -> None:
    """Give empty nodes to containers that wait."""
    vacant, node = world.scalars[FREE] - box.scalars[TENANTS], 0
    while vacant > 0 and is_any_waiting(box):
        while not is_empty(world, box, node):
            node += 1
        one = take_next(box)
        attach(box, one, node, now, how[RESTORE])
        left = time_left(box, one, how[SPEED])
        await_due(box, one, NEVER if left == NEVER else box.begin[one] + left)
        vacant -= 1
