# SPDX-License-Identifier: Apache-2.0
"""The jobs of a simulation that run and wait at a second. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.engine.state import QUEUED, RUNNERS, SUBMISSIONS

if TYPE_CHECKING:
    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Ints


def present_jobs(world: World, now: int) -> tuple[Ints, Ints]:
    """Return the jobs that run, and those that wait, once all events up to the second `now` have happened."""
    s = world.scalars
    running = world.running[: s[RUNNERS]]
    coming = np.arange(s[SUBMISSIONS], np.searchsorted(world.jobs.submit, now, side="right"))
    return running[world.end[running] > now], np.concatenate((world.queue[: s[QUEUED]], coming))
