# SPDX-License-Identifier: Apache-2.0
"""The simulation of Polyakov and Dubenskaya, "Improving the load of supercomputers based on job migration using
container virtualization" (GRID 2018), and beside it what the paper estimates: the gain by filling.

From the paper: 512 slots, 180 days in steps of a minute, conservative backfilling, the jobs and requests of
`drom.workloads.lomonosov`, means of 10 runs. Assumed, because the paper says nothing of arrivals: a queue that is never
empty. Jobs come in the order in which they are drawn, at the beginning of the day for which a machine without a gap
would need them, less LEAD days. The first DEPTH jobs of the queue have reservations: more of them, more load. 30 give
about the 90 % that the paper starts from.

Gaps are filled from a queue that is always full, c = 1, by policy B, and by policy A with time slots of several
lengths. The paper's t, starting and saving together, is half and half.
"""  # noqa: D205 - the source is the summary

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.estimates import Estimate, estimate
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import BUSY
from drom.scheduler.gap_filling.parameters import FillingOptions
from drom.scheduler.gap_filling.simulation import FilledSimulation
from drom.scheduler.reproduction.adaptive.experiment import SEEDS
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.scheduler.simulator.worker_pool import run_each
from drom.workloads.distributions import DAY
from drom.workloads.lomonosov import MINUTE, MINUTES, SLOTS, requests
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from collections.abc import Callable

    from drom.workloads.workload import Workload

NODES = 512
DAYS = 180
LEAD = 30
DEPTH = 30
POLICY = "conservative"
ACCURACIES = (0.0, 0.25, 0.5, 0.75, 1.0)
TIME_SLOTS = (10, 30, 60)
"""Policy A: T in minutes."""
PAUSES = (1, 5, 15)
"""Restoring and saving together, in minutes: t."""
NONE, A, B = "none", "A", "B"
_DRAWN_AT_ONCE = 10_000


class Row(NamedTuple):
    """The result of one simulation; shares are of the capacity of the nodes."""

    accuracy: float
    policy: str
    """NONE, A or B."""
    slot_min: int
    """T; 1, the step of the simulation, without time slots."""
    pause_min: int
    """t; 0 without filling."""
    regular: float
    """The share that regular jobs worked: the paper's load."""
    whole: float
    """Policy A: the share of whole time slots without a regular job."""
    load: float
    """The share in which nodes were allocated."""
    gain: float
    """Useful work of containers."""
    delayed: float
    """Regular jobs that waited for containers."""
    delay_s: float
    """The mean time in seconds for which these jobs waited."""


class Point(NamedTuple):
    """Means of a `Row` over the runs, and the paper's bound."""

    accuracy: float
    policy: str
    slot_min: int
    pause_min: int
    regular: Estimate
    whole: Estimate
    load: Estimate
    gain: Estimate
    delayed: Estimate
    delay_s: Estimate

    @property
    def bound(self) -> float | None:
        """0.1 (1 - t) c, with t in units of T."""
        return 0.1 * (1 - self.pause_min / self.slot_min) if self.policy == A else None


def jobs_of(accuracy: float, seed: int, days: int = DAYS) -> Workload:
    """Return the jobs of one run; the same seed gives the same sizes and run times at any accuracy."""
    generator = np.random.default_rng(seed)
    size, run_time = np.zeros(0, np.int64), np.zeros(0, np.int64)
    while float((size * run_time).sum()) < NODES * DAY * (days + LEAD):
        size = np.append(size, SLOTS.draw(_DRAWN_AT_ONCE, SLOTS.most, generator))
        run_time = np.append(run_time, MINUTES.draw(_DRAWN_AT_ONCE, MINUTES.most, generator) * MINUTE)
    work = size * run_time
    needed = (np.cumsum(work) - work) // (NODES * DAY) - LEAD
    columns = {
        "submit": np.maximum(needed, 0) * DAY,
        "run_time": run_time,
        "requested_time": requests(run_time, accuracy, generator),
        "allocated": size,
    }
    return make_workload({name: column[needed < days] for name, column in columns.items()})


def rows(accuracy: float, seed: int, days: int) -> list[Row]:
    """Make all simulations with the jobs of one run."""
    work, found = jobs_of(accuracy, seed, days), []
    found.append(_row(accuracy, simulated(work, 1, days), 1, None))
    for slot in TIME_SLOTS:
        run = simulated(work, slot * MINUTE, days)
        found += [_row(accuracy, run, slot, _filling(A, slot, pause)) for pause in PAUSES if pause < slot]
    for pause in PAUSES:
        filled = FilledSimulation.of(_made(work, 1), _filling(B, 60, pause), seed)
        filled.run.run(days * DAY)
        found.append(_row(accuracy, filled.run, 1, filled.filling, filled))
    return found


def _filling(policy: str, slot: int, pause: int) -> FillingOptions:
    half = pause * MINUTE // 2
    return FillingOptions(policy=policy, slot=slot * MINUTE, restore=half, save=half)


def _made(work: Workload, slot_s: int) -> Simulation:
    return Simulation.of(work, Machine(NODES, slot=slot_s), load_policy(POLICY, [f"depth={DEPTH}"]))


def simulated(work: Workload, slot_s: int, days: int) -> Simulation:
    """Return the simulation of a number of days, without filling, on a machine with time slots of given seconds."""
    run = _made(work, slot_s)
    run.run(days * DAY)
    return run


def _row(
    accuracy: float, run: Simulation, slot: int, filling: FillingOptions | None, filled: FilledSimulation | None = None
) -> Row:
    regular = int(run.world.scalars[BUSY]) / (NODES * run.now)
    if filling is None:
        return Row(accuracy, NONE, slot, 0, regular, 0.0, regular, 0.0, 0.0, 0.0)
    filled = filled or FilledSimulation.of(run, filling, 1)
    filled.finish()
    told = filled.figures({"utilisation": regular})
    pause = (filling.restore + filling.save) // MINUTE
    return Row(
        accuracy,
        filling.policy,
        slot,
        pause,
        1 - told["idle"],
        told["idle_slots"] or 0.0,
        told["load"],
        told["gain"],
        told["delayed_jobs"],
        told["mean_delay_s"],
    )


def points(seed: int, days: int, at_once: int | None, show: Callable[[float], None]) -> list[Point]:
    """Make all simulations with SEEDS seeds from `seed` on, several at a time; `show` gets the fraction that is done.

    Raises SchedulerError if a simulating process is killed.
    """
    tasks = [(accuracy, one, days) for accuracy in ACCURACIES for one in range(seed, seed + SEEDS)]
    found: dict[int, list[Row]] = {}

    def take(number: int, made: list[Row]) -> None:
        found[number] = made
        show(len(found) / len(tasks))

    run_each(rows, tasks, at_once, take)
    groups: dict[tuple[float, str, int, int], list[Row]] = {}
    for row in itertools.chain.from_iterable(found[number] for number in sorted(found)):
        groups.setdefault(row[:4], []).append(row)
    return [
        Point(*key, *(estimate(np.array(values, np.float64)) for values in list(zip(*group, strict=True))[4:]))
        for key, group in groups.items()
    ]
