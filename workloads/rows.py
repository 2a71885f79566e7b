# SPDX-License-Identifier: Apache-2.0
"""Small tables of numbers about jobs, as comma-separated values with a line of names."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drom.workloads.errors import WorkloadError, counted, short

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


class Row(NamedTuple):
    """A line of a table: its place (file and line), and its numbers by name."""

    place: str
    values: dict[str, float]


def read_rows(path: str | os.PathLike[str], layouts: Sequence[Sequence[str]]) -> list[Row]:
    """Return the lines of a table. Its first line must have the names of one of the `layouts`, in any order.

    Raises WorkloadError with file and line of an error.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as stream:
            lines = csv.reader(stream)
            names = [name.strip() for name in next(lines, [])]
            if sorted(names) not in [sorted(layout) for layout in layouts]:
                msg = f"{path}, line 1: write {' or '.join(','.join(layout) for layout in layouts)}."
                raise WorkloadError(msg)
            return [_row(words, names, f"{path}, line {lines.line_num}") for words in lines if words]
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}: name a table of comma-separated values."
        raise WorkloadError(msg) from error
    except (UnicodeDecodeError, csv.Error) as error:
        msg = f"{path} cannot be read as a table: {error}."
        raise WorkloadError(msg) from error


def _row(words: list[str], names: list[str], place: str) -> Row:
    if len(words) != len(names):
        msg = f"{place}: {counted(len(words), 'column')} where the first line has {len(names)}."
        raise WorkloadError(msg)
    return Row(place, {name: _number(word, f"{place}, {name}") for name, word in zip(names, words, strict=True)})


def _number(word: str, place: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not abs(value) < 2**53:
        msg = f"{place}: {short(word)} is not a number."
        raise WorkloadError(msg)
    return value


def whole(row: Row, name: str, least: int = 0) -> int:
    """Return a whole number of a row. Raises WorkloadError for a fraction, and for a number below `least`."""
    value = row.values[name]
    if value < least or value != int(value):
        msg = f"{row.place}, {name}: {value:g} is not a whole number of at least {least}."
        raise WorkloadError(msg)
    return int(value)
