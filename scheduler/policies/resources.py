# SPDX-License-Identifier: Apache-2.0
"""Backfilling over cores, memory and counted resources of unlike nodes, by `drom.scheduler.allocation`.

A live cluster gives jobs parts of nodes. In `drom simulate`, whose logs know only whole nodes, jobs start at the times
that `drom.scheduler.allocation.guide` finds: with ``depth=1`` that is EASY backfilling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.allocation.backfill import MOST_DEPTH
from drom.scheduler.policies.guided import carry_out

if TYPE_CHECKING:
    from drom.scheduler.interface import Actions, Event, Floats, State

OPTIONS = {"depth": 1.0, "order": 0.0}
"""How many waiting jobs have reservations (0: first-fit), and the order in which jobs are considered."""
WORDS = {"order": {"arrival": 0.0, "walltime": 1.0}}
"""By arrival as the queue has it, or the shortest limit first."""
PARAMETERS = len(OPTIONS)


def check(options: dict[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    depth, order = options.values()
    if not (0 <= depth <= MOST_DEPTH and depth.is_integer()):
        return f"depth is a whole number from 0 to {MOST_DEPTH}."
    return "" if order in WORDS["order"].values() else f"order is {' or '.join(WORDS['order'])}."


def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
    """Start the waiting jobs that may start now, and record the reservations of others."""
    return carry_out(state, options[PARAMETERS:], actions)
