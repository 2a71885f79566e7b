# SPDX-License-Identifier: Apache-2.0
"""One call of a policy on a world, and what follows from its answer; machine code where the simulator's engine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.engine import obey
from scheduler.interface import Event
from scheduler.world import EVENTS, FAULT, WAKE, view

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.interface import Actions, Floats, State
    from scheduler.world import World


def answer(  # noqa: PLR0917 - numba wants them by position
    decide: Callable[[State, Event, Floats, Actions], int],
    world: World,
    options: Floats,
    actions: Actions,
    kinds: int,
    subject: int,
) -> int:
    """Ask the policy, carry out what it wants, and return what was wrong with that."""
    s = world.scalars
    s[EVENTS] += 1
    actions.used[:] = 0
    s[WAKE] = decide(view(world), Event(kinds, subject), options, actions)
    obey(world, actions, kinds)
    return int(s[FAULT])
