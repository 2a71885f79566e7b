# SPDX-License-Identifier: Apache-2.0
"""First come, first served: jobs start in order; the first that does not fit stops all behind it."""

from __future__ import annotations

from drom.scheduler.interface import NEVER, Actions, Event, Floats, State, start


def decide(state: State, _event: Event, _options: Floats, actions: Actions) -> int:
    """Start heads of the queue while they fit."""
    free = state.free
    for job in state.queue:
        if state.jobs.nodes[job] > free:
            break
        start(actions, job)
        free -= state.jobs.nodes[job]
    return NEVER
