# SPDX-License-Identifier: Apache-2.0
"""Contracts on the jobs of the CCGRID paper (`adaptive`): the results of first fit, equipartition and `payoff`.

The paper names pay-off and deadlines as its next step and has no experiment with them; this one is drom's own.
Contracts are drawn by the defaults of `drom.workloads.contracts`: soft deadlines 2 to 6 times the time on all
processors, hard ones twice as late, log-normal prices of a processor-second. All three policies get the same jobs with
the same contracts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.contracts import contract_outcome
from drom.scheduler.analysis.estimates import Estimate, estimate, verdict
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.reproduction.adaptive.experiment import (
    ADAPTIVE,
    LOADS,
    MILLI,
    MODEL,
    PROCESSORS,
    RIGID,
    SEEDS,
    jobs_of,
)
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.contracts import Terms, draw_contracts
from drom.workloads.speedup import run_time_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.workloads.contracts import Contracts
    from drom.workloads.workload import Workload

COUNT = 2000
"""Jobs of a simulation."""
PAYOFF = "payoff"
POLICIES = (RIGID, ADAPTIVE, PAYOFF)
WORDS = {
    "payoff": "share of the pay-off that is earned",
    "soft": "share of the soft deadlines that are met",
    "hard": "share of the hard deadlines that are met",
}


class Level(NamedTuple):
    """A metric at a load under each policy; gains are `payoff` minus each of the other policies, on the same jobs."""

    load: float
    metric: str
    levels: dict[str, Estimate]
    gains: dict[str, Estimate]

    def verdict(self, policy: str) -> str:
        """Whether `payoff` does better or worse than another policy, or the same as far as the interval tells."""
        return verdict(self.gains[policy])


def contracts_on(work: Workload, seed: int) -> Contracts:
    """Return contracts drawn from the time that each job takes on all processors."""
    whole = run_time_on(PROCESSORS, work.run_time, work.allocated, MODEL.parallelism, MODEL.sigma)
    alone = np.maximum(1, np.ceil(whole)).astype(np.int64)
    return draw_contracts(work.job, alone, np.full(len(work), PROCESSORS), Terms(), seed)


def shares(work: Workload, contracts: Contracts, policy: str, stall: float) -> dict[str, float]:
    """Return the pay-off and the deadlines met under a policy, as fractions of all."""
    model = MODEL._replace(stall=stall).by_ticks(MILLI)
    run = Simulation.of(work, Machine(PROCESSORS), load_policy(policy), adaptive=model, contracts=contracts)
    run.run()
    told = contract_outcome(run) or {}
    return {
        "payoff": told["payoff"] / told["payoff_offered"],
        "soft": told["soft_deadlines_met"],
        "hard": told["hard_deadlines_met"],
    }


def levels(seed: int, stall: float, show: Callable[[float], None]) -> list[Level]:
    """Make all simulations, with SEEDS seeds from `seed` on; `show` gets the fraction that is done."""
    found = []
    for done, load in enumerate(LOADS, 1):
        works = [(jobs_of(load, COUNT, one), one) for one in range(seed, seed + SEEDS)]
        bound = [(work, contracts_on(work, one)) for work, one in works]
        runs = {policy: [shares(*pair, policy, stall) for pair in bound] for policy in POLICIES}
        for metric in WORDS:
            values = {policy: np.array([one[metric] for one in runs[policy]]) for policy in POLICIES}
            gains = {other: estimate(values[PAYOFF] - values[other]) for other in (RIGID, ADAPTIVE)}
            found.append(Level(load, metric, {name: estimate(those) for name, those in values.items()}, gains))
        show(done / len(LOADS))
    return found
