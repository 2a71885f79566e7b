# SPDX-License-Identifier: Apache-2.0
"""The summary of a workload as JSON values: counts, spans, load, distributions, and the effects of cleaning."""

from __future__ import annotations

from datetime import timezone
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.workloads.cleaning import Machine, Rules, clean
from drom.workloads.errors import WorkloadError, counted

if TYPE_CHECKING:
    from drom.workloads.workload import Ints, Workload
    from numpy.typing import NDArray

SCHEMA_VERSION = 1
_FACTS = ("Computer", "Installation", "Acknowledge", "MaxNodes", "MaxProcs", "UnixStartTime", "TimeZone", "MaxRecords")


def summary(workload: Workload, rules: Rules | None = None, machine: Machine | None = None) -> dict[str, Any]:
    """Return a description of a log.

    Distributions are of the known values as recorded. The load is that of the cleaned jobs: their processor-seconds
    over those of the machine from the first submission to the earliest possible last end. Times are in seconds. Jobs
    that a rule would refuse are a finding. Raises WorkloadError if cleaning leaves no job.
    """
    processors, origin = machine_size(workload, machine)
    cleaned, report = clean(workload, rules, Machine(processors) if processors else None, strict=False)
    first = int(cleaned.submit.min())
    span = int((cleaned.submit + cleaned.run_time).max()) - first
    begins, undated = beginning(workload, first)
    return {
        "schema_version": SCHEMA_VERSION,
        "source": workload.source,
        "jobs": len(workload),
        "comments": len(workload.comments),
        "header": {key: value for key, value in workload.header().items() if key in _FACTS},
        "machine": {"processors": processors, "from": origin},
        "largest_job": int(cleaned.allocated.max()),
        "begins": begins,
        "first_submit_s": first,
        "submit_span_s": int(cleaned.submit.max()) - first,
        "least_makespan_s": span,
        "recorded_makespan_s": recorded_makespan(workload),
        "load": None if processors is None else _area(cleaned) / (processors * span),
        "users": len(np.unique(workload.user[workload.user >= 0])),
        "serial": float((cleaned.allocated == 1).mean()),
        "powers_of_two": float(((cleaned.allocated & (cleaned.allocated - 1)) == 0).mean()),
        "status": _counts(workload.status),
        "distributions": distributions(workload),
        "rounded": dict(workload.roundings),
        "warnings": warnings(workload, cleaned, processors, origin) + undated,
        "cleaning": report.to_json(),
    }


def _counts(values: Ints) -> dict[str, int]:
    return {str(value): int(n) for value, n in zip(*np.unique(values, return_counts=True), strict=True)}


def _area(cleaned: Workload) -> float:
    return float((cleaned.allocated * cleaned.run_time.astype(np.float64)).sum())


def machine_size(workload: Workload, machine: Machine | None) -> tuple[int | None, str]:
    """Return the number of processors of the machine, None if it is unknown, and its source in words."""
    if machine is not None:
        return machine.nodes * machine.cores, "given"
    named = workload.header_number("MaxProcs") or 0
    return (named, "MaxProcs of the log") if named > 0 else (None, "unknown")


def beginning(workload: Workload, first: int) -> tuple[str | None, list[str]]:
    """Return the time in UTC of a second of the log, None if it is unknown, and sentences on errors in its header."""
    try:
        date = workload.date(first)
    except WorkloadError as error:
        return None, [str(error)]
    return None if date is None else date.astimezone(timezone.utc).isoformat(), []


def recorded_makespan(workload: Workload) -> int | None:
    """Return the seconds from the first submission to the last end in the log; None if waits are unknown."""
    known = (workload.wait >= 0) & (workload.run_time >= 0)
    if not known.any():
        return None
    ends = workload.submit[known] + workload.wait[known] + workload.run_time[known]
    return int(ends.max() - workload.submit.min())


def distributions(workload: Workload) -> dict[str, dict[str, float] | None]:
    """Return count, mean and quantiles of the known values of each property of jobs; None if none is known."""
    asked, ran = workload.requested_time, workload.run_time
    both = (asked > 0) & (ran >= 0)
    return {
        "processors": _distribution(workload.processors, 1),
        "run_time": _distribution(ran),
        "requested_time": _distribution(asked, 1),
        "wait": _distribution(workload.wait),
        "between_arrivals": _distribution(np.diff(np.sort(workload.submit)).astype(np.int64)),
        "accuracy": _distribution(ran[both] / asked[both]),
    }


def _distribution(values: Ints | NDArray[np.float64], least: int = 0) -> dict[str, float] | None:
    known = values[values >= least]
    if not len(known):
        return None
    names = ("min", "p10", "median", "p90", "p99", "max")
    quantiles = np.quantile(known, (0, 0.1, 0.5, 0.9, 0.99, 1))
    found = {"known": len(known), "mean": float(known.mean())}
    return found | {name: float(value) for name, value in zip(names, quantiles, strict=True)}


def warnings(workload: Workload, cleaned: Workload, processors: int | None, origin: str) -> list[str]:
    """Return sentences about possible errors of a log as a whole."""
    found = []
    announced = workload.header_number("MaxRecords")
    if announced is not None and announced != len(workload):
        found.append(f"The header announces {counted(announced, 'record')}, {len(workload):,} are here.")
    larger = 0 if processors is None else int((cleaned.allocated > processors).sum())
    if larger:
        found.append(f"{counted(larger, 'job')} larger than the machine of {processors:,} processors ({origin}).")
    found += [f"{sentence}." for sentence in roundings(workload)]
    return found


def roundings(workload: Workload) -> list[str]:
    """Return a sentence, without full stop, for each field with values that were rounded on reading."""
    return [f"{counted(number, 'fraction')} of {name} rounded to whole numbers" for name, number in workload.roundings]
