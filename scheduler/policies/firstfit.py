# SPDX-License-Identifier: Apache-2.0
"""First fit: every waiting job that fits starts, in order; nothing is reserved for those that do not.

The rigid baseline of Kale, Kumar and DeSouza (CCGRID 2002), in the manner of PBS and DQS. Large jobs may wait for long.
"""

from __future__ import annotations

from drom.scheduler.interface import NEVER, Actions, Event, Floats, State, start


def decide(state: State, _event: Event, _options: Floats, actions: Actions) -> int:
    """Start every job that fits on what those before it leave."""
    free = state.free
    for job in state.queue:
        if free == 0:
            break
        if state.jobs.nodes[job] <= free:
            start(actions, job)
            free -= state.jobs.nodes[job]
    return NEVER
