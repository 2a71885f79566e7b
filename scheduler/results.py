# SPDX-License-Identifier: Apache-2.0
"""What a simulation leaves: a row per job (CSV, SWF, Parquet where pyarrow is there) and a summary.

Metrics count jobs that have ended. Times are seconds. A slowdown is response over the run time with all resources, at
least 1 s; a bounded one is at least 1 and takes run times below 10 s as 10 s. Makespan is from the first submission to
the last end. Energy is that of the linear node model (Fan, Weber and Barroso, ISCA 2007) for nodes that stay on for the
makespan: an empty node takes `idle` watts, one with jobs on it `peak`.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import resource
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np

from scheduler.errors import SchedulerError
from scheduler.interface import ENDED, FUTURE, RUNNING, WAITING
from scheduler.world import BUSY, EVENTS
from workloads.files import replacing
from workloads.swf import write_swf

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from scheduler.simulation import Simulation
    from workloads.cleaning import CleaningReport

STATES = {FUTURE: "future", WAITING: "waiting", RUNNING: "running", ENDED: "ended"}
UNKNOWN = -1
_AT_ONCE = 20_000


class Power(NamedTuple):
    """Watts of a node without and with jobs."""

    idle: float = 100.0
    peak: float = 300.0


def columns(run: Simulation) -> dict[str, NDArray[Any]]:
    """Return the table of jobs by column, in order of submission; -1 for what has not happened."""
    jobs, work = run.world.jobs, run.work
    state = jobs.state
    started, ended = state >= RUNNING, state == ENDED
    return {
        "job_id": work.job,
        "submit": work.submit,
        "start": np.where(started, jobs.start, UNKNOWN),
        "end": np.where(ended, run.world.end, UNKNOWN),
        "nodes": jobs.nodes,
        "cores": jobs.cores,
        "wait": np.where(started, jobs.start - work.submit, UNKNOWN),
        "run_time": np.where(ended, run.world.end - jobs.start, UNKNOWN),
        "full_speed_run_time": run.world.run,
        "requested_time": work.requested_time,
        "class": jobs.cls,
        "limit": jobs.limit,
        "lent": jobs.lent,
        "state": np.array([STATES[number] for number in range(4)])[state],
    }


def metrics(run: Simulation, power: Power) -> dict[str, Any]:
    """Return the metrics of the jobs that have ended; None for each where there is no such job."""
    table, machine = columns(run), run.machine
    ended = table["end"] != UNKNOWN
    if not ended.any():
        return {"makespan_s": None, "energy_joule": None} | dict.fromkeys(
            ("mean_response_s", "mean_wait_s", "mean_slowdown", "mean_bounded_slowdown", "utilisation"), None
        )
    response = (table["end"] - table["submit"])[ended]
    needed = np.maximum(table["full_speed_run_time"][ended], 1)
    makespan = int(table["end"].max() - table["submit"].min())
    core_seconds = int((table["cores"] * table["full_speed_run_time"])[ended].sum())
    busy = int(run.world.scalars[BUSY])
    return {
        "makespan_s": makespan,
        "mean_response_s": float(response.mean()),
        "mean_wait_s": float(table["wait"][ended].mean()),
        "mean_slowdown": float((response / needed).mean()),
        "mean_bounded_slowdown": float(np.maximum(1, response / np.maximum(needed, 10)).mean()),
        "utilisation": core_seconds / (machine.nodes * machine.cores * makespan),
        "node_utilisation": busy / (machine.nodes * makespan),
        "energy_joule": power.idle * machine.nodes * makespan + (power.peak - power.idle) * busy,
    }


def summary(run: Simulation, report: CleaningReport, power: Power, stopped: str, seed: int) -> dict[str, Any]:
    """Return everything about a run but its jobs; `stopped` says why it is partial, empty for one that is over."""
    state = run.world.jobs.state
    return {
        "schema_version": 1,
        "complete": run.is_over,
        "stopped": stopped,
        "log": run.work.source,
        "policy": run.policy.name,
        "parameters": run.policy.options,
        "machine": run.machine._asdict(),
        "jobs": {name: int((state == number).sum()) for number, name in STATES.items()},
        "metrics": metrics(run, power),
        "power_model": {"idle_watt": power.idle, "peak_watt": power.peak},
        "cleaning": report.to_json(),
        "seed": seed,
        "calls_of_the_policy": int(run.world.scalars[EVENTS]),
        "simulated_until_s": run.now,
        "seconds": run.seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compiled": run.program.compiled,
        "versions": {
            "drom": metadata.version("drom"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "numba": numba.__version__,
        },
    }


def write(run: Simulation, told: dict[str, Any], folder: Path) -> None:
    """Write jobs.csv, schedule.swf.gz, jobs.parquet and, when they are there, summary.json; each whole or not at all.

    Without a readable summary.json the others are those of a run that could not be written.
    """
    try:
        prepare(folder)
        table = columns(run)
        _write_csv(table, folder / "jobs.csv")
        _write_swf(run, table, folder / "schedule.swf.gz", complete=told["complete"])
        if importlib.util.find_spec("pyarrow"):
            _write_parquet(table, folder / "jobs.parquet")
        with replacing(folder / "summary.json") as stream:
            stream.write((json.dumps(told, indent=1) + "\n").encode())
    except OSError as error:
        msg = f"The results cannot be written to {folder}: {error.strerror}: name another --out."
        raise SchedulerError(msg) from error


def prepare(folder: Path) -> None:
    """Make a folder ready for results: a summary that is there would not be theirs. Raises SchedulerError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").unlink(missing_ok=True)
    except OSError as error:
        msg = f"{folder} cannot hold results: {error.strerror}: name another folder with --out."
        raise SchedulerError(msg) from error


def _write_csv(table: dict[str, NDArray[Any]], path: Path) -> None:
    with replacing(path) as stream:
        stream.write((",".join(table) + "\n").encode())
        for first in range(0, len(table["job_id"]), _AT_ONCE):
            rows = zip(*(column[first : first + _AT_ONCE].tolist() for column in table.values()), strict=True)
            stream.write("".join(",".join(map(str, row)) + "\n" for row in rows).encode())


def _write_swf(run: Simulation, table: dict[str, NDArray[Any]], path: Path, *, complete: bool) -> None:
    note = f"; Note: schedule by drom simulate, policy {run.policy.name}, event rule {run.machine.event_rule}"
    partial = () if complete else ("; Note: a partial schedule: -1 for what has not happened",)
    done = run.work.with_columns(wait=table["wait"], run_time=table["run_time"]).with_comments(note, *partial)
    write_swf(done, path)


def _write_parquet(table: dict[str, NDArray[Any]], path: Path) -> None:
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    with replacing(path) as stream:
        parquet.write_table(arrow.table(table), stream)


def load(folder: Path) -> dict[str, Any]:
    """Return the summary of a folder of results. Raises SchedulerError for a folder that holds none."""
    try:
        told: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        told["metrics"]["makespan_s"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{folder} holds no results: name a folder that drom simulate --out has written."
        raise SchedulerError(msg) from error
    return told
