# SPDX-License-Identifier: Apache-2.0
"""A folder of results: a row per job (CSV, SWF, and Parquet if pyarrow is installed) and a summary."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.scheduler.analysis.metrics import SCHEMA
from drom.scheduler.analysis.plots import KINDS, PICTURES
from drom.scheduler.analysis.schedule import (
    NAMES,
    NODE_LIST,
    STATES,
    Schedule,
    SharedNode,
    node_lists,
    parse_node_lists,
    schedule_of,
)
from drom.scheduler.errors import SchedulerError
from drom.scheduler.simulator.failures import failures_table
from drom.workloads.files import json_text, replacing
from drom.workloads.swf import lines_of, write_swf

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from drom.scheduler.analysis.schedule import Table
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.workload import Workload


def has_parquet() -> bool:
    """Return whether tables can also be written as Parquet."""
    return importlib.util.find_spec("pyarrow") is not None


def write(run: Simulation, told: dict[str, Any], folder: Path, more: Mapping[str, Table] | None = None) -> None:
    """Write jobs.csv, schedule.swf.gz, jobs.parquet and, after these, summary.json; each completely or not at all.

    `more` are other tables by name, which become CSV files as well. Without a readable summary.json the other files
    are those of a run that could not be written.
    """
    note = f"; Note: schedule by drom simulate, policy {run.policy.name}, event rule {run.machine.event_rule}"
    write_schedule(schedule_of(run), run.work.with_comments(note), told, folder, more)


def failures(run: Simulation) -> dict[str, Table]:
    """Return the table of failures of jobs by its name; nothing if no node of the simulation fails."""
    return {"failures": failures_table(run)} if len(run.world.outages) else {}


def write_schedule(
    schedule: Schedule, work: Workload, told: dict[str, Any], folder: Path, more: Mapping[str, Table] | None = None
) -> None:
    """Write the same files for a schedule of the jobs of a workload."""
    try:
        prepare(folder, pictures=False)
        with ThreadPoolExecutor() as pool:  # zlib and pyarrow do most of their work without the interpreter's lock
            swf = folder / "schedule.swf.gz"
            writing = [pool.submit(_write_swf, work, schedule.table, swf, complete=told["complete"])]
            table = schedule.table | {NODE_LIST: np.array(node_lists(schedule), np.object_)}
            arrow = _arrow_table(table) if has_parquet() else None
            writing.append(pool.submit(_write_csv, table, folder / "jobs.csv", arrow))
            writing += [pool.submit(_write_csv, other, folder / f"{name}.csv") for name, other in (more or {}).items()]
            if arrow is not None:
                writing.append(pool.submit(_write_arrow, arrow, folder / "jobs.parquet"))
        for one in writing:
            one.result()
        with replacing(folder / "summary.json") as stream:
            stream.write((json_text(told, indent=1) + "\n").encode())
    except OSError as error:
        msg = f"The results cannot be written to {folder}: {error.strerror}: name another --out."
        raise SchedulerError(msg) from error


def write_value(told: dict[str, Any], file: Path) -> None:
    """Write a JSON file, completely or not at all, and create its folder. Raises SchedulerError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as stream:
            stream.write((json_text(told, indent=1) + "\n").encode())
    except OSError as error:
        msg = f"The results cannot be written to {file.parent}: {error.strerror}: name another --out."
        raise SchedulerError(msg) from error


def make_folder(folder: Path) -> None:
    """Create a folder for results if it is missing. Raises SchedulerError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{folder} cannot hold results: {error.strerror}: name another folder with --out."
        raise SchedulerError(msg) from error


def prepare(folder: Path, *, pictures: bool = True) -> None:
    """Create a folder for results, or remove old files from it that would not belong to them.

    These are the summary, tables that are not always written and, if `pictures`, pictures. Raises SchedulerError.
    """
    drawn = [f"{name}.{kind}" for name in PICTURES for kind in (*KINDS, "csv")] if pictures else []
    make_folder(folder)
    try:
        for name in ("summary.json", "jobs.parquet", "failures.csv", "fillers.csv", "filler_runs.csv", *drawn):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        msg = f"{folder} cannot hold results: {error.strerror}: name another folder with --out."
        raise SchedulerError(msg) from error


def _write_csv(table: Table, path: Path, arrow: Any = None) -> None:  # noqa: ANN401 - pyarrow is untyped
    """Write a table as CSV; from the same table of pyarrow, if it is given, which takes less time."""
    with replacing(path) as stream:
        stream.write((",".join(table) + "\n").encode())
        if arrow is not None:
            csv: Any = importlib.import_module("pyarrow.csv")
            csv.write_csv(arrow, stream, csv.WriteOptions(include_header=False, quoting_style="none"))
        else:
            for text in lines_of(list(table.values()), ","):
                stream.write(text.encode())


def _write_swf(work: Workload, table: Table, path: Path, *, complete: bool) -> None:
    partial = () if complete else ("; Note: a partial schedule: -1 for what has not happened",)
    write_swf(work.with_columns(wait=table["wait"], run_time=table["run_time"]).with_comments(*partial), path)


def write_parquet(table: Mapping[str, Any], path: Path) -> None:
    """Write a table, of which each column is an array or a list, completely or not at all."""
    _write_arrow(_arrow_table(table), path)


def _write_arrow(arrow: Any, path: Path) -> None:  # noqa: ANN401 - pyarrow is untyped
    parquet: Any = importlib.import_module("pyarrow.parquet")
    with replacing(path) as stream:
        parquet.write_table(arrow, stream)


def _arrow_table(table: Mapping[str, Any]) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return a table of pyarrow, and load what writes it: threads that import pyarrow at once get parts of it."""
    arrow, _, _ = map(importlib.import_module, ("pyarrow", "pyarrow.csv", "pyarrow.parquet"))
    return arrow.Table.from_arrays([_arrow_column(arrow, column) for column in table.values()], names=list(table))


def _arrow_column(arrow: Any, column: Any) -> Any:  # noqa: ANN401 - pyarrow is untyped
    """Return a column for Arrow: a list, or an array of whole numbers or texts, which is converted from its bytes.

    To convert an array pyarrow would first import pandas, if that is installed, for longer than most simulations take.
    """
    if not isinstance(column, np.ndarray):
        return arrow.array(column)
    if column.dtype == np.int64:
        return arrow.Array.from_buffers(arrow.int64(), len(column), [None, arrow.py_buffer(column.copy())])
    texts = [text.encode() for text in column.tolist()]
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return arrow.LargeStringArray.from_buffers(len(texts), arrow.py_buffer(ends), arrow.py_buffer(b"".join(texts)))


def load(folder: Path) -> dict[str, Any]:
    """Return the summary of a folder of results. Raises SchedulerError for a folder that holds none."""
    try:
        told: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        version = told["schema_version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{folder} holds no results: name a folder that drom simulate --out has written."
        raise SchedulerError(msg) from error
    if version != SCHEMA:
        msg = f"{folder} holds results of another version of drom: simulate again with --out {folder}."
        raise SchedulerError(msg)
    return told


def load_schedule(folder: Path) -> Schedule:
    """Return the schedule of a folder of results. Raises SchedulerError for a folder that holds none."""
    told, path = load(folder), folder / "jobs.csv"
    try:
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        _check(head == ",".join((*NAMES, NODE_LIST)))
        *names, _ = NAMES
        numbers = np.loadtxt(lines, np.int64, delimiter=",", usecols=range(len(names)), ndmin=2)
        states, texts = zip(*(line.rsplit(",", 2)[1:] for line in lines), strict=True)
        table: Table = dict(zip(names, numbers.T, strict=True)) | {"state": np.array(states)}
        _check(set(states) <= set(STATES.values()))
        first, runs = parse_node_lists(texts)
    except (OSError, ValueError, KeyError) as error:
        msg = f"{path} is not in the format of drom simulate: simulate again with --out {folder}."
        raise SchedulerError(msg) from error
    machine = told["machine"]
    shared = tuple(SharedNode(*node) for node in told.get("shared_nodes", ()))
    return Schedule(table, machine["nodes"], machine["cores"], told["simulated_until_s"], first, runs, shared)


def _check(right: bool) -> None:  # noqa: FBT001 - like assert
    if not right:
        raise ValueError
