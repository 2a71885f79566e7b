# SPDX-License-Identifier: Apache-2.0
"""What `sacct -P` prints: a line of names, then jobs and their steps, with columns in any order."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from drom.workloads.errors import WorkloadError, counted
from drom.workloads.formats import values
from drom.workloads.formats.runs import CANCELLED, COMPLETED, FAILED, Run, times_of, workload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import tzinfo

    from drom.workloads.workload import Workload

T = TypeVar("T")

COMMAND = (
    "sacct -aPD --format=JobID,JobIDRaw,Submit,Start,End,State,AllocCPUS,ReqCPUS,NNodes,Timelimit,User,Account,"
    "Partition,QOS,JobName,ReqMem,MaxRSS,NTasks,TotalCPU"
)
"""The command whose output has all that is used."""
_NEEDED = (("jobidraw", "jobid"), ("submit",), ("start",), ("end",), ("state",), ("alloccpus", "ncpus"))
_SHOWN = {"jobidraw": "JobIDRaw", "jobid": "JobID", "alloccpus": "AllocCPUS", "ncpus": "NCPUS"}
_ID = re.compile(
    r"(?P<job>(?P<number>\d{1,18})(?P<part>_\d{1,18}|_\[[^]]*\]|\+\d{1,18})?)(?:\.(?P<step>[\w+-]+))?", re.ASCII
)
STATUS = {"COMPLETED": COMPLETED, "CANCELLED": CANCELLED, "REVOKED": CANCELLED}
"""Statuses by state; any other job that has ended has failed."""


@dataclass(slots=True)
class _Use:
    """What the steps of a run used: kilobytes of all tasks of the largest step, CPU seconds of all steps."""

    memory: float | None = None
    cpu_seconds: float | None = None


class _Row:
    """A line by the names of its columns, in lower case."""

    def __init__(self, place: str, names: list[str], cells: list[str]) -> None:
        self.place = place
        self._cells = dict(zip(names, cells, strict=True))

    def text(self, *names: str) -> str:
        """Return the first of these cells that is there and not empty."""
        return next((cell for name in names if (cell := self._cells.get(name, ""))), "")

    def read(self, read: Callable[[str], T], *names: str) -> T:
        return values.field(f"{self.place}, {names[0]}", read, self.text(*names))


def parse(lines: Iterable[str], source: str, zone: tzinfo) -> Workload:
    """Return the jobs of a log; dates without a zone are in `zone`. Raises WorkloadError with file and line."""
    last: dict[str, _Use] = {}
    found: list[tuple[Run, _Use]] = []
    clusters: dict[str, None] = {}
    for line, row in _rows(lines, source):
        match = row.read(_job_id, "jobidraw", "jobid")
        key = f"{row.text('cluster')} {match['job']}".strip()
        if match["step"]:
            _add_step(last.get(key, _Use()), row)  # of a job that is not in the log, nothing is needed
            continue
        last[key] = _Use()
        found.append((_run(row, line, key, None if match["part"] else int(match["number"]), zone), last[key]))
        clusters[row.text("cluster")] = None
    runs = (replace(run, used_memory=use.memory, cpu_seconds=run.cpu_seconds or use.cpu_seconds) for run, use in found)
    return workload_of(runs, source, "sacct", zone, [f"; Computer: {' '.join(clusters)}"] if any(clusters) else [])


def _rows(lines: Iterable[str], source: str) -> Iterator[tuple[int, _Row]]:
    numbered = enumerate(lines, 1)
    _, head = next(numbered, (1, ""))
    names = head.rstrip("|").lower().split("|")
    missing = [several for several in _NEEDED if not set(several) & set(names)]
    if missing:
        wanted = ", ".join(" or ".join(_SHOWN.get(name, name.capitalize()) for name in several) for several in missing)
        msg = f"{source}, line 1: the column {wanted} is missing: write the log with {COMMAND}."
        raise WorkloadError(msg)
    trailing = head.endswith("|")
    for line, text in numbered:
        if not text or text == head:  # several logs may follow each other
            continue
        cells = (text.removesuffix("|") if trailing else text).split("|")
        if len(cells) != len(names):
            msg = (
                f"{source}, line {line}: {counted(len(cells), 'column')} where the first line has {len(names)}: omit "
                "JobName, Comment and SubmitLine, in which users may have written a | or a line end."
            )
            raise WorkloadError(msg)
        yield line, _Row(f"{source}, line {line}", names, cells)


def _job_id(text: str) -> re.Match[str]:
    if found := _ID.fullmatch(text):
        return found
    raise WorkloadError("is not the number of a job or a step, such as 7, 7_3, 7+1 or 7.batch")


def _add_step(use: _Use, row: _Row) -> None:
    """Add what a step used to what its job did."""
    resident, seconds = row.read(values.kilobytes, "maxrss"), row.read(values.duration, "totalcpu")
    if resident is not None:
        use.memory = max(use.memory or 0, resident * (row.read(values.number, "ntasks") or 1))
    if seconds is not None:
        use.cpu_seconds = (use.cpu_seconds or 0) + seconds


def _run(row: _Row, line: int, key: str, number: int | None, zone: tzinfo) -> Run:
    moment = values.moment(zone)
    submit = row.read(moment, "submit")
    if submit is None:
        msg = f"{row.place}: the job has no time of submission: leave out the line."
        raise WorkloadError(msg)
    processors = row.read(values.number, "alloccpus", "ncpus")
    limit = (
        row.read(values.duration, "timelimit") if row.text("timelimit") else row.read(values.minutes, "timelimitraw")
    )
    state = row.text("state").partition(" ")[0]
    return Run(
        line,
        key,
        number,
        *times_of(row.place, submit, row.read(moment, "start"), row.read(moment, "end"), processors),
        processors,
        STATUS.get(state, FAILED),
        requested_processors=row.read(values.number, "reqcpus"),
        requested_time=limit,
        cpu_seconds=row.read(values.duration, "totalcpu"),
        requested_memory=_requested_memory(row, processors),
        user=row.text("user", "uid"),
        group=row.text("account", "group", "gid"),
        executable=row.text("jobname"),
        queue=row.text("qos"),
        partition=row.text("partition"),
    )


def _requested_memory(row: _Row, processors: int | None) -> float | None:
    """Return the kilobytes for the whole job: Slurm before 21.08 prints those of a node, or of a CPU, with a letter."""
    text = row.text("reqmem")
    size = row.read(values.kilobytes, "reqmem")
    if size is None or text[-1] not in "nc":
        return size
    return size * ((row.read(values.number, "nnodes", "allocnodes") if text[-1] == "n" else processors) or 1)
