# SPDX-License-Identifier: Apache-2.0
"""Workloads of Batsim, in JSON: jobs, and profiles of what they do. Jobs with a delay as profile have a run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from drom.workloads.cleaning import repeated
from drom.workloads.errors import WorkloadError, short
from drom.workloads.formats import values
from drom.workloads.formats.runs import COMPLETED, Run, workload_of

if TYPE_CHECKING:
    from drom.workloads.workload import Workload

_DELAYS = ("delay", "DelayProfile")
"""The type of a profile that takes a number of seconds, until Batsim 4 and since."""


def parse(value: dict[str, Any], source: str) -> Workload:
    """Return the jobs of a workload of Batsim; they have run to their end, or to their walltime.

    Raises WorkloadError for a profile of which only Batsim knows how long it takes.
    """
    jobs, profiles = value.get("jobs"), value.get("profiles")
    if not (isinstance(jobs, list) and isinstance(profiles, dict)):
        msg = f"{source} is no workload of Batsim: it needs a list of jobs, and profiles by name."
        raise WorkloadError(msg)
    size = values.field(f"{source}, nb_res", _positive, value.get("nb_res"))
    runs = (_run(job, profiles, f"{source}, jobs[{at}]") for at, job in enumerate(jobs))
    return workload_of(runs, source, "Batsim", None, [f"; MaxProcs: {size}"])


def _run(job: Any, profiles: dict[str, Any], place: str) -> Run:  # noqa: ANN401 - a JSON value
    if not isinstance(job, dict) or not isinstance(job.get("id"), str | int):
        msg = f"{place} is not a job: it needs id, subtime, res and profile."
        raise WorkloadError(msg)
    text = str(job["id"])
    place = f"{place}, job {short(text)}"
    walltime = values.field(f"{place}, walltime", values.real, job.get("walltime", -1))
    delay = _delay(job.get("profile"), profiles, place)
    size = values.field(f"{place}, res", _positive, job.get("res"))
    return Run(
        0,
        text,
        int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None,
        values.field(f"{place}, subtime", values.real, job.get("subtime")),
        None,
        min(delay, walltime) if walltime > 0 else delay,
        size,
        COMPLETED,
        requested_processors=size,
        requested_time=walltime if walltime > 0 else None,
    )


def _delay(name: Any, profiles: dict[str, Any], place: str) -> float:  # noqa: ANN401
    profile = profiles.get(name) if isinstance(name, str) else None
    where = f"the profile {short(str(name))}"
    if not isinstance(profile, dict):
        msg = f"{place}: {where} is not among the profiles: add it."
        raise WorkloadError(msg)
    if profile.get("type") not in _DELAYS:
        kind = short(str(profile.get("type")))
        msg = f"{place}: {where} is of type {kind}, and only Batsim knows how long it takes: use the type delay."
        raise WorkloadError(msg)
    return values.field(f"{place}, delay of {where}", _seconds, profile.get("delay"))


def _seconds(value: object) -> float:
    if (found := values.real(value)) >= 0:
        return found
    raise WorkloadError("is not a number of seconds")


def _positive(value: object) -> int:
    found = values.real(value)
    if found >= 1 and found == int(found):
        return int(found)
    raise WorkloadError("is not a positive whole number")


def value_of(workload: Workload) -> dict[str, Any]:
    """Return a workload of Batsim: jobs with profiles of type delay, named by their seconds.

    Raises WorkloadError for a job without a size or a run time, or with the number of another job.
    """
    size = workload.processors
    for fault, which in (
        ("has no number of processors", size < 1),
        ("has no run time", workload.run_time < 0),
        ("has the number of an earlier job", repeated(workload.job)),
    ):
        if which.any():
            msg = f"{workload.place(int(which.argmax()))} {fault}: convert what drom workload filter --clean writes."
            raise WorkloadError(msg)
    columns = (workload.job, workload.submit, size, workload.run_time, workload.requested_time)
    jobs = []
    for job, submit, processors, run_time, requested in zip(*(column.tolist() for column in columns), strict=True):
        limit = {"walltime": requested} if requested > 0 else {}
        jobs.append({"id": str(job), "subtime": submit, "res": processors, "profile": f"delay_{run_time}"} | limit)
    return {
        "nb_res": max(workload.header_number("MaxProcs") or 0, int(size.max())),
        "jobs": jobs,
        "profiles": {
            f"delay_{seconds}": {"type": "delay", "delay": seconds} for seconds in np.unique(workload.run_time).tolist()
        },
    }
