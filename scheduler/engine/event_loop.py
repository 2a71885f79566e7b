# SPDX-License-Identifier: Apache-2.0
"""The event loop: determines the next event, calls the policy, and carries out its answer.

Times are whole seconds. The event rules differ in the events that one call of the policy covers:

instant  all jobs that end at an instant end, nodes go down or come back, all jobs that are submitted join the queue,
         then one call (the default)
pyss     a call per event; submissions before ends; a submission leads to a call only if the new job fits; jobs whose
         limit is reached count as ended from the first event of that second on
cqsim    a call per event; ends before submissions; waiting jobs are known by their real run times

Jobs that end together end in the order in which they started. A call that the policy requested itself comes last. On a
machine with time slots the policy is called at the end of a slot, for all events in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.end_order import first_end, pop
from drom.scheduler.engine.node_failures import change_nodes, next_change
from drom.scheduler.engine.node_shares import (
    account,
    boundary,
    end_job,
    note_change,
    place_job,
    resize_job,
    set_limit,
    start_job,
    update_ends,
)
from drom.scheduler.engine.pool import allot
from drom.scheduler.engine.prediction_updates import predict_submitted, record_end
from drom.scheduler.engine.queue_order import compact_queue, enqueue
from drom.scheduler.engine.state import (
    BUSY,
    CQSIM,
    CULPRIT,
    DOWN,
    EVENTS,
    FAULT,
    FORESEES,
    FREE,
    IN_THE_PAST,
    LEAST,
    MOST,
    NO_FAULT,
    NODE,
    NOT_RUNNING,
    NOT_WAITING,
    NOW,
    OUTAGE,
    PYSS,
    RULE,
    RUNNERS,
    SHORTENED,
    SLOT,
    STARTS,
    SUBMISSIONS,
    TOO_MANY_ROWS,
    UNKNOWN_ACTION,
    WAKE,
    WRONG_MACHINE,
    is_pool,
    view,
)
from drom.scheduler.interface import (
    ALLOT,
    DEMAND_CHANGED,
    JOB_ENDED,
    LIMIT,
    NEVER,
    NOBODY,
    PLACE,
    PLAN,
    RESIZE,
    RUNNING,
    START,
    SUBMITTED,
    TICK,
    WAITING,
    Event,
    lean,
    rare,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Actions, Floats, Ints, Jobs, State
    from drom.scheduler.predictors.knowledge import RuntimeKnowledge

OVER, STOPPED, MORE, FAILED = 0, 1, 2, 3
"""How `advance` ends: no event is left, the next is after `until`, the budget is used up, the policy did wrong."""


def advance(  # noqa: PLR0917 - numba wants them by position
    decide: Callable[[State, Event, Floats, Actions], int],
    predict: Callable[[Jobs, RuntimeKnowledge, int], int],
    world: World,
    options: Floats,
    actions: Actions,
    until: int,
    budget: int,
) -> int:
    """Handle at most `budget` instants, none after `until`."""
    s = world.scalars
    for _ in range(budget):
        now = next_instant(world)
        if now == NEVER:
            return OVER
        if now > until:
            return STOPPED
        s[BUSY] += (len(world.nodes.up) - s[FREE] - s[DOWN]) * (now - s[NOW])
        s[NOW] = now
        submitted = s[SUBMISSIONS]
        event = handle_next(world, now)
        if s[FORESEES]:
            predict_submitted(world, predict, submitted, now)
        if event.kinds == 0 or not is_turn(world, now):
            continue
        s[EVENTS] += 1
        actions.used[:] = 0
        s[WAKE] = decide(view(world), event, options, actions)
        apply_answer(world, actions, event.kinds)
        if s[FAULT] != NO_FAULT:
            return FAILED
    return MORE


@lean
def is_turn(world: World, now: int) -> bool:
    """Return whether the policy may be called now; if not, schedule the call for the end of this time slot."""
    slot = world.scalars[SLOT]
    if slot == 1 or now % slot == 0:
        return True
    world.scalars[WAKE] = now - now % slot + slot
    return False


@lean
def apply_answer(world: World, actions: Actions, kinds: int) -> None:
    """Carry out the policy's answer; record a fault in it, or in the time of the next call that it requests."""
    s = world.scalars
    now, before = s[NOW], s[STARTS] + s[SHORTENED]
    apply_actions(world, actions, kinds)
    if s[FAULT] == NO_FAULT and (s[WAKE] < now or (s[WAKE] == now and s[STARTS] + s[SHORTENED] == before)):
        s[FAULT] = IN_THE_PAST


@lean
def next_instant(world: World) -> int:
    """Return the time of the next event; NEVER if there is none."""
    s, jobs = world.scalars, world.jobs
    then = s[WAKE]
    if s[SUBMISSIONS] < len(jobs.submit):
        then = min(then, jobs.submit[s[SUBMISSIONS]])
    return int(min(then, first_end(world), next_change(world)))


@lean
def handle_next(world: World, now: int) -> Event:
    """Process the events that one call of the policy covers and return them; no kind: the policy need not be called."""
    rule = world.scalars[RULE]
    if rule == PYSS:
        return handle_as_pyss(world, now)
    if rule == CQSIM:
        return handle_as_cqsim(world, now)
    return handle_together(world, now)


@lean
def handle_together(world: World, now: int) -> Event:
    """Process the ends and changes of demand of this instant, then the changes of nodes, then all submissions."""
    kinds, count, subject = 0, 0, NOBODY
    while ends_now(world, now):
        subject = world.heap[0]
        kinds |= end_or_change(world, now)
        count += 1
    if next_change(world) <= now:
        first = world.scalars[OUTAGE]
        kinds |= change_nodes(world, now)
        count += world.scalars[OUTAGE] - first
        subject = world.outages[first, NODE]
    while arrives_now(world, now):
        subject = submit_next(world)
        kinds |= SUBMITTED
        count += 1
    if world.scalars[WAKE] <= now:
        kinds |= TICK
    return Event(kinds, subject if count == 1 else NOBODY)


@lean
def handle_as_cqsim(world: World, now: int) -> Event:
    """Process one event: an end, otherwise a submission, otherwise a requested call."""
    if ends_now(world, now):
        subject = world.heap[0]
        return Event(end_or_change(world, now), subject)
    if arrives_now(world, now):
        return Event(SUBMITTED, submit_next(world))
    return Event(TICK, NOBODY)


@lean
def handle_as_pyss(world: World, now: int) -> Event:
    """End all jobs that have reached their limit, then process one event: a submission, an end or a requested call."""
    s, jobs = world.scalars, world.jobs
    while s[RUNNERS] > 0 and jobs.ends[world.running[0]] <= now:
        end_job(world, world.running[0], now)
    update_ends(world, now)
    if arrives_now(world, now):
        job = submit_next(world)
        return Event(SUBMITTED if jobs.nodes[job] <= s[FREE] else 0, job)
    if ends_now(world, now):
        subject = world.heap[0]
        return Event(end_or_change(world, now), subject)
    return Event(TICK, NOBODY)


@lean
def ends_now(world: World, now: int) -> bool:
    """Return whether another job ends, or changes its demand, at this instant."""
    return first_end(world) <= now


@lean
def arrives_now(world: World, now: int) -> bool:
    """Return whether another job is submitted at this instant."""
    s = world.scalars
    return bool(s[SUBMISSIONS] < len(world.jobs.submit) and world.jobs.submit[s[SUBMISSIONS]] <= now)


@lean
def end_or_change(world: World, now: int) -> int:
    """End the job of the next event, or change its demand; return the kind of the event."""
    if len(world.upcoming) > 0 and change_demand(world, world.heap[0], now):
        return DEMAND_CHANGED
    job = pop(world)
    if world.jobs.state[job] == RUNNING:
        end_job(world, job, now)
        update_ends(world, now)
        if world.scalars[FORESEES]:
            record_end(world, job, now)
    return JOB_ENDED


@rare
def change_demand(world: World, job: int, now: int) -> bool:
    """Start the phases that a job has reached; return whether there was one."""
    if boundary(world, job) == 0:
        return False
    account(world, job, now)
    while world.left[job] <= boundary(world, job):
        phase = world.phases[world.upcoming[job]]
        world.jobs.least[job], world.jobs.most[job] = phase[LEAST], phase[MOST]
        world.upcoming[job] += 1
        if boundary(world, job) == 0:
            break
    note_change(world, job)
    update_ends(world, now)
    return True


@lean
def submit_next(world: World) -> int:
    """Add the next submitted job to the queue, behind all jobs of its priority, and return it."""
    job = world.scalars[SUBMISSIONS]
    enqueue(world, job)
    world.scalars[SUBMISSIONS] += 1
    return int(job)


@lean
def apply_actions(world: World, actions: Actions, kinds: int) -> None:
    """Carry out the rows of an answer in order; at the first row that cannot be done, record the fault and stop."""
    s = world.scalars
    before = s[STARTS]
    if actions.used[0] > len(actions.rows) or actions.used[1] > len(actions.nodes):
        s[FAULT] = TOO_MANY_ROWS
        return
    for row in actions.rows[: actions.used[0]]:
        s[CULPRIT] = row[1]
        s[FAULT] = apply_action(world, row, actions.nodes[row[2] : row[2] + row[3]])
        if s[FAULT] != NO_FAULT:
            return
        if world.order[row[1]] >= before:
            world.cause[row[1]] = kinds
    update_ends(world, s[NOW])
    if s[STARTS] > before:
        compact_queue(world)


@lean
def apply_action(world: World, row: Ints, nodes: Ints) -> int:  # noqa: PLR0911 - a table of actions
    """Carry out one action and return the fault, or NO_FAULT."""
    kind, job, now = row[0], row[1], world.scalars[NOW]
    if job < 0 or job >= len(world.queue):
        return UNKNOWN_ACTION
    state = world.jobs.state[job]
    if kind in (START, PLACE, PLAN) and state != WAITING:
        return NOT_WAITING
    if kind in (RESIZE, LIMIT) and state != RUNNING:
        return NOT_RUNNING
    if kind in (START, PLACE, RESIZE, ALLOT):
        return start_or_resize(world, row, nodes)
    if kind == LIMIT:
        world.scalars[SHORTENED] += row[2] < world.jobs.limit[job]
        return set_limit(world, job, row[2], now)
    if kind == PLAN:
        world.jobs.planned[job] = row[2]
        return NO_FAULT
    return UNKNOWN_ACTION


@lean
def start_or_resize(world: World, row: Ints, nodes: Ints) -> int:
    """Start or resize a job, on nodes or in a pool, and return the fault, or NO_FAULT."""
    kind, job, now = row[0], row[1], world.scalars[NOW]
    if is_pool(world) != (kind == ALLOT):
        return WRONG_MACHINE
    if kind == ALLOT:
        return allot(world, job, row[4], now)
    if kind == START:
        return start_job(world, job, now)
    if kind == PLACE:
        return place_job(world, job, nodes, row[4], now)
    return resize_job(world, job, nodes, row[4])
