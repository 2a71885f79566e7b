# SPDX-License-Identifier: Apache-2.0
"""The result of a run, in seconds of the workload: its schedule, its metrics, and its latencies. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.analysis.metrics import Power, malleable, metrics_of
from drom.scheduler.live import accounting
from drom.scheduler.live.cluster.jobs import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.reproduction.sd_policy.real.jobs import PlannedJob
    from drom.workloads.workload import Floats, Workload

_TIMES = ("submitted", "started", "ended")


class Result(NamedTuple):
    """The result of a run. `core_seconds` are those of each job, by its number; `states` counts jobs by final state."""

    schedule: Schedule
    work: Workload
    summary: dict[str, Any]
    core_seconds: dict[int, float]
    guests: list[int]
    states: Counter[str]

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the run."""
        found: dict[str, Any] = self.summary["metrics"]
        return found


def result_of(told: Mapping[str, Any], made: Mapping[int, PlannedJob], compression: float) -> Result:
    """Return the result of a run from a scheduler's answer to `history`.

    Slowdowns are over the generated run times of jobs, on all cores of their nodes.
    """
    scaled = in_workload_seconds(told, compression)
    schedule = accounting.schedule_of(scaled)
    table = schedule.table
    had = table["full_speed_run_time"] * table["cores"]
    table["full_speed_run_time"] = np.array([round(made[number].run_time) for number in table["job_id"]], np.int64)
    work = accounting.workload_of(scaled, schedule)
    summary = accounting.summary(scaled, schedule, work)
    busy, resized = accounting.busy_seconds(schedule), summary["metrics"]["reconfigurations"]
    summary["metrics"] = metrics_of(
        table,
        (schedule.nodes, schedule.cores),
        work.user,
        busy,
        schedule.until,
        resized,
        Power(**_watts(summary)),
    )
    numbers = [int(number) for number in table["job_id"]]
    return Result(
        schedule,
        work,
        summary,
        dict(zip(numbers, map(float, had), strict=True)),
        [number for number, is_guest in zip(numbers, malleable(table, schedule.cores), strict=True) if is_guest],
        Counter(job["state"] for job in told["jobs"]),
    )


def _watts(summary: Mapping[str, Any]) -> dict[str, float]:
    model = summary["power_model"]
    return {"idle": model["idle_watt"], "peak": model["peak_watt"]}


def in_workload_seconds(told: Mapping[str, Any], compression: float) -> dict[str, Any]:
    """Return a history with its times in seconds of the workload since the first submission."""
    origin = min((job["submitted"] for job in told["jobs"]), default=0.0)

    def at(time: float | None) -> float | None:
        return None if time is None else (time - origin) * compression

    jobs = [
        job
        | {name: at(job[name]) for name in _TIMES}
        | {"limit": round(job["limit"] * compression), "requested": round(job["requested"] * compression)}
        for job in told["jobs"]
    ]
    entries = [entry | {"at": at(entry["at"])} for entry in told["entries"]]
    return {**told, "time": at(told["time"]), "jobs": jobs, "entries": entries}


def latencies(told: Mapping[str, Any], said: Mapping[int, str]) -> Floats:
    """Return the seconds of the run that each job spent between being placed and its first step, and after its last.

    They include waiting for its mates to shrink. Only emulated programs report when they began and ended.
    """
    placed = {entry["job"]: entry["at"] for entry in told["entries"] if entry["what"] == "placed"}
    found = []
    for job in told["jobs"]:
        words = said.get(job["job"], "").split()
        if job["state"] == COMPLETED and words[:1] == ["paced:"] and job["job"] in placed:
            began, done = map(float, words[1:])
            found.append(began - placed[job["job"]] + job["ended"] - done)
    return np.array(found, np.float64)


def better(static: Result, shared: Result) -> tuple[int, int]:
    """Return the number of jobs that started as guests, and of those that used fewer core-seconds than under static."""
    less = sum(shared.core_seconds[job] < static.core_seconds[job] for job in shared.guests)
    return len(shared.guests), less
