# SPDX-License-Identifier: Apache-2.0
"""The runs of an experiment: checked before any of them, made in parallel, kept by content, and gone on with later."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.scheduler.analysis import series
from drom.scheduler.analysis.metrics import Power, metrics, metrics_of, power_of
from drom.scheduler.analysis.results import make_folder, write_value
from drom.scheduler.analysis.schedule import schedule_of
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.engine.state import BUSY, RESIZES
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments.design import METRICS
from drom.scheduler.simulator.simulation import check_predictor
from drom.scheduler.simulator.worker_pool import run_each
from drom.workloads.errors import WorkloadError
from drom.workloads.logs import read_log
from drom.workloads.making import make

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from drom.scheduler.experiments.design import Case, Design
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.making import Recipe
    from drom.workloads.workload import Workload

    More = Callable[[Simulation], dict[str, Any]]

RUNS = "runs"
"""The folder of the metrics of runs, a file each, within that of the results."""
_FEW = 100
_STAND_INS = {"simulation.policy": "fcfs", "simulation.nodes": 128, "workload.model": "lublin"}
"""Values that keys which cannot be left out have while the fault of a cell is located."""
_JOB_MEANS = (
    *("mean_response_s", "mean_wait_s", "mean_slowdown", "mean_bounded_slowdown"),
    *("fairness_by_size", "fairness_by_user"),
)
"""The metrics of the jobs that count; the others are of the whole run, but for `utilisation`."""
Found = dict[str, Any]
"""What is kept of a run: its metrics by name, its seconds, and more; or why it failed."""


@lru_cache(maxsize=4)
def _log(path: str) -> Workload:
    return read_log(path)


@lru_cache(maxsize=4)
def _made(recipe: Recipe) -> Workload:
    return make(recipe)


def jobs_of(case: Case) -> Workload:
    """Return the jobs of a run before cleaning. Raises WorkloadError."""
    try:
        return _log(case.log) if case.recipe is None else _made(case.recipe)
    except FileNotFoundError as error:
        msg = f"there is no log {case.log}: name a file."
        raise WorkloadError(msg) from error


def simulation_of(case: Case, jobs: Workload) -> Simulation:
    """Return a run before its first event, with its policy compiled. Raises SchedulerError or WorkloadError."""
    policy = load_policy(case.policy, case.choices)
    if fault := case.setup.fault(policy):
        raise SchedulerError(fault)
    check_predictor(case.setup.predict, case.setup.machine(policy), policy)
    work, _ = case.setup.clean(jobs)
    return case.setup.simulation(work, policy)


def check(design: Design, where: Callable[[str], str]) -> None:
    """Set up each level once, with few jobs of a model. Raises SchedulerError with the place of what cannot be."""
    cells, seen = design.cells, set[tuple[int, int]]()
    for cell in cells:
        at = {
            (number, factor.levels.index(level))
            for number, (factor, level) in enumerate(zip(design.factors, cell, strict=True))
        }
        if at <= seen and seen:
            continue
        seen |= at
        chosen = design.chosen(cell)
        if error := _fault(design, chosen):
            path = _culprit(design, chosen)
            msg = f"{where(path) if path else design.name(cell)}: {error}"
            raise SchedulerError(msg) from error


def _fault(design: Design, chosen: Mapping[str, Any]) -> DromError | None:
    """Return why a run cannot be set up; None if it can."""
    try:
        case = design.case(chosen, design.seeds[0])
        recipe = case.recipe
        jobs = jobs_of(case) if recipe is None else make(replace(recipe, jobs=min(recipe.jobs, _FEW)))
        simulation_of(case, jobs)
    except DromError as error:
        return error
    return None


def _culprit(design: Design, chosen: Mapping[str, Any]) -> str:
    """Return the key without which a run can be set up; empty if there is none."""
    for path in reversed(list(chosen)):
        rest = {key: value for key, value in chosen.items() if key != path}
        if _fault(design, rest | {key: value for key, value in _STAND_INS.items() if key == path}) is None:
            return path
    return ""


def key_of(case: Case) -> str:
    """Return the digest of all that decides a run: jobs, options and the files they name, policy, drom's version."""
    policy = load_policy(case.policy, case.choices)
    traces = [choice.removeprefix("trace=") for choice in case.setup.failures]
    files = [case.log, case.setup.evolving, *case.setup.contracts, *traces]
    content = {
        "case": case._asdict() | {"recipe": str(case.recipe), "policy": policy.name},
        "parameters": policy.parameters(),
        "policy": policy.digest,
        "files": [_digest(name) for name in files if Path(name).is_file()],
        "version": metadata.version("drom"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


@lru_cache(maxsize=64)
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def measure(case: Case, more: More | None = None) -> Found:
    """Make a run; return its metrics, its seconds and what `more` finds in it, or why it failed."""
    try:
        run = simulation_of(case, jobs_of(case))
        run.run()
        found = {"metrics": trimmed(run, case.warm_up, case.cool_down), "seconds": run.seconds}
        return found | (more(run) if more else {})
    except DromError as error:
        return {"fault": str(error)}


def trimmed(run: Simulation, warm_up: float, cool_down: float) -> dict[str, float | None]:
    """Return the metrics of a run without its first and last jobs, as fractions of all, in order of submission.

    Means and fairness are those of the jobs between. The utilisation is that of the time from the first to the last
    submission of these. Other metrics are of the whole run.
    """
    found: dict[str, float | None] = dict(metrics(run, Power()))
    jobs = len(run.work)
    part = slice(int(jobs * warm_up), jobs - int(jobs * cool_down))
    if part == slice(0, jobs):
        return found
    schedule = schedule_of(run)
    table = {name: column[part] for name, column in schedule.table.items()}
    machine, s = (run.machine.nodes, run.machine.cores), run.world.scalars
    inner = metrics_of(
        table, machine, run.work.user[part], int(s[BUSY]), run.now, int(s[RESIZES]), power_of(run, Power())
    )
    first, last = int(table["submit"].min()), int(table["submit"].max())
    busy = series.busy_nodes(schedule, np.array([first, max(last, first + 1)], np.float64))[0]
    return found | {name: inner[name] for name in _JOB_MEANS} | {"utilisation": float(busy / schedule.nodes)}


def run_design(
    design: Design, folder: Path, at_once: int | None, show: Callable[[float], None]
) -> dict[tuple[tuple[Any, ...], int], Found]:
    """Make all runs that `folder` does not have, as `run_cases` does; return what was found by cell and seed."""
    places = [(cell, seed) for seed in design.seeds for cell in design.cells]
    cases = [design.case(design.chosen(cell), seed) for cell, seed in places]
    return dict(zip(places, run_cases(cases, folder / RUNS, at_once, show), strict=True))


def run_cases(
    cases: Sequence[Case],
    folder: Path,
    at_once: int | None,
    show: Callable[[float], None],
    more: More | None = None,
) -> list[Found]:
    """Make all runs that `folder` does not have, `at_once` at a time; return what was found, in the order of `cases`.

    Cases of the same content are one run. `show` gets the fraction that is done; `more`, a function of a module, is for
    `measure`, and always the same in one folder. Runs that have ended are kept when others fail or are interrupted.
    Raises SchedulerError if the folder cannot be written or a process is killed.
    """
    make_folder(folder)
    keys = [key_of(case) for case in cases]
    kept = {key: found for key in keys if (found := _kept(folder / f"{key}.json")) is not None}
    left = {key: case for key, case in zip(keys, cases, strict=True) if key not in kept}
    names = list(left)

    def take(number: int, found: Found) -> None:
        key = names[number]
        kept[key] = found
        if "fault" not in found:
            write_value(found, folder / f"{key}.json")
        show(len(kept) / len(set(keys)))

    if left:
        run_each(measure, [(case, more) for case in left.values()], at_once, take)
    return [kept[key] for key in keys]


def _kept(path: Path) -> Found | None:
    """Return what is kept of a run; None if it is not there, or is not what this drom writes."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["metrics"].keys() >= METRICS.keys() and isinstance(found["seconds"], float):
            return dict(found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    return None
