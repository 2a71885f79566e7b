# SPDX-License-Identifier: Apache-2.0
"""Calls of a policy, on a world with the execution of its answer or on a state; compiled as the simulator's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.engine.event_loop import apply_action
from drom.scheduler.engine.node_shares import update_ends
from drom.scheduler.engine.queue_order import compact_queue
from drom.scheduler.engine.state import EVENTS, IN_THE_PAST, NO_FAULT, NOW, SHORTENED, STARTS, TOO_MANY_ROWS, WAKE, view
from drom.scheduler.interface import NEVER, NOBODY, Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Actions, Floats, Ints, State


def call_policy(  # noqa: PLR0917 - numba wants them by position
    decide: Callable[[State, Event, Floats, Actions], int],
    world: World,
    options: Floats,
    actions: Actions,
    kinds: int,
    subject: int,
    faults: Ints,
) -> int:
    """Call the policy, carry out each action that can be carried out, and return the number of faults.

    The first faults are written into `faults`, of shape ``(most, 2)``: the job, or NOBODY, and the kind of fault. After
    an answer with faults the policy is not called again in the same second, as it would answer the same.
    """
    s, wrong = world.scalars, 0
    now, before = s[NOW], s[STARTS] + s[SHORTENED]
    s[EVENTS] += 1
    actions.used[:] = 0
    s[WAKE] = decide(view(world), Event(kinds, subject), options, actions)
    rows = actions.used[0]
    if rows > len(actions.rows) or actions.used[1] > len(actions.nodes):
        rows, wrong = 0, 1
        faults[0, 0], faults[0, 1] = NOBODY, TOO_MANY_ROWS
    for row in actions.rows[:rows]:
        fault = apply_action(world, row, actions.nodes[row[2] : row[2] + row[3]])
        if fault != NO_FAULT:
            if wrong < len(faults):
                faults[wrong, 0], faults[wrong, 1] = row[1], fault
            wrong += 1
    update_ends(world, now)
    compact_queue(world)
    if s[WAKE] > now:
        return wrong
    if wrong == 0 and (s[WAKE] < now or s[STARTS] + s[SHORTENED] == before):
        wrong = 1
        faults[0, 0], faults[0, 1] = NOBODY, IN_THE_PAST
    if wrong > 0:
        s[WAKE] = NEVER
    return wrong


def ask(
    decide: Callable[[State, Event, Floats, Actions], int],
    state: State,
    event: Event,
    options: Floats,
    actions: Actions,
) -> int:
    """Call the policy, which writes its answer into `actions`; return the time of the next call."""
    actions.used[:] = 0
    return decide(state, event, options, actions)
