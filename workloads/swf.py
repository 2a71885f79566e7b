# SPDX-License-Identifier: Apache-2.0
"""Reading and writing of logs in the Standard Workload Format: plain or gzip, read in chunks, comments kept.

A chunk is parsed as a whole by numpy; only if it has an error is it read again line by line, to name the line and the
field. Nothing is dropped: a line that is neither a comment, nor blank, nor a job is an error.
"""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np
from drom.workloads.errors import WorkloadError, counted, short
from drom.workloads.fields import COLUMNS, FIELDS, NAMES, Field
from drom.workloads.files import replacing
from drom.workloads.workload import Workload

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Sequence
    from io import BufferedReader

    from drom.workloads.workload import Ints
    from numpy.typing import NDArray

CHUNK_BYTES = 1 << 21
LONGEST_LINE = 1 << 16
_WRITTEN_AT_ONCE = 20_000
GZIP = b"\x1f\x8b"
_PLAIN = b"0123456789-. \t\r\n"
_ODD = re.compile(rb"[-.](?:(?<=[0-9.-]-)|(?<=-)(?![0-9])|(?<![0-9]\.)(?<=\.)|(?<=\.)[0-9]*\.|(?<=-)[0-9]+\.0*[1-9])")
"""Misplaced signs and points, and negative fractions, which numpy would accept."""
_LINE_END = re.compile(rb"\r*\n|\r")
"""The ends of lines of all systems: some write a carriage return alone."""
_COMMENT = re.compile(rb"^[ \t]*;.*$", re.MULTILINE)
_FRACTION = re.compile(rb"\.([0-9]*)")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]*)?")
_LEAST = np.array([field.least for field in FIELDS])
_LIMIT = np.array([field.limit for field in FIELDS])
_FRACTIONS = np.array([field.fractions for field in FIELDS])


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some lines of a log: `values` has the shape ``(jobs, 18)``, `lines` the line numbers of its jobs from 1.

    `roundings` counts the fractions that were rounded, by 0-based column.
    """

    values: Ints
    lines: Ints
    comments: tuple[str, ...]
    roundings: Ints


def read_swf(path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> Workload:
    """Return all jobs of a log, plain or gzip, whatever its name is.

    Keeps 152 bytes per job and needs up to twice that while it reads; the memory of `read_chunks` does not depend on
    the length. `progress` is called with the bytes of the file read so far.
    Raises WorkloadError with file, line and field, also for a file without any job; OSError as open does.
    """
    columns = [np.empty(0, np.int64) for _ in range(COLUMNS + 1)]
    comments: list[str] = []
    roundings = np.zeros(COLUMNS, np.int64)
    for chunk in read_chunks(path, progress):
        comments += chunk.comments
        roundings += chunk.roundings
        for i, column in enumerate(columns):
            old = len(column)
            column.resize(old + len(chunk.lines), refcheck=False)
            column[old:] = chunk.lines if i == COLUMNS else chunk.values[:, i]
    if not len(columns[0]):
        msg = f"{path} contains no job: a line of the Standard Workload Format has {COLUMNS} numbers."
        raise WorkloadError(msg)
    rounded = tuple((name, int(number)) for name, number in zip(NAMES, roundings, strict=True) if number)
    named = dict(zip((*NAMES, "lines"), columns, strict=True))
    return Workload(**named, comments=tuple(comments), source=str(path), roundings=rounded)


def read_chunks(path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> Iterator[Chunk]:
    """Yield a log chunk by chunk, in memory that does not depend on its length. Raises as read_swf does."""
    with open(path, "rb") as raw:
        head = raw.peek(2)[:2]
        stream = cast("BufferedReader", gzip.GzipFile(fileobj=raw)) if head == GZIP else raw
        line = 1
        for text in _whole_lines(stream, str(path)):
            yield _parse(text.removeprefix(BOM_UTF8) if line == 1 else text, line, str(path))
            line += text.count(b"\n")
            if progress:
                progress(raw.tell() if raw.seekable() else 0)


def _whole_lines(stream: BufferedReader, name: str) -> Iterator[bytes]:
    rest, lines, fault = b"", 0, ""
    while not fault:
        block, fault = _read_block(stream)
        if not block:
            break
        if b"\r" in block:
            block = _LINE_END.sub(b"\n", block)
        cut = block.rfind(b"\n") + 1
        if cut:
            text, rest = rest + block[:cut], block[cut:]
            lines += text.count(b"\n")
            yield text
        else:
            rest += block
        if len(rest) > LONGEST_LINE:
            msg = f"{name}, line {lines + 1}: longer than {LONGEST_LINE:,} bytes: this is not a log of jobs."
            raise WorkloadError(msg)
    if fault:
        msg = f"{name}: the compressed data {fault} after line {lines}: fetch the file again."
        raise WorkloadError(msg)
    if rest:
        yield rest + b"\n"


def _read_block(stream: BufferedReader) -> tuple[bytes, str]:
    """Return the next bytes, none at the end, and the error of the compressed data after them."""
    block, fault = bytearray(), ""
    try:
        # Do not split the end of a line.
        while len(block) < CHUNK_BYTES * (1 + block.endswith(b"\r")) and (piece := stream.read1(CHUNK_BYTES)):
            block += piece
    except EOFError:
        fault = "end early,"
    except (gzip.BadGzipFile, zlib.error):
        fault = "are damaged"
    return bytes(block), fault


def _parse(text: bytes, first_line: int, name: str) -> Chunk:
    comments: tuple[str, ...] = ()
    if b";" in text:
        found = _COMMENT.findall(text)
        comments = tuple(line.strip().decode("utf-8", "surrogateescape") for line in found)
        text = _COMMENT.sub(b"", text)
    strange = text.translate(None, _PLAIN) or (_ODD.search(text) if b"." in text else _has_odd_sign(text))
    parsed = None if strange else _parse_numbers(text)
    if parsed is None:
        _explain(text, first_line, name)
    values, offsets, roundings = parsed
    return Chunk(values, offsets + first_line, comments, roundings)


def _has_odd_sign(text: bytes) -> bool:
    """Return whether a minus does not begin a number, as `_ODD` finds it, in lines without points."""
    signs = np.frombuffer(text, np.uint8)
    minus = np.flatnonzero(signs == ord("-"))  # before the first character is, for numpy, the end of the last line
    return bool(((signs[minus - 1] > ord(" ")) | (signs[minus + 1] < ord("0"))).any())


def _parse_numbers(text: bytes) -> tuple[Ints, Ints, Ints] | None:
    """Return values, line offsets of the jobs from 0, and roundings by column; None if any line is not a job."""
    signs = np.frombuffer(text, np.uint8)
    blank = signs <= ord(" ")
    starts = ~blank
    starts[1:] &= blank[:-1]
    ends = np.flatnonzero(signs == ord("\n"))
    per_line = np.add.reduceat(starts.view(np.uint8), np.concatenate(([0], ends[:-1] + 1)), dtype=np.int64)
    if not np.isin(per_line, (0, COLUMNS)).all():
        return None
    offsets = np.flatnonzero(per_line)
    tokens = len(offsets) * COLUMNS
    fractions = _FRACTION.findall(text) if b"." in text else []
    values = _integers(_FRACTION.sub(b"", text) if fractions else text)
    if not tokens:
        return np.empty((0, COLUMNS), np.int64), offsets, np.zeros(COLUMNS, np.int64)
    if len(values) != tokens:
        return None
    roundings = np.zeros(COLUMNS, np.int64)
    if fractions:
        points = np.flatnonzero(signs == ord("."))
        which = np.searchsorted(np.flatnonzero(starts), points, side="right") - 1
        if (np.diff(which) == 0).any():
            return None
        values[which] += np.array([part >= b"5" for part in fractions])
        lost = np.array([part.strip(b"0") != b"" for part in fractions])
        roundings = np.bincount(which[lost] % COLUMNS, minlength=COLUMNS)
    table = values.reshape(-1, COLUMNS)
    if (table < _LEAST).any() or (table > _LIMIT).any() or roundings[~_FRACTIONS].any():
        return None
    return table, offsets, roundings


def _integers(text: bytes) -> Ints:
    """Return the numbers in a text; none if any word in it is not a number."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # numpy stopped before the end
        try:
            return np.fromstring(text, dtype=np.int64, sep=" ")
        except (ValueError, DeprecationWarning):
            return np.empty(0, np.int64)


def _explain(text: bytes, first_line: int, name: str) -> NoReturn:
    """Raise WorkloadError about the first line that is not a job."""
    for number, line in enumerate(text.split(b"\n"), first_line):
        words = re.findall(r"[^ \t\r]+", line.decode("utf-8", "backslashreplace"))  # split() knows more blanks than SWF
        place = f"{name}, line {number}"
        if words and not _NUMBER.fullmatch(words[0]):
            msg = f"{place}, field 1 (job number): {short(words[0])} is not a number: is this a workload log?"
            raise WorkloadError(msg)
        if words and len(words) != COLUMNS:
            msg = f"{place}: {counted(len(words), 'column')} where a job has {COLUMNS}."
            raise WorkloadError(msg)
        for i, (word, field) in enumerate(zip(words, FIELDS, strict=bool(words)), 1):
            fault = _fault(word, field)
            if fault:
                msg = f"{place}, field {i} ({field.label}): {short(word)} {fault}."
                raise WorkloadError(msg)
    raise AssertionError("a chunk that numpy refuses has a faulty line")


def _fault(word: str, field: Field) -> str:
    if not _NUMBER.fullmatch(word):
        return "is not a number"
    whole, _, fraction = word.partition(".")
    if len(whole) > 18 or int(whole) > field.limit or int(whole) + (fraction >= "5") > field.limit:
        return f"is beyond the largest value, {field.limit:,}"
    if int(whole) + (fraction >= "5") < field.least or (word[0] == "-" and fraction.strip("0")):
        return "is negative" + (": -1 stands for unknown" if field.least < 0 else "")
    if fraction.strip("0") and not field.fractions:
        return "is not a whole number"
    return ""


def write_swf(workload: Workload, path: str | os.PathLike[str]) -> None:
    """Write a log, gzip if its name ends in ``.gz``: comments first, then a line per job.

    The same jobs give the same bytes. An existing file is replaced once the new one is complete. Raises OSError as open
    and write do.
    """
    with replacing(path) as stream:
        for comment in workload.comments:
            line = comment if comment.startswith(";") else f"; {comment}"
            stream.write(line.encode("utf-8", "surrogateescape") + b"\n")
        for text in lines_of(list(workload.columns().values()), " "):
            stream.write(text.encode("ascii"))


def lines_of(columns: Sequence[NDArray[Any]], separator: str) -> Iterator[str]:
    """Yield the rows of a table as lines, some thousand at a time.

    A column of whole numbers that are all the same there, as logs have several, becomes a part of the pattern of lines.
    """
    for first in range(0, len(columns[0]), _WRITTEN_AT_ONCE):
        parts = [column[first : first + _WRITTEN_AT_ONCE] for column in columns]
        same = [part.dtype == np.int64 and bool((part == part[0]).all()) for part in parts]
        words = [str(part[0]) if alike else "%s" for part, alike in zip(parts, same, strict=True)]
        line = separator.join(words) + "\n"
        rows = zip(*(part.tolist() for part, alike in zip(parts, same, strict=True) if not alike), strict=True)
        yield line * len(parts[0]) if all(same) else "".join(map(line.__mod__, rows))
