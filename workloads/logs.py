# SPDX-License-Identifier: Apache-2.0
"""Logs in all formats: recognised by name and content, read within bounds, written."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from codecs import BOM_UTF8
from contextlib import contextmanager
from datetime import timezone
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from drom.workloads.errors import WorkloadError, short
from drom.workloads.files import json_text, replacing
from drom.workloads.formats import batsim, evalys, history, pbs, sacct, slurm_json
from drom.workloads.swf import GZIP, read_swf, write_swf
from drom.workloads.tables import is_table, read_csv, write_csv

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from datetime import tzinfo

    from drom.workloads.workload import Workload

LONGEST_LINE = 1 << 20
LARGEST_JSON = 1 << 29
"""Bytes. Read, a value of JSON needs some ten times as much memory as its text."""
_HEAD = 1 << 16
RESULTS = "schedule.swf.gz"
"""The log in a folder that `drom simulate --out` has written."""

_OF_LINES: dict[str, Callable[[Iterable[str], str, tzinfo], Workload]] = {
    "sacct": sacct.parse,
    "pbs": pbs.parse,
    "evalys": lambda lines, source, _: evalys.parse(lines, source),
}
_OF_JSON: dict[str, Callable[[dict[str, Any], str, tzinfo], Workload]] = {
    "slurm-json": slurm_json.parse,
    "batsim": lambda value, source, _: batsim.parse(value, source),
    "history": history.parse,
}
_KEYS = {"batsim": "profiles", "slurm-json": "meta", "history": "schema_version"}
"""A key of each format of JSON that the others lack."""
READ = ("swf", "csv", *_OF_LINES, *_OF_JSON)
WRITTEN = ("swf", "csv", "batsim", "evalys")
"""The names of the formats that are read, and that are written."""


def read_log(
    path: str | os.PathLike[str],
    progress: Callable[[int], None] | None = None,
    name: str = "",
    zone: str = "UTC",
) -> Workload:
    """Return the jobs of a log, or of a folder of results, in a format of READ; without a `name` it is recognised.

    `zone` is that of dates without one, and of the header. `progress` gets the bytes of a log in SWF read so far.
    Raises WorkloadError, with the place of an error, and OSError as open does.
    """
    if name and name not in READ:
        msg = f"There is no format {short(name)} to read: choose {', '.join(READ)}."
        raise WorkloadError(msg)
    if Path(path).is_dir() and Path(path, RESULTS).is_file():
        path = Path(path, RESULTS)
    name = name or _recognised(path)
    if name == "swf":
        return read_swf(path, progress)
    if name == "csv":
        return read_csv(path)
    source, where = str(path), _zone(zone)
    with _opened(path) as stream:
        if name in _OF_LINES:
            return _OF_LINES[name](_lines(stream, source), source, where)
        value = _json_value(stream, source)
    name = name if name in _OF_JSON else next((known for known, key in _KEYS.items() if key in value), "")
    if not name:
        msg = f"{source} is JSON of a format that is not known: choose {', '.join(_OF_JSON)} with --from."
        raise WorkloadError(msg)
    return _OF_JSON[name](value, source, where)


def write_log(workload: Workload, path: str | os.PathLike[str], name: str = "") -> None:
    """Write a log in a format of WRITTEN; without a `name` a table or JSON of Batsim, if the path is that of one.

    Raises WorkloadError for jobs that a format cannot have.
    """
    name = name or ("csv" if is_table(path) else "batsim" if str(path).endswith((".json", ".json.gz")) else "swf")
    if name == "csv":
        write_csv(workload, path)
    elif name == "swf":
        write_swf(workload, path)
    elif name == "batsim":
        _write_text(path, [json_text(batsim.value_of(workload))])
    elif name == "evalys":
        _write_text(path, evalys.lines_of(workload))
    else:
        msg = f"There is no format {short(name)} to write: choose {', '.join(WRITTEN)}."
        raise WorkloadError(msg)


def _write_text(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    with replacing(path) as stream:
        for line in lines:
            stream.write(f"{line}\n".encode())


def _recognised(path: str | os.PathLike[str]) -> str:
    """Return the format of a log by its first bytes and its name; JSON has further formats.

    What cannot be read twice, or not at all, is as its name says.
    """
    named = "csv" if is_table(path) else "swf"
    if not Path(path).is_file():
        return named
    try:
        with _opened(path) as stream:
            head = stream.read(_HEAD).removeprefix(BOM_UTF8).lstrip()
    except WorkloadError:
        return named
    first = head.partition(b"\n")[0].decode("utf-8", "replace")
    if first.startswith("{"):
        return "json"
    if "|" in first and "JobID" in first:
        return "sacct"
    if pbs.RECORD.match(first):
        return "pbs"
    return "evalys" if "submission_time" in first.split(",") else named


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file, plain or gzip whatever its name is. Raises WorkloadError for damaged data read within the block."""
    with open(path, "rb") as raw:
        packed = raw.peek(2)[:2] == GZIP
        try:
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            msg = f"{path}: the compressed data are damaged or end early: fetch the file again."
            raise WorkloadError(msg) from error
        except csv.Error as error:
            msg = f"{path} cannot be read as a table: {error}."
            raise WorkloadError(msg) from error


def _lines(stream: IO[bytes], source: str) -> Iterator[str]:
    """Yield lines of text without their ends. Raises WorkloadError for a line that is too long."""
    for number in count(1):
        line = stream.readline(LONGEST_LINE + 1)
        if not line:
            return
        if len(line) > LONGEST_LINE:
            msg = f"{source}, line {number}: longer than {LONGEST_LINE:,} bytes: this is not a log of jobs."
            raise WorkloadError(msg)
        yield (line.removeprefix(BOM_UTF8) if number == 1 else line).decode("utf-8", "backslashreplace").rstrip("\r\n")


def _json_value(stream: IO[bytes], source: str) -> dict[str, Any]:
    text = stream.read(LARGEST_JSON + 1)
    if len(text) > LARGEST_JSON:
        msg = f"{source}: more than {LARGEST_JSON:,} bytes of JSON: convert it in parts, or use sacct -P."
        raise WorkloadError(msg)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{source} is not JSON: {error}."
        raise WorkloadError(msg) from error
    if not isinstance(value, dict):
        msg = f"{source} is JSON without a list of jobs: name a log of {', '.join(_OF_JSON)}."
        raise WorkloadError(msg)
    return value


def _zone(name: str) -> tzinfo:
    try:
        return timezone.utc if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        msg = f"There is no time zone {short(name)} here: write one such as Europe/Berlin; the package tzdata has them."
        raise WorkloadError(msg) from error
