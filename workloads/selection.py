# SPDX-License-Identifier: Apache-2.0
"""Parts and combinations of workloads: windows, ranges of jobs, time shifts, load, merging."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.workloads.errors import WorkloadError, short
from drom.workloads.fields import TIME_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.workloads.workload import Bools, Ints, Workload

_RANGE = re.compile(r"\s*(\d{1,15})\s*(?:-\s*(\d{1,15})\s*)?")
_OWN_NUMBERS = ("job", "user", "group", "executable")


def in_ranges(numbers: Ints, text: str) -> Bools:
    """Return the mask of the `numbers` in a list of ranges such as ``415000-424999,430000``; both ends are included.

    Raises WorkloadError for any other text.
    """
    found = np.zeros(numbers.shape, dtype=np.bool_)
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            msg = f"{short(part)} is not a job number or a range of them: write for example 415000-424999."
            raise WorkloadError(msg)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            msg = f"{short(part.strip())} runs downwards: write {last}-{first}."
            raise WorkloadError(msg)
        found |= (numbers >= first) & (numbers <= last)
    return found


def instant(workload: Workload, text: str) -> int:
    """Return the submit time in `text`: seconds of the log, or a date and time in the zone of the log.

    Dates (ISO 8601) need the header comment UnixStartTime, and use TimeZone, seconds east of Greenwich, if there is
    one. Raises WorkloadError for any other text, and if the two comments are not a date.
    """
    if re.fullmatch(r"\d{1,10}", text):
        return int(text)
    try:
        date = datetime.fromisoformat(text)
    except ValueError as error:
        msg = f"{short(text)} is not a time: write seconds of the log (86400) or a date (2010-09-22T08:00)."
        raise WorkloadError(msg) from error
    zero = workload.date()
    if zero is None:
        msg = f"{short(text)} cannot be found: the log has no UnixStartTime comment; write seconds of the log instead."
        raise WorkloadError(msg)
    if date.tzinfo is None:
        date = date.replace(tzinfo=zero.tzinfo)
    return (date - zero) // timedelta(seconds=1)


def window(workload: Workload, first: int | None, end: int | None) -> Workload:
    """Return the jobs submitted at or after `first` and before `end`, in seconds of the log; None is no bound."""
    inside = np.ones(len(workload), dtype=np.bool_)
    if first is not None:
        inside &= workload.submit >= first
    if end is not None:
        inside &= workload.submit < end
    return workload.take(inside)


def shift_to_zero(workload: Workload) -> Workload:
    """Return the workload with its first job submitted at 0; UnixStartTime, if there is one, is changed accordingly."""
    earliest = int(workload.submit.min()) if len(workload) else 0
    start = workload.header_number("UnixStartTime")
    comments = workload.comments
    if start is not None:
        named = re.compile(r"[\s;]*UnixStartTime:")
        moved = f"; UnixStartTime: {start + earliest}"
        comments = tuple(moved if named.match(comment) else comment for comment in comments)
    return replace(workload, submit=workload.submit - earliest, comments=comments)


def scale_arrivals(workload: Workload, factor: float) -> Workload:
    """Return the workload with the times between submissions multiplied by `factor`; the load is divided by it.

    The time of the first submission does not change; times are rounded to whole seconds. Raises WorkloadError if the
    factor is not positive or the times become absurd.
    """
    span = int(workload.submit.max() - workload.submit.min()) if len(workload) else 0
    if not (factor > 0 and span * factor < TIME_LIMIT):
        msg = f"Arrivals cannot be scaled by {factor:g}: write a positive factor; below 1 the load grows."
        raise WorkloadError(msg)
    first = workload.submit.min() if len(workload) else 0
    scaled = first + np.rint((workload.submit - first) * factor).astype(np.int64)
    return workload.with_columns(submit=scaled)


def merge(workloads: Sequence[Workload]) -> Workload:
    """Return the jobs of several logs in order of submission, with unchanged times; ties keep the order of the logs.

    Each log's numbers are raised by the largest of the logs before it, so that no two logs share a job, user, group or
    executable; the numbers of the first log stay. The comments are concatenated.
    """
    raised, base = [], dict.fromkeys(_OWN_NUMBERS, 0)
    for log in workloads:
        moved = {name: _raise(getattr(log, name), base[name]) for name in _OWN_NUMBERS}
        raised.append(log.with_columns(**moved, previous_job=_raise(log.previous_job, base["job"])))
        base = {name: max(base[name], int(moved[name].max(initial=0))) for name in _OWN_NUMBERS}
    names = (*workloads[0].columns(), "lines")
    joined: dict[str, Any] = {name: np.concatenate([getattr(log, name) for log in raised]) for name in names}
    order = np.argsort(joined["submit"], kind="stable")
    return replace(
        workloads[0],
        **{name: column[order] for name, column in joined.items()},
        comments=tuple(comment for log in workloads for comment in log.comments),
        source=" + ".join(log.source for log in workloads),
    )


def _raise(numbers: Ints, by: int) -> Ints:
    """Return the numbers with the known ones raised; -1 stays."""
    return np.where(numbers >= 0, numbers + by, numbers)
