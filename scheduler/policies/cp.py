# SPDX-License-Identifier: Apache-2.0
"""Constraint programming (Bridi et al.): jobs start at the times planned by `drom.scheduler.cp.guide`.

The plan follows the parameters in `options`: a start for each job, NEVER if it is not planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.policies.guided import carry_out

if TYPE_CHECKING:
    from drom.scheduler.interface import Actions, Event, Floats, State

OPTIONS = {"window": 8.0, "work": 0.01, "most": 150.0}
"""Jobs that CP-SAT orders at once, its deterministic time per call, and above how many waiting jobs a rule decides."""
PARAMETERS = len(OPTIONS)


def check(options: dict[str, float]) -> str:
    """Return what is wrong with the parameters; empty if nothing is."""
    window, work, most = options.values()
    if not (0 <= window <= 100 and window.is_integer()):
        return "window is a whole number from 0 to 100."
    if not 0 < work <= 1000:
        return "work is a number above 0, up to 1000."
    return "" if most >= 0 and most.is_integer() else "most is a whole number of at least 0."


def decide(state: State, _event: Event, options: Floats, actions: Actions) -> int:
    """Start the waiting jobs that are planned for now, and record the planned starts of the others."""
    return carry_out(state, options[PARAMETERS:], actions)
