# SPDX-License-Identifier: Apache-2.0
"""What `sacct --json` prints, in the versions of Slurm 22.05 to 24.11."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from drom.workloads.errors import WorkloadError, short
from drom.workloads.formats import values
from drom.workloads.formats.runs import FAILED, Run, times_of, workload_of
from drom.workloads.formats.sacct import STATUS

if TYPE_CHECKING:
    from datetime import tzinfo

    from drom.workloads.workload import Workload

VERSIONS = ("v0.0.38", "v0.0.39", "v0.0.40", "v0.0.41", "v0.0.42")
_MEGABYTE = 1024
"""In kilobytes, of which Slurm's memory of jobs is a multiple; that of steps is in bytes."""


def parse(value: dict[str, Any], source: str, zone: tzinfo) -> Workload:
    """Return the jobs of a log as JSON; `zone` is that of its header. Raises WorkloadError."""
    _check_version(value, source)
    jobs = value.get("jobs")
    if not isinstance(jobs, list):
        msg = f"{source} has no list of jobs: write it with sacct --json."
        raise WorkloadError(msg)
    clusters = dict.fromkeys(str(_at(job, "cluster") or "") for job in jobs)
    computer = [f"; Computer: {' '.join(clusters)}"] if any(clusters) else []
    return workload_of(
        (_run(job, f"{source}, jobs[{at}]") for at, job in enumerate(jobs)), source, "Slurm", zone, computer
    )


def _at(value: Any, *path: str) -> Any:  # noqa: ANN401 - a JSON value
    """Return what is at a path in an object; None where it ends before."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _check_version(value: dict[str, Any], source: str) -> None:
    """Raise WorkloadError for the JSON of another version, which the sentence names."""
    found = _at(value, "meta", "plugin", "data_parser") or _at(value, "meta", "plugins", "data_parser")
    version = str(found or _at(value, "meta", "plugin", "type") or "without a version")
    version = version.removeprefix("data_parser/").removeprefix("openapi/db")
    if version not in VERSIONS:
        msg = (
            f"{source} is Slurm's JSON {short(version)}, and {VERSIONS[0]} to {VERSIONS[-1]} are read: write it with "
            f"sacct --json={VERSIONS[-1]}, or with sacct -P, which all versions of Slurm have."
        )
        raise WorkloadError(msg)


def _number(value: Any) -> float | None:  # noqa: ANN401
    """Return a number, which may be an object with set, infinite and number; None for no number."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return None if value is None else values.real(value)


def _moment(value: Any) -> float | None:  # noqa: ANN401
    """Return seconds since 1970; None for 0, with which Slurm says that it has no time."""
    return _number(value) or None


def _whole(value: Any) -> int | None:  # noqa: ANN401
    found = _number(value)
    return None if found is None else math.floor(found)


def _text(value: Any) -> str:  # noqa: ANN401
    return value if isinstance(value, str) else ""


def _run(job: Any, place: str) -> Run:  # noqa: ANN401
    number = values.field(f"{place}, job_id", _whole, _at(job, "job_id"))
    place = f"{place}, job {number}"
    submit = values.field(f"{place}, time.submission", _moment, _at(job, "time", "submission"))
    if number is None or submit is None:
        msg = f"{place} has no {'job_id' if number is None else 'time.submission'}: leave the job out."
        raise WorkloadError(msg)
    start, end = (values.field(f"{place}, time.{name}", _moment, _at(job, "time", name)) for name in ("start", "end"))
    processors = _whole(_tres(place, job, "tres", "allocated", kind="cpu"))
    limit = values.field(f"{place}, time.limit", _number, _at(job, "time", "limit"))
    memory = _tres(place, job, "tres", "requested", kind="mem")
    states = _at(job, "state", "current")
    steps = _at(job, "steps")
    used = [
        _tres(place, step, "tres", "requested", "total", kind="mem") for step in steps or () if isinstance(steps, list)
    ]
    return Run(
        0,
        f"{_at(job, 'cluster')} {number}",
        number,
        *times_of(place, submit, start, end, processors),
        processors,
        STATUS.get(states[0] if isinstance(states, list) and states else states, FAILED),
        requested_processors=values.field(f"{place}, required.CPUs", _whole, _at(job, "required", "CPUs")),
        requested_time=None if limit is None else 60 * limit,
        cpu_seconds=_cpu_seconds(place, job),
        used_memory=max((size / 1024 for size in used if size is not None), default=None),
        requested_memory=None if memory is None else memory * _MEGABYTE,
        user=_text(_at(job, "user")) or _text(_at(job, "association", "user")),
        group=_text(_at(job, "account")) or _text(_at(job, "group")),
        executable=_text(_at(job, "name")),
        queue=_text(_at(job, "qos")),
        partition=_text(_at(job, "partition")),
    )


def _tres(place: str, value: Any, *path: str, kind: str) -> float | None:  # noqa: ANN401
    """Return the count of a kind of trackable resources in a list of them; None if it is not there."""
    rows = _at(value, *path)
    for row in rows if isinstance(rows, list) else ():
        if _at(row, "type") == kind:
            return values.field(f"{place}, {'.'.join(path)}, {kind}", _number, _at(row, "count"))
    return None


def _cpu_seconds(place: str, job: Any) -> float | None:  # noqa: ANN401
    seconds, millionths = (
        values.field(f"{place}, time.total.{name}", _number, _at(job, "time", "total", name))
        for name in ("seconds", "microseconds")
    )
    return None if seconds is None else seconds + (millionths or 0) / 1e6
