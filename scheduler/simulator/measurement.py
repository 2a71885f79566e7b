# SPDX-License-Identifier: Apache-2.0
"""The measurements of a simulation for policies that use them: the speed of jobs, at the sizes at which they run.

The speed at a size at which a job has not run so far is unknown. A job with fewer cores on some of its nodes is not
measured, as on real nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.engine.state import CORES, RUNNERS
from drom.scheduler.policies.scaling import SCALE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Ints


def measure(world: World) -> None:
    """Record the speed of the running jobs of a simulation: in both its models, proportional to their cores."""
    running, cores = world.running[: world.scalars[RUNNERS]], world.scalars[CORES]
    whole = world.rate[running] == world.jobs.nodes[running] * cores
    world.rates[running[whole], cores] = SCALE
    for job in running[~whole]:
        if size := size_of(world, int(job)):
            world.rates[job, size] = size * SCALE // cores


def size_of(world: World, job: int) -> int:
    """Return the number of cores that a job has on each of its nodes; 0 if it is not the same on all."""
    house = world.nodes
    nodes = house.place[house.first[job] : house.first[job + 1]]
    shares = set(house.share[nodes][house.resident[nodes] == job].tolist())
    return int(shares.pop()) if len(shares) == 1 else 0


def row_of(known: Mapping[int, float], cores: int) -> Ints:
    """Return rates by cores as policies read them, scaled so that the greatest is SCALE."""
    row = np.zeros(cores + 1, np.int64)
    most = max(known.values(), default=0.0)
    for size, rate in known.items():
        if 0 < size <= cores and rate > 0:
            row[size] = max(1, round(SCALE * (rate / most)))
    return row
