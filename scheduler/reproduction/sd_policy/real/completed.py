# SPDX-License-Identifier: Apache-2.0
"""Completed runs of workload 5, a folder each: their records, also in the format of `drom compare`."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.scheduler.analysis.results import write_schedule, write_value
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.sd_policy.real.figures import Result, latencies, result_of
from drom.scheduler.reproduction.sd_policy.real.running import Task

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from drom.workloads.workload import Floats

SCHEMA = 1
NAME = "run.json"


class CompletedRun(NamedTuple):
    """A run: its task, its result, the seconds that each job lost, the joules that RAPL counted, and its history."""

    task: Task
    result: Result
    latencies: Floats
    joules: float | None
    told: Mapping[str, Any]


def folder_of(out: Path, task: Task) -> Path:
    """Return the folder of the results of a run."""
    return out / "workload-5" / task.scale / f"seed-{task.seed}" / task.policy


def keep(out: Path, task: Task, told: Mapping[str, Any]) -> None:
    """Write a scheduler's history of a run. Raises SchedulerError if that is not possible."""
    folder, found = folder_of(out, task), _result(task, told)
    write_schedule(found.schedule, found.work, found.summary, folder)
    write_value(_basis(task) | {"told": told}, folder / NAME)


def find(out: Path, task: Task) -> CompletedRun | None:
    """Return a completed run, None if there is none. Raises SchedulerError for one of other options or unreadable."""
    path = folder_of(out, task) / NAME
    if not path.exists():
        return None
    value = _read(path)
    if {name: value.get(name) for name in _basis(task)} != _basis(task):
        msg = f"{path} is of other options or of another version of drom: name another --out."
        raise SchedulerError(msg)
    return _kept(task, value)


def all_in(out: Path) -> list[CompletedRun]:
    """Return all runs in a folder. Raises SchedulerError for one that cannot be read."""
    values = [_read(path) for path in sorted(out.glob(f"workload-5/*/seed-*/*/{NAME}"))]
    return [_kept(Task(**value["task"]), value) for value in values]


def _basis(task: Task) -> dict[str, Any]:
    return {"schema_version": SCHEMA, "drom": metadata.version("drom"), "task": task._asdict()}


def _read(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        readable = value["schema_version"] == SCHEMA and bool(Task(**value["task"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path} cannot be read: remove it, or name another --out."
        raise SchedulerError(msg) from error
    if not readable:
        msg = f"{path} is of another version of drom: name another --out."
        raise SchedulerError(msg)
    return value


def _kept(task: Task, value: Mapping[str, Any]) -> CompletedRun:
    told = value["told"]
    said = {int(number): words for number, words in told["said"].items()}
    return CompletedRun(task, _result(task, told), latencies(told, said), told["joules"], told)


def _result(task: Task, told: Mapping[str, Any]) -> Result:
    numbers = sorted(job["job"] for job in told["jobs"])
    return result_of(told, dict(zip(numbers, task.jobs(), strict=True)), task.compression)
