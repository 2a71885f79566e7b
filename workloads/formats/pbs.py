# SPDX-License-Identifier: Apache-2.0
"""Accounting logs of PBS: Torque, PBS Professional and OpenPBS. A job is the record of its end, E.

Runs that were begun anew leave several such records, or a record R with the times of the run. D says that somebody
deleted the job. What else happened to a job is not needed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from drom.workloads.errors import WorkloadError, short
from drom.workloads.formats import values
from drom.workloads.formats.runs import CANCELLED, COMPLETED, FAILED, Run, times_of, workload_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import tzinfo

    from drom.workloads.workload import Workload

T = TypeVar("T")

RECORD = re.compile(r"(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d);([A-Za-z]{1,2});([^;]*);(.*)", re.ASCII)
"""A record: its date, its kind, the job, and what there is about it."""
_PAIR = re.compile(r'(?:^|(?<= ))([\w.]+)=("[^"]*"|\S*)', re.ASCII)
_NUMBER = re.compile(r"(\d{1,15})(?:\.|$)", re.ASCII)
_SLOT = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?:\*(\d{1,9}))?", re.ASCII)
_ENDED = ("E", "R")


def parse(lines: Iterable[str], source: str, zone: tzinfo) -> Workload:
    """Return the jobs of a log; `zone` is that of its header. Raises WorkloadError with file and line."""
    runs: list[Run] = []
    deleted: set[str] = set()
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        place = f"{source}, line {line}"
        found = RECORD.fullmatch(text)
        if not found:
            msg = f"{place}: {short(text)} is not a record such as 03/01/2026 12:00:00;E;7.server;user=ann ctime=..."
            raise WorkloadError(msg)
        _, kind, job, about = found.groups()
        if kind == "D":
            deleted.add(job)
        if kind in _ENDED:
            fields = {name: value.strip('"') for name, value in _PAIR.findall(about)}
            if kind == "E" or {"start", "end"} <= fields.keys():
                runs.append(_Record(place, fields).run(line, job))
    ended = (replace(run, status=CANCELLED) if run.key in deleted and run.status == FAILED else run for run in runs)
    return workload_of(ended, source, "PBS", zone)


class _Record:
    """What a record says about a job, by name."""

    def __init__(self, place: str, fields: dict[str, str]) -> None:
        self.place = place
        self.fields = fields

    def read(self, read: Callable[[str], T], name: str) -> T:
        return values.field(f"{self.place}, {name}", read, self.fields.get(name, ""))

    def run(self, line: int, job: str) -> Run:
        submit, start, end = (self.read(values.number, name) for name in ("ctime", "start", "end"))
        if submit is None:
            msg = f"{self.place}: the job has no ctime, the time of its submission: leave out the line."
            raise WorkloadError(msg)
        requested = self.requested()
        processors = self.allocated() or requested
        number = _NUMBER.match(job)
        return Run(
            line,
            job,
            int(number[1]) if number else None,
            *times_of(self.place, submit, start, end, processors),
            processors,
            COMPLETED if self.fields.get("Exit_status") == "0" else FAILED,
            requested_processors=requested,
            requested_time=self.read(values.duration, "Resource_List.walltime"),
            cpu_seconds=self.read(values.duration, "resources_used.cput"),
            used_memory=self.read(values.pbs_kilobytes, "resources_used.mem"),
            requested_memory=self.read(values.pbs_kilobytes, "Resource_List.mem"),
            user=self.fields.get("user", ""),
            group=self.fields.get("group", ""),
            executable=self.fields.get("jobname", ""),
            queue=self.fields.get("queue", ""),
        )

    def allocated(self) -> int | None:
        """Return the processors that a job had: the count of PBS or of Torque, or those on its hosts."""
        for name in ("resources_used.ncpus", "total_execution_slots"):
            if found := self.read(values.number, name):
                return found
        return self.read(_slots, "exec_host")

    def requested(self) -> int | None:
        """Return the processors that a job asked for; those of a node of Torque are its `ppn`."""
        for name, key in (("Resource_List.select", "ncpus"), ("Resource_List.nodes", "ppn")):
            if found := self.read(_chunks(key), name):
                return found
        return self.read(values.number, "Resource_List.ncpus")


def _slots(text: str) -> int | None:
    """Return the slots in a list of hosts such as ``n1/0-5+n2/0`` or, with processors of a slot, ``n1/0*8``."""
    if not text:
        return None
    total = 0
    for piece in (piece for part in text.split("+") for piece in (part.partition("/")[2] or "0").split(",")):
        found = _SLOT.fullmatch(piece)
        if not found:
            raise WorkloadError("is not a list of hosts such as n1/0-5+n2/0*8")
        first, last, processors = found.groups()
        total += (int(last or first) - int(first) + 1) * int(processors or 1)
    return total


def _chunks(key: str) -> Callable[[str], int | None]:
    """Return a reader of the processors in a request such as ``2:ncpus=8+1:ncpus=2``, with `key` for those of each."""

    def read(text: str) -> int | None:
        if not text:
            return None
        total = 0
        for count, *words in (part.split(":") for part in text.split("+")):
            each = next((word.partition("=")[2] for word in (count, *words) if word.startswith(f"{key}=")), "1")
            several = count if count.isdecimal() else "1"
            total += (values.number(several) or 0) * (values.number(each) or 0)
        return total

    return read
