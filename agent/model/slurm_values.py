# SPDX-License-Identifier: Apache-2.0
"""Parse single values as Slurm prints them: numbers, times, limits, lists of nodes and licences. Pure.

A text that does not have the expected form raises `WordError`, whose message is a clause such as ``is not a time``.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timezone
from itertools import product
from typing import TYPE_CHECKING

from drom.agent.text import WordError

if TYPE_CHECKING:
    from collections.abc import Iterator

NOTHING = frozenset({"", "(null)", "N/A", "NONE", "None", "none", "Unknown", "n/a", "n/s", "NOT_SET", "INVALID"})
"""Words with which Slurm says that a value is not set."""
ENDLESS = frozenset({"UNLIMITED", "INFINITE", "Partition_Limit", "PARTITION_LIMIT"})
"""Words for a time limit that the job itself does not have."""
MOST_NODES = 100_000
"""The most nodes that a list may name."""
LARGEST = 1 << 64
LAST_YEAR = 9996
"""The last leap year of four digits."""


def word(text: str) -> str:
    """Return a text, empty if Slurm has no value."""
    return "" if text in NOTHING else text


def free_text(text: str) -> str:
    """Return a text that a person wrote, in which only ``(null)`` stands for nothing."""
    return "" if text == "(null)" else text


def number(text: str) -> int:
    """Return a whole number of at most 64 bits. Raises WordError."""
    if re.fullmatch(r"-?[0-9]{1,20}", text) and abs(value := int(text)) < LARGEST:
        return value
    raise WordError("is not a whole number")


def number_or_none(text: str) -> int | None:
    """Return a whole number; None if Slurm has no value. Raises WordError."""
    return None if text in NOTHING else number(text)


def number_or_zero(text: str) -> int:
    """Return a whole number; 0 if Slurm has no value. Raises WordError."""
    return number_or_none(text) or 0


def moment(text: str) -> int | None:
    """Return the seconds since 1970 of a time in UTC, such as ``2026-11-25T03:20:00``; None for no time.

    Years after LAST_YEAR, to which a user may ask for a job, count as that. Raises WordError.
    """
    if text in NOTHING:
        return None
    if found := re.fullmatch(r"([0-9]{4,6})(-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})", text):
        with suppress(ValueError):
            year = min(int(found[1]), LAST_YEAR)
            return int(datetime.fromisoformat(f"{year:04}{found[2]}").replace(tzinfo=timezone.utc).timestamp())
    raise WordError("is not a time such as 2026-11-25T03:20:00")


def limit(text: str) -> int | None:
    """Return the minutes of a time limit such as ``30:00``, ``1:00:00`` or ``2-03:05:00``; None for no limit.

    Slurm counts limits in whole minutes. Raises WordError.
    """
    if text in NOTHING or text in ENDLESS:
        return None
    found = re.fullmatch(r"(?:([0-9]{1,7})-)?(?:([0-9]{1,7}):)?([0-9]{1,10}):([0-9]{2})", text)
    if not found or (found[1] and not found[2]):
        raise WordError("is not a time limit such as 2-03:05:00")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + minutes + -(-seconds // 60)


def words(text: str) -> tuple[str, ...]:
    """Return the parts of a list with commas, none if Slurm has no value."""
    return () if text in NOTHING else tuple(part for part in text.split(",") if part)


def licences(text: str) -> tuple[tuple[str, int], ...]:
    """Return names and counts of licences such as ``matlab:2,drom_gate:1``; a name alone counts 1. Raises WordError."""
    found = []
    for part in words(text):
        name, colon, count = part.replace("*", ":").rpartition(":")
        if not (name if colon else count):
            raise WordError("is not a list of licences such as matlab:2")
        found.append((name, number(count)) if colon else (count, 1))
    return tuple(found)


def hosts(text: str) -> tuple[str, ...]:
    """Return the names of nodes in a list such as ``n[01-04,7],login``. Raises WordError."""
    if text in NOTHING:
        return ()
    found: list[str] = []
    for part in re.findall(r"(?:\[[^][]*\]|[^][,])+|[][]", text):
        found += _expanded(part, MOST_NODES - len(found))
    return tuple(found)


def _expanded(part: str, room: int) -> list[str]:
    pieces = re.split(r"\[([^][]*)\]", part)
    if "[" in "".join(pieces[::2]) or "]" in "".join(pieces[::2]):
        raise WordError("is not a list of nodes such as n[1-4]")
    choices = [[piece] if i % 2 == 0 else list(_range(piece, room)) for i, piece in enumerate(pieces)]
    names = 1
    for choice in choices:
        names *= len(choice)
    if names > room:
        raise WordError(f"names more than {MOST_NODES} nodes")
    return ["".join(chosen) for chosen in product(*choices)]


def _range(piece: str, room: int) -> Iterator[str]:
    for one in piece.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", one)
        if not found or int(found[2] or found[1]) < int(found[1]):
            raise WordError("is not a list of nodes such as n[1-4]")
        first, last = int(found[1]), int(found[2] or found[1])
        if last - first >= room:
            raise WordError(f"names more than {MOST_NODES} nodes")
        yield from (str(index).zfill(len(found[1])) for index in range(first, last + 1))
