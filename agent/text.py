# SPDX-License-Identifier: Apache-2.0
"""Parse and format durations, sizes, names and tables as people write and read them.

A text that cannot be parsed raises `WordError` with a sentence. Tables take ten lines, for which rich or tabulate would
be a further package.
"""

from __future__ import annotations

import bisect
import itertools
import re
import unicodedata
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from dromlib import layout as binary
from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
LONGEST = 366 * 86400
"""Seconds of the longest duration."""
LARGEST = (1 << 60) - 1
"""Bytes of the largest size."""
LAST_MOMENT = 253370764799
"""The last second of the year 9998, which every time zone can represent."""
RESOURCE, FEATURE = r"[A-Za-z][A-Za-z0-9_.-]{0,31}", r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}"
"""Patterns of the names of counted resources and of features, which nodes define and jobs may request."""
NODE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the name of a node, as it appears in lists of hosts."""


class WordError(ValueError):
    """Raised when a text does not have the expected form; the message says what to write."""


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


def clean_name(text: str) -> str:
    """Return a job's name without characters that would break a line or a label, cut to the size of a slot's field."""
    printable = "".join(c if shown and c != "\N{REPLACEMENT CHARACTER}" else "_" for c, shown in _shown(text)).strip()
    return binary.cut_text(printable, binary.NAME_SIZE).rstrip(b"\0").decode()


def escaped(text: str) -> str:
    """Return the text with every character escaped that breaks a line, moves a cursor or covers its neighbours.

    These are unprintable characters, combining marks without a letter, and those beyond `MOST_MARKS` on one letter.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if shown else c.encode("unicode_escape").decode() for c, shown in _shown(text))


MOST_MARKS = 2
"""Combining marks on one letter: no language has many more."""


def _shown(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the characters of a text, and whether each can be shown as it is."""
    left = 0
    for c in text:
        if unicodedata.category(c) in ("Mn", "Me"):
            left -= 1
            yield c, left >= 0
        else:
            left = MOST_MARKS if c.isprintable() and c != " " else 0
            yield c, c.isprintable()


def width_of(text: str) -> int:
    """Return how many terminal columns an `escaped` text takes: none for a mark, two for a wide character."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(c: str) -> int:
    if unicodedata.category(c) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def cut_to(text: str, width: int) -> str:
    """Return the longest beginning of a text that fits into `width` columns."""
    if text.isascii():
        return text[:width]
    ends = list(itertools.accumulate(map(_columns, text)))
    return text[: bisect.bisect_right(ends, width)]


def cut_middle(text: str, width: int) -> str:
    """Return a text in at most `width` columns: a longer one as its beginning, an ellipsis and its end."""
    if width_of(text) <= width:
        return text
    begin = cut_to(text, width // 2)
    end = cut_to(text[::-1], max(width - 1 - width_of(begin), 0))[::-1]
    while end and not _columns(end[0]):  # a mark without its letter
        end = end[1:]
    return f"{begin}\N{HORIZONTAL ELLIPSIS}{end}"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> list[str]:
    """Return the lines of a table: rows of `escaped` cells under headings, columns as wide as needed, two blanks apart.

    `align` has a ``>`` for each column whose cells end at its right edge; all others begin at their left. No line has
    trailing blanks.
    """
    lines = [headings, *rows]
    widths = [max(map(width_of, cells)) for cells in zip(*lines, strict=True)]
    return ["  ".join(map(_padded, line, widths, align.ljust(len(widths)))).rstrip() for line in lines]


def _padded(cell: str, width: int, side: str) -> str:
    blanks = " " * (width - width_of(cell))
    return blanks + cell if side == ">" else cell + blanks


def duration(seconds: float) -> str:
    """Return a duration as text in its largest unit: ``0.3 s``, ``42 s``, ``10 min``, ``2 h``, ``3 days``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f} s"
    for unit, name, limit in ((1, "s", 100), (60, "min", 100), (3600, "h", 48)):
        if round(seconds / unit) < limit:
            return f"{round(seconds / unit)} {name}"
    return f"{round(seconds / 86400)} days"


def clock(seconds: float) -> str:
    """Return a duration in the short form for tables: ``42s``, ``10m``, ``2h``, ``3d``."""
    for unit, name, limit in ((1, "s", 100), (60, "m", 100), (3600, "h", 48)):
        if round(seconds / unit) < limit:
            return f"{max(0, round(seconds / unit))}{name}"
    return f"{round(seconds / 86400)}d"


def iso(at: float, precision: str = "seconds") -> str:
    """Return a time (seconds since 1970) as ISO-8601 UTC; a time beyond `LAST_MOMENT` as that."""
    found = datetime.fromtimestamp(min(at, LAST_MOMENT), timezone.utc)
    return found.isoformat(timespec=precision).replace("+00:00", "Z")


def counted(number: float, noun: str) -> str:
    """Return a number of things: ``1 CPU``, ``2 CPUs``, ``2.5 CPUs``."""
    return f"{number if isinstance(number, int) else format(number, 'g')} {noun}{'' if number == 1 else 's'}"


def natural(name: str) -> list[tuple[int, str]]:
    """Return the key that sorts names so that n2 is before n10."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.findall("[0-9]+|[^0-9]+", name)]


CORES_DIFFER = (
    "Cores here differ in their CPUs: jobs get and share whole cores, and a request of N CPUs means as many cores as "
    "always have N, so perhaps more CPUs."
)
"""Explains what a number of CPUs means where some cores have more hardware threads than others."""

KINDS_ALIKE = "Cores of all kinds count alike in shares and requests."
"""Explains how cores are counted on a hybrid machine."""


def span_of(least: int, most: int, noun: str = "CPU") -> str:
    """Return numbers of CPUs from `least` to `most`: ``1 CPU``, ``2 to 4 CPUs``."""
    return f"{least} to {counted(most, noun)}" if least < most else counted(most, noun)


def cpu_names(mask: int) -> str:
    """Return OS CPUs by number: ``CPU 7``, ``CPUs 0-3,8``."""
    return f"CPU{'' if mask.bit_count() == 1 else 's'} {format_cpulist(mask)}"


def cpus_are(mask: int) -> str:
    """Return OS CPUs as the subject of a sentence: ``CPU 7 is``, ``CPUs 0-3,8 are``."""
    return f"{cpu_names(mask)} {'is' if mask.bit_count() == 1 else 'are'}"


def left_alone(busy: int, unavailable: int, foreign: int) -> Iterator[str]:
    """Yield a sentence for each reason why CPUs of a node are not handed out now.

    `busy` is the mask of CPUs that unmanaged programs keep busy, `unavailable` that of CPUs gone, not allowed or
    reserved, `foreign` that of CPUs that are left to jobs of Slurm.
    """
    if foreign:
        yield f"{cpus_are(foreign)} left to jobs of Slurm that run no program under drom."
    if busy:
        them = "it" if busy.bit_count() == 1 else "them"
        yield f"{cpus_are(busy)} left to unmanaged programs, which keep {them} busy."
    if unavailable:
        they = "it is" if unavailable.bit_count() == 1 else "they are"
        yield f"{cpus_are(unavailable)} gone, not allowed or reserved now: {they} handed out again once that is over."


def in_words(size: int) -> str:
    """Return a number of bytes in its largest binary unit: ``4 GiB``, ``512 bytes``."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.4g} {name}"
    return f"{size} bytes"
