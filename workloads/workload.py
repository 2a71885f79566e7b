# SPDX-License-Identifier: Apache-2.0
"""A workload as a value: one array per field of the Standard Workload Format, and the comments of its log."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.workloads.errors import WorkloadError
from drom.workloads.fields import NAMES, UNKNOWN
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Mapping

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Jobs in the order of their file. Every column is a read-only int64 array of shape ``(jobs,)``; -1 is unknown.

    Times are in seconds, `submit` from the start of the log, memory in kilobytes per processor. `lines` holds each
    job's line in `source` from 1, or 0 if it did not come from a file. `roundings` counts by field the fractions that
    were rounded to whole numbers on reading.
    """

    job: Ints
    submit: Ints
    wait: Ints
    run_time: Ints
    allocated: Ints
    cpu_time: Ints
    used_memory: Ints
    requested_processors: Ints
    requested_time: Ints
    requested_memory: Ints
    status: Ints
    user: Ints
    group: Ints
    executable: Ints
    queue: Ints
    partition: Ints
    previous_job: Ints
    think_time: Ints
    lines: Ints
    comments: tuple[str, ...] = ()
    source: str = ""
    roundings: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        for name in (*NAMES, "lines"):
            column = getattr(self, name)
            if column.dtype != np.int64 or column.shape != self.job.shape or column.ndim != 1:
                msg = f"Column {name} is not an int64 array of {len(self.job)} jobs."
                raise ValueError(msg)
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.job)

    @property
    def processors(self) -> Ints:
        """The size of each job: allocated processors if they are positive, else those it requested."""
        return np.where(self.allocated > 0, self.allocated, self.requested_processors)

    def columns(self) -> dict[str, Ints]:
        """Return the eighteen columns by name, in the order of the format."""
        return {name: getattr(self, name) for name in NAMES}

    def header(self) -> dict[str, str]:
        """Return the ``; Key: value`` comments; of a repeated key the first value, as the format continues it below."""
        found: dict[str, str] = {}
        for comment in self.comments:
            match = re.match(r"[\s;]*([A-Za-z][A-Za-z0-9]*):\s*(.*?)\s*$", comment)
            if match:
                found.setdefault(match[1], match[2])
        return found

    def header_number(self, key: str) -> int | None:
        """Return the whole number, of at most 18 digits, at the start of a header comment's value; else None."""
        match = re.match(r"-?\d{1,18}(?!\d)", self.header().get(key, ""))
        return int(match[0]) if match else None

    def date(self, second: int = 0) -> datetime | None:
        """Return the date of a second of the log, by UnixStartTime and TimeZone of its header; None without the first.

        TimeZone is in seconds east of Greenwich, by default 0. Raises WorkloadError if the result is not a date.
        """
        start, east = self.header_number("UnixStartTime"), self.header_number("TimeZone") or 0
        if start is None:
            return None
        try:
            zone = timezone(timedelta(seconds=east))
            return datetime.fromtimestamp(start + second, timezone.utc).astimezone(zone)
        except (ValueError, OverflowError, OSError) as error:
            told = f"UnixStartTime {start} and TimeZone {east} of the log are no date"
            msg = f"{told}: both are in seconds: correct the header."
            raise WorkloadError(msg) from error

    def take(self, which: Ints | Bools | slice) -> Workload:
        """Return the jobs at these 0-based positions, in that order, or those in a mask."""
        names = (*NAMES, "lines")
        taken: dict[str, Any] = {name: np.ascontiguousarray(getattr(self, name)[which]) for name in names}
        return replace(self, **taken)

    def with_columns(self, **columns: Ints) -> Workload:
        """Return the workload with some columns replaced."""
        changed: dict[str, Any] = dict(columns)
        return replace(self, **changed)

    def with_comments(self, *comments: str) -> Workload:
        """Return the workload with comments added at the end."""
        return replace(self, comments=(*self.comments, *comments))

    def commented(self, comments: tuple[str, ...]) -> Workload:
        """Return the workload with these comments instead of its own."""
        return replace(self, comments=comments)

    def place(self, position: int) -> str:
        """Return the place of a job for a sentence: its file and line as far as they are known, and its number."""
        line = int(self.lines[position])
        where = f"{self.source}, line {line}: " if line else f"{self.source}: " if self.source else ""
        return f"{where}job {self.job[position]}"


assert tuple(field.name for field in fields(Workload))[: len(NAMES)] == NAMES  # noqa: S101 - two lists, one truth


def make_workload(columns: Mapping[str, Ints], *, comments: tuple[str, ...] = (), source: str = "") -> Workload:
    """Return a workload of these columns, which are copied; missing fields are unknown, jobs are numbered from 1.

    Raises WorkloadError for a name that is not a field.
    """
    strange = [name for name in columns if name not in NAMES]
    if strange:
        msg = f"{strange[0]!r} is not a field of a workload: choose from {', '.join(NAMES)}."
        raise WorkloadError(msg)
    jobs = len(next(iter(columns.values()), ()))
    made: dict[str, Any] = {name: np.full(jobs, UNKNOWN, dtype=np.int64) for name in NAMES}
    made["job"] = np.arange(1, jobs + 1, dtype=np.int64)
    made |= {name: np.array(column, dtype=np.int64) for name, column in columns.items()}
    return Workload(**made, lines=np.zeros(jobs, dtype=np.int64), comments=comments, source=source)
