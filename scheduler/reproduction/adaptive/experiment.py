# SPDX-License-Identifier: Apache-2.0
"""The experiments of Kale, Kumar and DeSouza, "A malleable-job system for timeshared parallel machines" (CCGRID 2002):
adaptive jobs under equipartition and rigid ones under first fit, over the load.

Beside them, and not in the paper: equipartition that weighs what a change costs
(`drom.scheduler.policies.equipartition_cost`).

From the paper: 64 processors; Poisson arrivals; 100 iterations in 64.5 s on 64 processors, numbers of iterations
exponential with mean 100; rigid sizes, and minima of adaptive jobs, uniform from 1 to 64; maxima 64; 5 MB of data; 50
jobs on the cluster, 10,000 in the simulation. Both policies get the same jobs.

Assumed: the load factor is arrival rate times 64.5 s, the service time on the whole machine; the speedup, of which the
figure is lost, is Downey's with A = 64 and sigma = 1 (43 on 64 processors); data move over 100 Mb/s Ethernet; the cost
per processor is that measured on Platinum; the cluster's experiments are simulated too; every job runs to its end.
What is weighed is the cost of growing from 32 to 64 processors.
Times are whole milliseconds. Utilisation is the share of the processors that jobs have until the last one ends.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.estimates import Estimate, estimate, verdict
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.simulator.adaptive import PoolModel
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.workloads.speedup import downey
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.workloads.workload import Workload

PROCESSORS = 64
SERVICE_S = 64.5
"""The seconds of a job of mean length on all processors."""
MILLI = 1000
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
SEEDS = 10
JOBS = {"cluster": 50, "simulation": 10_000}
RIGID, ADAPTIVE = "firstfit", "equipartition"
RESPONSE, UTILISATION = "response_s", "utilisation"
MODEL = PoolModel(minimum=1, maximum=math.inf, parallelism=64, sigma=1, memory=5, bandwidth=12.5)


class Point(NamedTuple):
    """A metric at a load under each policy.

    `gain` is adaptive minus rigid, on the same jobs; `saved` is adaptive that weighs costs minus plain adaptive.
    """

    experiment: str
    load: float
    metric: str
    rigid: Estimate
    adaptive: Estimate
    gain: Estimate
    weighing: Estimate
    saved: Estimate

    @property
    def verdict(self) -> str:
        """The result for adaptive jobs: better, worse, or the same within the interval."""
        return self._verdict(self.gain)

    @property
    def verdict_on_weighing(self) -> str:
        """The result of weighing costs compared with plain equipartition."""
        return self._verdict(self.saved)

    def _verdict(self, gain: Estimate) -> str:
        return verdict(gain if self.metric == UTILISATION else Estimate(-gain.mean, gain.half))


def jobs_of(load: float, count: int, seed: int) -> Workload:
    """Return this number of jobs that arrive at a load factor, with times in milliseconds."""
    rng = np.random.default_rng(seed)
    submit = np.cumsum(rng.exponential(SERVICE_S * MILLI / load, count))
    size = rng.integers(1, PROCESSORS + 1, count)
    alone = rng.exponential(SERVICE_S * MILLI, count)
    ratio = downey(PROCESSORS, MODEL.parallelism, MODEL.sigma) / downey(size, MODEL.parallelism, MODEL.sigma)
    run = np.maximum(1, np.rint(alone * ratio))
    columns = {"submit": np.rint(submit), "run_time": run, "requested_time": run, "allocated": size}
    return make_workload({name: column.astype(np.int64) for name, column in columns.items()})


def measure(work: Workload, policy: str, stall: float, weighed: float = 0.0) -> dict[str, float]:
    """Return the metrics of jobs under a policy; a change costs `stall` seconds in addition to data and processors.

    `weighed` is the cost that equipartition assumes.
    """
    model = MODEL._replace(stall=stall).by_ticks(MILLI)
    choices = [f"cost={weighed * MILLI}"] if weighed else []
    run = Simulation.of(work, Machine(PROCESSORS), load_policy(policy, choices), adaptive=model)
    run.run()
    told = metrics(run, Power())
    return {RESPONSE: told["mean_response_s"] / MILLI, UTILISATION: told["node_utilisation"]}


def cost_s(stall: float) -> float:
    """Return a job's cost of growing from half of the processors to all, as defined in `drom.scheduler.engine.pool`."""
    moved = MODEL.memory / MODEL.bandwidth / PROCESSORS
    return stall + MODEL.expand * PROCESSORS + moved


def points(seed: int, stall: float, show: Callable[[float], None]) -> list[Point]:
    """Make all simulations, with SEEDS seeds from `seed` on; `show` gets the fraction that is done."""
    found: list[Point] = []
    cases = [(experiment, load) for experiment in JOBS for load in LOADS]
    for done, (experiment, load) in enumerate(cases, 1):
        found += points_at(experiment, load, seed, stall)
        show(done / len(cases))
    return found


def points_at(experiment: str, load: float, seed: int, stall: float) -> list[Point]:
    """Make the simulations of an experiment at one load; return the points of response and utilisation."""
    works = [jobs_of(load, JOBS[experiment], one) for one in range(seed, seed + SEEDS)]
    ways = ((RIGID, 0.0), (ADAPTIVE, 0.0), (ADAPTIVE, cost_s(stall)))
    runs = [[measure(work, policy, stall, weighed) for work in works] for policy, weighed in ways]
    found = []
    for metric in (RESPONSE, UTILISATION):
        rigid, adaptive, weighing = (np.array([one[metric] for one in way]) for way in runs)
        levels = (rigid, adaptive, adaptive - rigid, weighing, weighing - adaptive)
        found.append(Point(experiment, load, metric, *map(estimate, levels)))
    return found
