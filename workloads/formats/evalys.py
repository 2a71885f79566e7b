# SPDX-License-Identifier: Apache-2.0
"""Tables of jobs as Batsim writes them (``_jobs.csv``) and evalys reads them."""

from __future__ import annotations

import csv
import heapq
from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.errors import WorkloadError, counted
from drom.workloads.fields import PROCESSOR_LIMIT
from drom.workloads.formats import values
from drom.workloads.formats.runs import COMPLETED, FAILED, Run, workload_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from drom.workloads.workload import Workload

COLUMNS = (
    *("job_id", "workload_name", "submission_time", "requested_number_of_resources", "requested_time", "success"),
    *("starting_time", "execution_time", "finish_time", "waiting_time", "turnaround_time", "stretch"),
    "allocated_resources",
)
_OLD = {
    "jobID": "job_id",
    "requested_number_of_processors": "requested_number_of_resources",
    "workload": "workload_name",
}
"""Names of columns until Batsim 2."""
_NEEDED = ("job_id", "submission_time", "requested_number_of_resources", "starting_time", "execution_time")
_STATUS = {"1": COMPLETED, "True": COMPLETED, "true": COMPLETED}


def parse(lines: Iterable[str], source: str) -> Workload:
    """Return the jobs of a table, which has its columns in any order. Raises WorkloadError with file and line."""
    rows = csv.reader(lines)
    names = [_OLD.get(name.strip(), name.strip()) for name in next(rows, [])]
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        msg = f"{source}, line 1: the column {', '.join(missing)} is missing: name a table that Batsim has written."
        raise WorkloadError(msg)

    def runs() -> Iterator[Run]:
        for cells in rows:
            if cells:
                place = f"{source}, line {rows.line_num}"
                if len(cells) != len(names):
                    msg = f"{place}: {counted(len(cells), 'column')} where the first line has {len(names)}."
                    raise WorkloadError(msg)
                yield _run(dict(zip(names, cells, strict=True)), place, rows.line_num)

    return workload_of(runs(), source, "Batsim's table of jobs")


def _run(row: dict[str, str], place: str, line: int) -> Run:
    def number(name: str) -> float:
        return values.field(f"{place}, {name}", values.real, row.get(name, "-1"))

    submit, start, run_time, requested = map(
        number, ("submission_time", "starting_time", "execution_time", "requested_time")
    )
    size = int(number("requested_number_of_resources"))
    has_run = size > 0 and run_time >= 0 and start >= submit
    text = row["job_id"]
    return Run(
        line,
        f"{row.get('workload_name', '')} {text}",
        int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else None,
        submit,
        start - submit if has_run else None,
        run_time if has_run else None,
        size,
        _STATUS.get(row.get("success", ""), FAILED),
        requested_processors=size,
        requested_time=requested if requested > 0 else None,
    )


def lines_of(workload: Workload) -> Iterator[str]:
    """Yield the lines of a table. A workload does not say which processors jobs had: the lowest that are free.

    Raises WorkloadError for a job whose size, wait or run time is not known.
    """
    unknown = (workload.processors < 1) | (workload.wait < 0) | (workload.run_time < 0)
    if unknown.any():
        msg = (
            f"{workload.place(int(unknown.argmax()))} has no processors, wait or run time: evalys shows schedules, "
            "such as drom simulate --out writes."
        )
        raise WorkloadError(msg)
    yield ",".join(COLUMNS)
    columns = (workload.job, workload.submit, workload.processors, workload.requested_time, workload.status)
    rows = zip(*(column.tolist() for column in (*columns, workload.wait, workload.run_time)), strict=True)
    for (job, submit, size, requested, status, wait, run_time), where in zip(rows, _places(workload), strict=True):
        start, end = submit + wait, submit + wait + run_time
        asked = (job, "drom", submit, size, requested, int(status == COMPLETED))
        had = (start, run_time, end, wait, end - submit, (end - submit) / run_time if run_time else "", where)
        yield ",".join(map(str, (*asked, *had)))


def _places(workload: Workload) -> list[str]:
    """Return the processors of each job, the lowest that are free at its start, as intervals such as ``0-3 8``."""
    start = workload.submit + workload.wait
    end = start + workload.run_time
    held: list[list[tuple[int, int]]] = [[] for _ in range(len(workload))]
    free = [(0, PROCESSOR_LIMIT * len(workload))]
    ends: list[tuple[int, int]] = []
    for job in np.argsort(start, kind="stable").tolist():
        while ends and ends[0][0] <= start[job]:
            for interval in held[heapq.heappop(ends)[1]]:
                heapq.heappush(free, interval)
        held[job] = _take(free, int(workload.processors[job]))
        heapq.heappush(ends, (int(end[job]), job))
    return [" ".join(f"{low}-{high}" if low < high else str(low) for low, high in intervals) for intervals in held]


def _take(free: list[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """Take the lowest processors from a heap of free intervals."""
    taken: list[tuple[int, int]] = []
    while size:
        low, high = heapq.heappop(free)
        last = min(high, low + size - 1)
        if last < high:
            heapq.heappush(free, (last + 1, high))
        size -= last - low + 1
        if taken and taken[-1][1] == low - 1:
            low = taken.pop()[0]
        taken.append((low, last))
    return taken
