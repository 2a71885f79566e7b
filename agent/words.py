# SPDX-License-Identifier: Apache-2.0
"""Durations, sizes and layouts as people write them. A text that is none raises `WordError` with a sentence."""

from __future__ import annotations

import re

from agent.layouts import ANY, Layout
from dromlib import layout as binary

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
LONGEST = 366 * 86400
"""Seconds of the longest duration."""
LARGEST = (1 << 60) - 1
"""Bytes of the largest size."""


class WordError(ValueError):
    """Raised when a text does not say what it should; the message says what to write."""


def parse_duration(text: str) -> int:
    """Return the seconds in a text such as ``90``, ``90s``, ``10m``, ``2h`` or ``1d``. Raises `WordError`."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST:
        msg = f"{text!r} is not a duration of up to a year: write for example 90s, 10m, 2h or 1d."
        raise WordError(msg)
    return seconds


def parse_size(text: str) -> int:
    """Return the bytes in a text such as ``800M`` or ``4G`` (powers of 1024; no unit: bytes). Raises `WordError`."""
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text)
    size = int(found[1]) << 10 * _POWERS[found[2]] if found else 0
    if not 0 < size <= LARGEST:
        msg = f"{text!r} is not a size: write for example 800M or 4G."
        raise WordError(msg)
    return size


def parse_layout(text: str) -> Layout:
    """Return the layout in ``compact``, ``spread`` or ``per-socket=N``, each with ``!`` or not. Raises `WordError`."""
    found = re.fullmatch(r"(compact|spread|per-socket=([1-9][0-9]{0,5}))(!?)", text)
    if not found:
        msg = f"{text[:40]!r} is not a distribution: write compact, spread or per-socket=N, each with or without !."
        raise WordError(msg)
    kind = "per_socket" if found[2] else found[1]
    return Layout(kind, int(found[2] or 0), bool(found[3]))


def clean_name(text: str) -> str:
    """Return a job's name without characters that would break a line or a label, as short as a slot wants it."""
    printable = "".join(c if c.isprintable() and c != "\N{REPLACEMENT CHARACTER}" else "_" for c in text).strip()
    return binary.cut_text(printable, binary.NAME_SIZE).rstrip(b"\0").decode()


def duration(seconds: float) -> str:
    """Return a duration for people, in its largest unit: ``0.3 s``, ``42 s``, ``10 min``, ``2 h``, ``3 days``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    for unit, name, limit in ((1, "s", 100), (60, "min", 100), (3600, "h", 48)):
        if round(seconds / unit) < limit:
            return f"{round(seconds / unit)} {name}"
    return f"{round(seconds / 86400)} days"


def clock(seconds: float) -> str:
    """Return a duration as briefly as a table wants it: ``42s``, ``10m``, ``2h``, ``3d``."""
    for unit, name, limit in ((1, "s", 100), (60, "m", 100), (3600, "h", 48)):
        if round(seconds / unit) < limit:
            return f"{max(0, round(seconds / unit))}{name}"
    return f"{round(seconds / 86400)}d"


def counted(number: int, noun: str) -> str:
    """Return a number of things: ``1 CPU``, ``2 CPUs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def layout_name(layout: Layout) -> str:
    """Return the text of a layout, or an empty one when none was asked for."""
    return "" if layout == ANY else str(layout)
