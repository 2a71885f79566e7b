# SPDX-License-Identifier: Apache-2.0
"""Constraint programming (Bridi et al.): jobs start at the times that `scheduler.cp.log` has found for them.

The search is no loop over arrays that could be compiled, so it is made beforehand, event by event and without knowing
what comes later; this policy only carries out what it decided.
"""

from __future__ import annotations

from scheduler.interface import NEVER, Actions, Event, Floats, State, start

OPTIONS = {"window": 8.0, "work": 0.01, "most": 150.0}
"""Jobs that CP-SAT orders at once, its deterministic time per call, and above how many waiting jobs a rule decides."""


def check(options: dict[str, float]) -> str:
    """Return what is wrong with the parameters; empty where nothing is."""
    window, work, most = options.values()
    if not (0 <= window <= 100 and window.is_integer()):
        return "window is a whole number from 0 to 100"
    if not 0 < work <= 1000:
        return "work is a number above 0, up to 1000"
    return "" if most >= 0 and most.is_integer() else "most is a whole number of at least 0"


def decide(state: State, _event: Event, _options: Floats, actions: Actions) -> int:
    """Start the waiting jobs whose time has come."""
    for job in state.queue:
        if state.jobs.planned[job] <= state.now:
            start(actions, job)
    return NEVER
