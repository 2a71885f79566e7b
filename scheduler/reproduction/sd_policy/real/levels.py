# SPDX-License-Identifier: Apache-2.0
"""The runs on a real Slurm compared: figures of each level, changes from level 0, and limits of slowdown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.analysis.metrics import slowdown
from drom.scheduler.live.cluster.jobs import COMPLETED
from drom.scheduler.reproduction.sd_policy import paper
from drom.scheduler.reproduction.sd_policy.real.report import FIGURE_9, mean_row
from drom.scheduler.reproduction.sd_policy.real.settings import LEVELS, MAX_SLOWDOWN, SLURM
from drom.scheduler.reproduction.sd_policy.tables import CHANGE, Row, change
from drom.workloads.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from drom.scheduler.reproduction.sd_policy.real.completed import CompletedRun

PLACE = "Slurm"
"""What stands for the paper's table in the rows."""
SHOWN = {"makespan": "s", "response": "s", "slowdown": ""}
"""The compared figures by their names in the paper, with their units: times are in seconds of the run."""
BASE = next(iter(LEVELS))
TOGETHER = 3.0
"""Seconds between two starts within which Slurm, which starts jobs once a second, may have exchanged their order."""


class Sharing(NamedTuple):
    """What sharing did to jobs in a run.

    `guests` is the number of jobs that started beside running ones, their mates. `excluded` is the number of those with
    a mate that SD-Policy would have excluded: one whose predicted slowdown reached the limit. The stretch of a mate is
    its run time over that of the job alone.
    """

    guests: int
    excluded: int
    worst_predicted: float
    mean_stretch: float
    worst_stretch: float


def sharing_of(told: Mapping[str, Any], alone: Mapping[int, float]) -> Sharing:
    """Return what sharing did to the jobs of a history; `alone` are their run times on all cores, in seconds."""
    jobs = {job["job"]: job for job in told["jobs"]}
    pairs = [
        (entry["job"], mate)
        for entry in told["entries"]
        if entry["what"] == "placed"
        for mate in entry["detail"]["mates"]
    ]
    foreseen = [_foreseen(jobs[guest], jobs[mate]) for guest, mate in pairs]
    excluded = {guest for (guest, _), one in zip(pairs, foreseen, strict=True) if one >= MAX_SLOWDOWN}
    spans = {number: _span(told, number) for number in {mate for _, mate in pairs}}
    stretches = [span / alone[number] for number, span in spans.items() if span is not None]
    return Sharing(
        len({guest for guest, _ in pairs}),
        len(excluded),
        max(foreseen, default=1.0),
        float(np.mean(stretches)) if stretches else 1.0,
        max(stretches, default=1.0),
    )


def predicted(guest: Mapping[str, Any], mate: Mapping[str, Any]) -> float:
    """Return the least slowdown of a mate by Equation 4 when a guest starts, that of earlier guests left out.

    Requested times are the limits that Slurm was given; a mate loses that of the guest at worst.
    """
    waited = mate["started"] - mate["submitted"]
    return float((waited + mate["limit"] + guest["limit"]) / mate["limit"])


def _foreseen(guest: Mapping[str, Any], mate: Mapping[str, Any]) -> float:
    """Return the predicted slowdown of a mate; the smaller one if both may have been the guest of the other."""
    found = predicted(guest, mate)
    return min(found, predicted(mate, guest)) if abs(guest["started"] - mate["started"]) < TOGETHER else found


def _span(told: Mapping[str, Any], number: int) -> float | None:
    """Return the seconds between a program's first and last step, None if it has not printed them."""
    words = told["said"].get(str(number), told["said"].get(number, "")).split()
    return float(words[2]) - float(words[1]) if words[:1] == ["paced:"] else None


def rows(runs: Iterable[CompletedRun]) -> list[Row]:
    """Return the rows on the runs on Slurm: means over the seeds of which all levels are complete."""
    return list(_rows(complete_seeds(runs)))


def complete_seeds(runs: Iterable[CompletedRun]) -> list[dict[str, CompletedRun]]:
    """Return the runs on Slurm by level for each seed of which all levels are complete, with the same options."""
    found: dict[Any, dict[str, CompletedRun]] = {}
    for run in runs:
        if run.task.scale == SLURM.name:
            found.setdefault(run.task._replace(policy=BASE), {})[run.task.policy] = run
    return [one for _, one in sorted(found.items()) if len(one) == len(LEVELS)]


def _rows(seeds: Sequence[Mapping[str, CompletedRun]]) -> Iterator[Row]:
    if not seeds:
        return
    titles = {level: f"{level.replace('-', ' ')}, {title}" for level, title in LEVELS.items()}
    for name, unit in SHOWN.items():
        for level, title in titles.items():
            found = [_figure(one[level], name) for one in seeds]
            yield mean_row(PLACE, f"{title}: {name}", unit, None, found)
    for name in SHOWN:
        for level, title in titles.items():
            changes = [change(_figure(one[level], name), _figure(one[BASE], name)) or 0.0 for one in seeds]
            given = paper.REAL_RUN[name] if level == "level-2" else None
            if level != BASE:
                yield mean_row(PLACE, f"{title}: {name}", CHANGE, given, changes)
    for level, title in titles.items():
        slowdowns = [slowdown(one[level].result.schedule.table) for one in seeds]
        sharing = [_sharing(one[level]) for one in seeds]
        for name, unit, values in (
            ("95 % of slowdowns are below", "", [float(np.quantile(one, 0.95)) for one in slowdowns]),
            ("worst slowdown", "", [float(one.max()) for one in slowdowns]),
            ("guests", "jobs", [one.guests for one in sharing]),
            (f"guests beyond MAX_SLOWDOWN {MAX_SLOWDOWN:g}", "jobs", [one.excluded for one in sharing]),
            ("worst predicted slowdown of a mate", "", [one.worst_predicted for one in sharing]),
            ("mean stretch of a mate", "", [one.mean_stretch for one in sharing]),
            ("worst stretch of a mate", "", [one.worst_stretch for one in sharing]),
        ):
            yield mean_row(PLACE, f"{title}: {name}", unit, None, values)


def _figure(run: CompletedRun, name: str) -> float:
    found = float(run.result.metrics[FIGURE_9[name]])
    return found / run.task.compression if SHOWN[name] else found


def _sharing(run: CompletedRun) -> Sharing:
    numbers = sorted(job["job"] for job in run.told["jobs"])
    alone = [job.run_time / run.task.compression for job in run.task.jobs()]
    return sharing_of(run.told, dict(zip(numbers, alone, strict=True)))


def notes(runs: Iterable[CompletedRun]) -> Iterator[str]:
    """Yield sentences on the runs on Slurm, if there are any."""
    here = [run for run in runs if run.task.scale == SLURM.name]
    if not here:
        return
    seeds = len({run.task.seed for run in here})
    yield (
        f"There are runs of {SLURM.title}: {counted(here[0].task.first, 'job')}, {counted(seeds, 'seed')}, "
        f"{here[0].task.compression:g} times as fast as the workload's clock."
    )
    busy = [100 * run.told["busy"] for run in here]
    yield f"The processors of this machine were busy for {min(busy):.0f} to {max(busy):.0f} % of the time."
    taken_back = [run.told["taken_back"] for run in here if run.task.policy == "level-2"]
    if any(taken_back):
        yield f"drom slurm took back {counted(sum(taken_back), 'job')} that Slurm had not started in time."
    failed = sum(count for run in here for state, count in run.result.states.items() if state != COMPLETED)
    if failed:
        yield f"{counted(failed, 'job')} did not complete."
    for run in here:
        for problem in run.told["problems"]:
            yield f"Seed {run.task.seed}, {run.task.policy}: {problem}"
