# SPDX-License-Identifier: Apache-2.0
"""Workloads as tables of comma-separated values, for spreadsheets and data frames: one column per field, by name."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np
from drom.workloads.errors import WorkloadError, counted, short
from drom.workloads.fields import FIELDS, NAMES
from drom.workloads.files import replacing
from drom.workloads.workload import make_workload

if TYPE_CHECKING:
    import os

    from drom.workloads.workload import Workload

_SUFFIXES = (".csv", ".csv.gz")
_LABELS = {field.name: field for field in FIELDS}


def is_table(path: str | os.PathLike[str]) -> bool:
    """Return whether a name is that of a table."""
    return str(path).endswith(_SUFFIXES)


def write_csv(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Write a line of names and a line per job; comments are not written."""
    with replacing(path) as stream:
        stream.write((",".join(NAMES) + "\n").encode("ascii"))
        rows = zip(*(column.tolist() for column in workload.columns().values()), strict=True)
        for row in rows:
            stream.write((",".join(map(str, row)) + "\n").encode("ascii"))


def read_csv(path: str | os.PathLike[str]) -> Workload:
    """Return the jobs of a table. Its first line names fields, in any order; missing fields are unknown.

    Raises WorkloadError with file, line and field of an error.
    """
    try:
        with _text(path) as stream:
            lines = csv.reader(stream)
            names = [name.strip() for name in next(lines, [])]
            check_names(names, f"{path}, line 1")
            rows = [_row(words, names, f"{path}, line {lines.line_num}") for words in lines if words]
    except (UnicodeDecodeError, csv.Error, EOFError, gzip.BadGzipFile, zlib.error) as error:
        msg = f"{path} cannot be read as a table: {error}."
        raise WorkloadError(msg) from error
    if not rows:
        msg = f"{path} contains no job: it has only a line of names."
        raise WorkloadError(msg)
    table = np.array(rows, dtype=np.int64)
    return make_workload({name: table[:, i] for i, name in enumerate(names)}, source=str(path))


def _text(path: str | os.PathLike[str]) -> IO[str]:
    if str(path).endswith(".gz"):
        return cast("IO[str]", io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline=""))
    return Path(path).open(encoding="utf-8-sig", newline="")


def check_names(names: list[str], place: str) -> None:
    """Raise WorkloadError, with `place`, unless these names of columns are fields, each once, `submit` among them."""
    strange = [name for name in names if name not in NAMES]
    if strange or len(set(names)) < len(names) or "submit" not in names:
        fault = (
            f"{short(strange[0])} is not a field" if strange else "each field must occur once, and submit among them"
        )
        msg = f"{place}: {fault}: the fields are {', '.join(NAMES)}."
        raise WorkloadError(msg)


def _row(words: list[str], names: list[str], place: str) -> list[int]:
    if len(words) != len(names):
        msg = f"{place}: {counted(len(words), 'column')} where the first line has {len(names)}."
        raise WorkloadError(msg)
    row = []
    for name, word in zip(names, words, strict=True):
        field = _LABELS[name]
        digits = word.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            msg = f"{place}, {name}: {short(word)} is not a whole number."
            raise WorkloadError(msg)
        if not field.least <= int(word) <= field.limit:
            msg = f"{place}, {name}: {short(word)} is not between {field.least} and {field.limit:,}."
            raise WorkloadError(msg)
        row.append(int(word))
    return row
