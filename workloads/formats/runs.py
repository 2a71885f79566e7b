# SPDX-License-Identifier: Apache-2.0
"""From the runs of jobs in an accounting log to a workload: numbers for names, seconds of the log, SWF's statuses."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.workloads.errors import WorkloadError, counted, short
from drom.workloads.fields import FIELDS, UNKNOWN
from drom.workloads.limits import MOST_JOBS
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import tzinfo

    from drom.workloads.workload import Workload

FAILED, COMPLETED, PARTIAL, CANCELLED = 0, 1, 2, 5
"""Statuses of SWF. PARTIAL is an execution of a job that was continued, here by another one."""
NAMED = {"user": "User", "group": "Group", "queue": "Queue", "partition": "Partition"}
"""Fields whose names a header explains, and the keys of these comments."""
LEFT_OUT = "; Note: left out: "
"""How the comment on jobs begins that are in the log, but not in the workload."""
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job. Times are in seconds, memory in kilobytes for all processors; None is unknown.

    Runs with the same `key` are of one job, which was requeued. `number` is the job's, if the system has whole numbers.
    A run without `run_time` has not started, or not ended.
    """

    line: int
    key: str
    number: int | None
    submit: float
    wait: float | None
    run_time: float | None
    processors: int | None
    status: int
    requested_processors: int | None = None
    requested_time: float | None = None
    cpu_seconds: float | None = None
    used_memory: float | None = None
    requested_memory: float | None = None
    user: str = ""
    group: str = ""
    executable: str = ""
    queue: str = ""
    partition: str = ""


class Times(NamedTuple):
    """When a run was submitted, how long it waited and ran; None if it has not started, or not ended."""

    submit: float
    wait: float | None
    run_time: float | None


def times_of(place: str, submit: float, start: float | None, end: float | None, processors: int | None) -> Times:
    """Return the times of a run; one without processors has not started. Raises WorkloadError if it ends too early."""
    if start is None or end is None or not processors:
        return Times(submit, None, None)
    if end < start:
        msg = f"{place}: the job ends {start - end:,.0f} s before it starts: correct the line, or leave it out."
        raise WorkloadError(msg)
    return Times(submit, max(0.0, start - submit), end - start)


def workload_of(
    runs: Iterable[Run], source: str, system: str, zone: tzinfo | None = None, more: Sequence[str] = ()
) -> Workload:
    """Return the jobs that have run, in order of submission; `more` are further comments.

    With a `zone` times are seconds since 1970, and the header has the date of the first submission; without it they
    are those of the log. Of a job that ran several times the last run counts, from the first submission on; its
    earlier runs follow it with status 2. Raises WorkloadError for too many runs and for numbers that SWF cannot have.
    """
    jobs: dict[str, list[Run]] = defaultdict(list)
    found = 0
    for run in runs:
        found += 1
        if found > MOST_JOBS:
            msg = f"{source} has more than {MOST_JOBS:,} runs of jobs: convert it in parts."
            raise WorkloadError(msg)
        if run.run_time is not None:
            jobs[run.key].append(run)
    if not jobs:
        msg = f"{source} contains no job that has run: name a log of {system} with jobs that have ended."
        raise WorkloadError(msg)
    rows = [row for several in sorted(map(_whole_job, jobs.values()), key=_submission) for row in several]
    base = 0 if zone is None else math.floor(rows[0].submit)
    columns, names, roundings = _columns(rows, base)
    left_out = found - len(rows)
    comments = (
        "; Version: 2.2",
        f"; Conversion: by drom, from {system}",
        *([] if zone is None else _dates(base, zone, source)),
        *more,
        *([f"{LEFT_OUT}{counted(left_out, 'job')} that had not started or not ended"] if left_out else []),
        *(f"; {NAMED[field]}: {number} {printable(name)}" for field in NAMED for name, number in names[field].items()),
    )
    _check(columns, rows, source)
    made = make_workload({name: np.array(column) for name, column in columns.items()}, comments=comments, source=source)
    return replace(made, lines=np.array([run.line for run in rows], np.int64), roundings=tuple(roundings.items()))


def _submission(rows: Sequence[Run]) -> float:
    return rows[0].submit


def _whole_job(runs: list[Run]) -> list[Run]:
    """Return the job of several runs and, behind it, the runs before its last one."""
    if len(runs) == 1:
        return runs
    *earlier, last = sorted(runs, key=lambda run: run.submit + (run.wait or 0))
    first = min(run.submit for run in runs)
    job = replace(last, submit=first, wait=last.submit + (last.wait or 0) - first)
    return [job, *(replace(run, status=PARTIAL) for run in earlier)]


def _dates(base: int, zone: tzinfo, source: str) -> tuple[str, ...]:
    """Return the comments on the second 0 of a log. Raises WorkloadError if it is not a date."""
    try:
        begin = datetime.fromtimestamp(base, zone)
    except (ValueError, OverflowError, OSError) as error:
        msg = f"{source}: the first submission, {base:,} s after 1970, is not a date: correct the log."
        raise WorkloadError(msg) from error
    east = int((begin.utcoffset() or timedelta()).total_seconds())
    return f"; UnixStartTime: {base}", f"; TimeZone: {east}", f"; TimeZoneString: {zone}"


def _columns(rows: Sequence[Run], base: int) -> tuple[dict[str, list[int]], dict[str, dict[str, int]], Counter[str]]:
    """Return the columns of a workload, the numbers of names by field, and how many fractions were rounded."""
    names: dict[str, dict[str, int]] = {name: {} for name in (*NAMED, "executable")}
    roundings: Counter[str] = Counter()

    def whole(name: str, value: float | None) -> int:
        if value is None:
            return UNKNOWN
        roundings[name] += value != math.floor(value)
        return math.floor(value + 0.5)

    def number(name: str, text: str) -> int:
        return names[name].setdefault(text, len(names[name]) + 1) if text else UNKNOWN

    numbers = _numbers(rows)
    columns = defaultdict(list)
    for run in rows:
        submit, size = whole("submit", run.submit), run.processors or 0
        row = {
            "job": numbers[run.key],
            "submit": submit - base,
            "wait": UNKNOWN if run.wait is None else math.floor(run.submit + run.wait + 0.5) - submit,
            "run_time": whole("run_time", run.run_time),
            "allocated": size or UNKNOWN,
            "cpu_time": _part(run.cpu_seconds, size),
            "used_memory": _part(run.used_memory, size),
            "requested_processors": run.requested_processors or UNKNOWN,
            "requested_time": whole("requested_time", run.requested_time),
            "requested_memory": _part(run.requested_memory, run.requested_processors or size),
            "status": run.status,
            **{name: number(name, getattr(run, name)) for name in names},
        }
        for name, value in row.items():
            columns[name].append(value)
    return columns, names, +roundings


def _part(value: float | None, processors: int) -> int:
    """Return the part of one processor."""
    return UNKNOWN if value is None or not processors else math.floor(value / processors + 0.5)


def _numbers(rows: Sequence[Run]) -> dict[str, int]:
    """Return a number for each job by key: its own, or one above all others if it has none, or another job has it."""
    owners: dict[int, str] = {}
    for run in rows:
        if run.number is not None:
            owners.setdefault(run.number, run.key)
    numbers = {key: number for number, key in owners.items()}
    free = count(max(owners, default=0) + 1)
    return {
        run.key: numbers[run.key] if run.key in numbers else numbers.setdefault(run.key, next(free)) for run in rows
    }


def _check(columns: Mapping[str, Sequence[int]], rows: Sequence[Run], source: str) -> None:
    """Raise WorkloadError for the first number that is beyond what SWF can have."""
    for field in FIELDS:
        for run, value in zip(rows, columns.get(field.name, ()), strict=False):
            if not field.least <= value <= field.limit:
                where = f"{source}, line {run.line}" if run.line else f"{source}, job {short(run.key)}"
                msg = f"{where}: the {field.label} {value:,} is not between {field.least} and {field.limit:,}."
                raise WorkloadError(msg)


def printable(name: str) -> str:
    """Return a name as it can stand in a comment: in one line, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in name[:_LONGEST_NAME]).strip()
