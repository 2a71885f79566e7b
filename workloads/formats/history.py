# SPDX-License-Identifier: Apache-2.0
"""The jobs of a cluster of drom, as `drom history --json` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drom.workloads.errors import WorkloadError
from drom.workloads.formats import values
from drom.workloads.formats.runs import CANCELLED, COMPLETED, FAILED, Run, times_of, workload_of

if TYPE_CHECKING:
    from datetime import tzinfo

    from drom.workloads.workload import Workload

VERSION = 1
"""The version of the answers of a scheduler that is read."""
_STATUS = {"completed": COMPLETED, "cancelled": CANCELLED}
_NO_LIMIT = 366 * 86400
"""The limit of fillers that have none."""


def parse(value: dict[str, Any], source: str, zone: tzinfo) -> Workload:
    """Return the jobs of a cluster; `zone` is that of the header. Raises WorkloadError."""
    jobs = value.get("jobs")
    if value.get("schema_version") != VERSION or not isinstance(jobs, list):
        msg = f"{source} is not what drom history --json of this version prints: write it anew."
        raise WorkloadError(msg)
    runs = (_run(job, f"{source}, jobs[{at}]", zone) for at, job in enumerate(jobs))
    return workload_of(runs, source, "drom history", zone)


def _run(job: Any, place: str, zone: tzinfo) -> Run:  # noqa: ANN401 - a JSON value
    if not isinstance(job, dict) or not isinstance(job.get("shares"), dict):
        msg = f"{place} is not a job of drom history --json: write it anew."
        raise WorkloadError(msg)

    def number(name: str) -> float:
        return values.field(f"{place}, {name}", values.real, job.get(name))

    def moment(name: str) -> float | None:
        return values.field(f"{place}, {name}", values.moment(zone), str(job.get(name)))

    submit = moment("submitted")
    if submit is None:
        msg = f"{place} has no time of submission: leave the job out."
        raise WorkloadError(msg)
    processors = sum(int(values.field(f"{place}, shares", values.real, cores)) for cores in job["shares"].values())
    requested = number("requested")
    return Run(
        0,
        str(job.get("job")),
        int(number("job")),
        *times_of(place, submit, moment("started"), moment("ended"), processors),
        processors,
        _STATUS.get(str(job.get("state")), FAILED),
        requested_processors=processors,
        requested_time=requested if requested < _NO_LIMIT else None,
        cpu_seconds=number("cpu_seconds") or None,
        used_memory=number("max_rss") / 1024 or None,
        user=str(job.get("user") or ""),
        executable=str(job.get("name") or ""),
        partition=str(job.get("partition") or ""),
    )
