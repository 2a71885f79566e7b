# SPDX-License-Identifier: Apache-2.0
"""The outcome of the contracts of the jobs of a simulation, and the check that they can be met."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from drom.scheduler.engine.state import JOB, MOST, SPEED_UNIT, is_pool
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import ENDED, HARD, NEVER, PAYOFF, SOFT
from drom.scheduler.policies.pool_math import worth
from drom.scheduler.simulator.failures import lost_jobs

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.contracts import Contracts


def check_possible(run: Simulation, contracts: Contracts | None) -> None:
    """Raise SchedulerError for a deadline that a job misses even if it starts at once on all that it can use."""
    if contracts is None:
        return
    shortest = shortest_times(run)
    for job in np.flatnonzero(run.world.contracts[:, SOFT] < run.work.submit + shortest):
        number, soft = int(run.work.job[job]), run.world.contracts[job, SOFT] - run.work.submit[job]
        place = contracts.places.get(number, "--contracts")
        msg = (
            f"{place}: job {number} takes at least {shortest[job]:,} s, and cannot end {soft:,} s after its submission."
        )
        raise SchedulerError(msg)


def shortest_times(run: Simulation) -> Ints:
    """Return the seconds that each job takes with the most it may ever have; at its limit it ends with work left."""
    world = run.world
    if not is_pool(world):
        fastest = int(world.node_speed.max(initial=SPEED_UNIT))
        return np.asarray(np.minimum(-(-world.run * SPEED_UNIT // fastest), world.jobs.limit), np.int64)
    most = world.jobs.most.copy()
    np.maximum.at(most, world.phases[:-1, JOB], world.phases[:-1, MOST])
    return np.asarray(-(-world.run * world.speed[world.jobs.nodes] // world.speed[most]), np.int64)


def contract_outcome(run: Simulation) -> dict[str, Any] | None:
    """Return the outcome of the contracts of ended jobs, and their largest possible pay-off; None without contracts."""
    table, world = run.world.contracts, run.world
    if not len(table):
        return None
    ended = np.setdiff1d(np.flatnonzero(world.jobs.state == ENDED), lost_jobs(run))
    bound = ended[table[ended, SOFT] < NEVER]
    met = {name: world.end[bound] <= table[bound, column] for name, column in (("soft", SOFT), ("hard", HARD))}
    return {
        "payoff": sum(worth(table, int(job), int(world.end[job])) for job in ended),
        "payoff_offered": int(table[ended, PAYOFF].sum()),
        "contracts": len(bound),
        "soft_deadlines_met": float(met["soft"].mean()) if len(bound) else None,
        "hard_deadlines_met": float(met["hard"].mean()) if len(bound) else None,
    }
