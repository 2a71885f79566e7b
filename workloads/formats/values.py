# SPDX-License-Identifier: Apache-2.0
"""Single values of accounting logs: times, durations, sizes, numbers of JSON.

What does not have the expected form raises `WorkloadError`, whose message is a clause such as ``is not a time``.
"""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from drom.workloads.errors import WorkloadError, short
from drom.workloads.fields import NUMBER_LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import tzinfo

T = TypeVar("T")

NOTHING = frozenset({"", "Unknown", "None", "N/A", "(null)", "INVALID"})
"""Words with which Slurm says that it has no value."""
ENDLESS = frozenset({"UNLIMITED", "INFINITE", "Partition_Limit"})
"""Words for a time limit that the job itself does not have."""
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(\.\d{1,9})?(?:(Z)|([+-]\d\d):?(\d\d))?", re.ASCII)
_DURATION = re.compile(r"(?:(\d{1,7})[-:])??(?:(\d{1,10}):)??(?:(\d{1,10}):)?(\d{1,11}(?:\.\d{1,9})?)", re.ASCII)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)([KMGTP]?)([nc]?)", re.ASCII)
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_PBS_SIZE = re.compile(r"(\d{1,18})([kmgtp]?)[bw]?", re.ASCII | re.IGNORECASE)
_PBS_WORD = 8


def field(place: str, read: Callable[[Any], T], value: object) -> T:
    """Return a value as `read` reads it. Raises WorkloadError, a sentence with the place of the value."""
    try:
        return read(value)
    except WorkloadError as error:
        msg = f"{place}: {short(str(value))} {error}."
        raise WorkloadError(msg) from error


def moment(zone: tzinfo) -> Callable[[str], float | None]:
    """Return a reader of times as seconds since 1970; dates without a zone are in this one."""

    def read(text: str) -> float | None:
        if text in NOTHING:
            return None
        if text.isascii() and text.isdecimal() and len(text) <= 11:
            return float(text)
        if found := _DATE.fullmatch(text):
            day, clock, fraction, utc, hours, rest = found.groups()
            try:
                date = datetime.fromisoformat(f"{day}T{clock}")
                offset = timedelta(hours=int(hours or 0), minutes=int(f"{(hours or '+')[0]}{rest or 0}"))
                date = date.replace(tzinfo=timezone(offset) if utc or hours else zone)
                return date.timestamp() + float(fraction or 0)
            except (ValueError, OverflowError):
                pass
        raise WorkloadError("is not a time such as 2026-03-01T12:00:00, seconds since 1970, or Unknown")

    return read


def duration(text: str) -> float | None:
    """Return the seconds in a duration such as ``2-03:05:00``, ``03:05:00`` or ``05:00.250``; None for none."""
    if text in NOTHING or text in ENDLESS:
        return None
    found = _DURATION.fullmatch(text)
    if not found:
        raise WorkloadError("is not a duration such as 2-03:05:00")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def minutes(text: str) -> float | None:
    """Return the seconds in a number of minutes; None for no limit."""
    found = None if text in ENDLESS else number(text)
    return None if found is None else 60.0 * found


def number(text: str) -> int | None:
    """Return a whole number; None for none."""
    if text in NOTHING:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        return int(text)
    raise WorkloadError("is not a whole number")


def kilobytes(text: str) -> float | None:
    """Return a size of Slurm such as ``1.50G`` or ``4000K`` in kilobytes, without a letter bytes; None for none."""
    if text in NOTHING:
        return None
    if found := _SIZE.fullmatch(text):
        return float(found[1]) * _BYTES[found[2]] / 1024
    raise WorkloadError("is not a size such as 4000M")


def pbs_kilobytes(text: str) -> float | None:
    """Return a size of PBS such as ``8gb``, ``512kb`` or ``100w`` (words of 8 bytes) in kilobytes; None for none."""
    if not text:
        return None
    if found := _PBS_SIZE.fullmatch(text):
        scale = _BYTES[found[2].upper()] * (_PBS_WORD if text[-1] in "wW" else 1)
        return float(found[1]) * scale / 1024
    raise WorkloadError("is not a size such as 8gb")


def real(value: object) -> float:
    """Return a number of JSON, or in a text."""
    try:
        found = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if abs(found) <= NUMBER_LIMIT:
        return found
    raise WorkloadError("is not a number")
