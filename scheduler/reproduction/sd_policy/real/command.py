# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce sd-policy --workload 5`: the runs to make, making them one after the other, and resuming."""

from __future__ import annotations

import json
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.analysis.results import prepare, write_value
from drom.scheduler.engine.compiler import compile_program
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.driver import prepare as prepare_policy
from drom.scheduler.reproduction.sd_policy.outcome import Outcome
from drom.scheduler.reproduction.sd_policy.real import completed, levels, report, running_slurm
from drom.scheduler.reproduction.sd_policy.real.emulation import Emulation, curves_of, policy_of
from drom.scheduler.reproduction.sd_policy.real.figures import result_of
from drom.scheduler.reproduction.sd_policy.real.measured import WorkModel, calibrate, enough_cores
from drom.scheduler.reproduction.sd_policy.real.running import Task, run
from drom.scheduler.reproduction.sd_policy.real.settings import (
    CORES,
    LEVELS,
    NODES,
    POLICIES,
    REHEARSED,
    SCALES,
    SEEDS,
    SLURM,
)
from drom.scheduler.reproduction.sd_policy.tables import workload_5
from drom.scheduler.testbed.slurm import why_no_slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from drom.scheduler.reproduction.sd_policy.real.report import Pair

REHEARSAL = "rehearsal"
PARTS = (REHEARSAL, CORES.name, NODES.name)
"""The parts that are chosen by default: simulations of the live scheduler, and the two scales with it."""
LOOK = 0.5
"""Seconds between two updates of the progress of runs on Slurm."""
CALIBRATION = "calibration.json"


class RunSelection(NamedTuple):
    """The options of the command; None: as in the settings."""

    parts: Sequence[str] = PARTS
    seed: int = SEEDS[0]
    seeds: int | None = None
    first: int | None = None
    compression: float | None = None
    curves: str = "mixed"

    def tasks(self) -> list[Task]:
        """Return the runs; those of a seed follow each other."""
        return [
            Task(
                scale.name,
                self.seed + number,
                policy,
                min(self.first or scale.jobs, scale.jobs),
                scale.compression if scale is CORES else self.compression or scale.compression,
                "mixed" if scale is CORES else self.curves,
            )
            for name, scale in SCALES.items()
            if name in self.parts
            for number in range(self.seeds or scale.seeds)
            for policy in (LEVELS if name == SLURM.name else POLICIES)
        ]


def left(wanted: RunSelection, out: Path) -> list[Task]:
    """Return the runs that are yet to be made, and create folders for them.

    Raises SchedulerError if existing runs have other options, if results cannot be written, without two cores for
    programs on real cores, and where there can be no Slurm.
    """
    tasks = [task for task in wanted.tasks() if completed.find(out, task) is None]
    if any(task.scale == CORES.name for task in tasks) and not enough_cores():
        raise SchedulerError("programs on real cores need two cores: omit them with --scale nodes.")
    if any(task.scale == SLURM.name for task in tasks) and (reason := why_no_slurm()):
        raise SchedulerError(reason)
    for task in tasks:  # fail now, rather than after hours
        prepare(completed.folder_of(out, task))
    return tasks


def make_all(tasks: Sequence[Task], out: Path, show: Callable[[float], None], at_once: int = len(LEVELS)) -> None:
    """Make runs and store each; of those on Slurm, on a cluster each, `at_once` at the same time.

    Raises SchedulerError, ControlError, MachineError, and KeyboardInterrupt on Ctrl-C.
    """
    weights = {task: task.seconds() for task in tasks}
    done = dict.fromkeys(tasks, 0.0)

    def part_of(task: Task) -> Callable[[float], None]:
        def part(fraction: float) -> None:
            done[task] = fraction
            if task.scale != SLURM.name:  # only the main thread shows
                show_all()

        return part

    def show_all() -> None:
        show(sum(weights[task] * fraction for task, fraction in done.items()) / sum(weights.values()))

    for task in (task for task in tasks if task.scale != SLURM.name):
        completed.keep(out, task, run(task, _amounts(out) if task.scale == CORES.name else {}, part_of(task)))
        part_of(task)(1.0)
    on_slurm = [task for task in tasks if task.scale == SLURM.name]
    if on_slurm:
        prepare_policy(policy_of("sd"))  # so that no daemon has to compile it
        _make_on_slurm(on_slurm, out, part_of, show_all, at_once)


def _make_on_slurm(
    tasks: Sequence[Task],
    out: Path,
    part_of: Callable[[Task], Callable[[float], None]],
    show_all: Callable[[], None],
    at_once: int,
) -> None:
    """Make runs on Slurm in threads, which mostly wait; after a failure or Ctrl-C all others are stopped."""
    stop = Event()

    def make(task: Task) -> None:
        if not stop.is_set():
            completed.keep(out, task, running_slurm.run(task, part_of(task), stop))

    with ThreadPoolExecutor(at_once) as pool:
        try:
            left = {pool.submit(make, task) for task in tasks}
            while left:
                ended, left = wait(left, LOOK, FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                show_all()
        finally:
            stop.set()


def _amounts(out: Path) -> dict[str, WorkModel]:
    """Return the measured speeds of the programs on real cores: measured once, so that all runs have the same work."""
    amounts = _measured(out)
    if not amounts:
        amounts = calibrate()
        write_value({name: amount._asdict() for name, amount in amounts.items()}, out / "workload-5" / CALIBRATION)
    return amounts


def _measured(out: Path) -> dict[str, WorkModel]:
    """Return the stored measurements; empty if there are none. Raises SchedulerError if they cannot be read."""
    path = out / "workload-5" / CALIBRATION
    if not path.exists():
        return {}
    try:
        return {name: WorkModel(**one) for name, one in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError) as error:
        msg = f"{path} cannot be read: remove it, or name another --out."
        raise SchedulerError(msg) from error


def rehearse(wanted: RunSelection, out: Path, show: Callable[[float], None]) -> dict[str, list[Pair]]:
    """Return simulations of the live scheduler for each seed by curves, including measured curves if there are any."""
    if REHEARSAL not in wanted.parts:
        return {}
    for name in REHEARSED:
        compile_program(policy_of(name))
    first, compression = wanted.first or NODES.jobs, wanted.compression or NODES.compression
    seeds = [wanted.seed + number for number in range(wanted.seeds or len(SEEDS))]
    found: dict[str, list[Pair]] = {}
    half = {name: amount.half for name, amount in _measured(out).items()}
    steps = [(curves, seed) for curves in curves_of(half) for seed in seeds]
    for step, (curves, seed) in enumerate(steps, 1):
        static, *others = (
            result_of(told, told["made"], 1.0)
            for policy in (REHEARSED if curves.name == "mixed" else POLICIES)
            for told in [Emulation(seed, policy, curves, first, compression).run()]
        )
        for name, shared in zip((curves.name, f"{curves.name} with feedback"), others, strict=False):
            found.setdefault(name, []).append(report.Pair(static, shared))
        show(step / len(steps))
    return found


def outcome(out: Path, seed: int, rehearsed: dict[str, list[Pair]] | None = None) -> Outcome:
    """Return the outcome of workload 5, from the runs in a folder. Raises SchedulerError."""
    runs = completed.all_in(out)
    found = report.pairs(runs)
    whole = [run for run in runs if run.task.scale == NODES.name and run.task.first == NODES.jobs]
    static = next((run.result.metrics for run in whole if run.task.policy == "static"), {})
    about = (
        "Programs of drom stand for the applications: primes for PILS, stream for STREAM, jacobi for CoreNeuron, "
        "numpy_blas for NEST, mpi_openmp for Alya; on emulated nodes one that sleeps, and progresses at the speed of "
        "its cores."
    )
    rows = [*workload_5(seed, static), *report.rows(found, rehearsed or {}), *levels.rows(runs)]
    simulated = ["Simulated: the live scheduler itself, with nodes that answer at once."] if rehearsed else []
    notes = [about, *report.notes(runs), *levels.notes(runs), *simulated]
    return Outcome(5, "Cirne-like model as real applications", notes, False, {}, rows, complete=True)
