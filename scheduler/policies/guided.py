# SPDX-License-Identifier: Apache-2.0
"""Starts that a guide has decided on, outside of the compiled loop: `cp` and `resources` carry them out."""

from __future__ import annotations

from drom.scheduler.interface import NEVER, Actions, Floats, State, plan, routine, start


@routine
def carry_out(state: State, begins: Floats, actions: Actions) -> int:
    """Start the waiting jobs that `begins` plans for now, and record the planned starts of others; return NEVER.

    `begins` has the planned start of each job, in seconds; NEVER for a job without a plan.
    """
    for job in state.queue:
        begin = begins[job]
        if begin == state.now:
            start(actions, job)
        elif begin != NEVER and begin != state.jobs.planned[job]:
            plan(actions, job, int(begin))
    return NEVER
