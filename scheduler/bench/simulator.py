# SPDX-License-Identifier: Apache-2.0
"""`drom bench simulate`: the time and the memory of simulations, each in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from drom.agent.bench.report import figure
from drom.agent.system import python_command
from drom.agent.topology.detect import describe_host
from drom.scheduler.errors import SchedulerError
from drom.workloads.logs import read_log
from drom.workloads.making import SAMPLE, Recipe, make
from drom.workloads.summary import machine_size
from drom.workloads.swf import write_swf

CURIE, KTH = "CEA-Curie-2011-primary.swf.gz", "KTH-SP2-1996-2.1-cln.swf.gz"


class Case(NamedTuple):
    """A simulation to time: its log (a name, or a recipe), machine, policy, and its targets in seconds and MB."""

    name: str
    log: str | Recipe
    nodes: int
    cores: int
    policy: str
    reach: float | None = None
    choices: tuple[str, ...] = ()
    """Parameters of the policy."""
    memory: float | None = None
    whole: float | None = None
    """The target for the whole command, which reads the log and writes results; None: it is not timed."""


SMALL = Recipe(jobs=20_000, nodes=1024, seed=1, load=0.8)
REAL = (
    Case("EASY, CEA-Curie", CURIE, 5040, 16, "easy", 1),
    Case("Slurm-like, depth 100, CEA-Curie", CURIE, 5040, 16, "slurm", 3),
    Case("SD-Policy, MAX_SLOWDOWN 10, CEA-Curie", CURIE, 5040, 16, "sd", 5, memory=500, whole=5),
    Case("SD-Policy, reservations on nodes, CEA-Curie", CURIE, 5040, 16, "sd", 30, ("reservations=nodes",)),
    Case("conservative, KTH-SP2", KTH, 100, 1, "conservative", 2),
)
GROWN = (
    Case("EASY, 20,000 jobs of the Lublin model", SMALL, 1024, 1, "easy"),
    Case("EASY, 200,000 jobs of the Lublin model", replace(SMALL, jobs=10 * SMALL.jobs), 1024, 1, "easy"),
)
GROWTH = 12.0
"""The target for the ratio of the times of a simulation with ten times the jobs and of one without."""
SAMPLES = (Case("`drom simulate`, sample of 200 jobs, in all", SAMPLE, SAMPLE.nodes, 1, "easy", 2),)


def measure(runs: int, log: Path | None = None) -> dict[str, Any]:
    """Time every case `runs` times; return medians and extremes.

    `log` is a real log, or a folder of them; without it `DROM_WORKLOADS` names the folder. Cases with a missing log are
    left out with a sentence on stderr. Raises SchedulerError if a run fails.
    """
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        for case, path in real_cases(log):
            figures += _figures(case, [_run(case, path) for _ in range(runs)])
            if case.whole is not None:
                walls = [_run(case, path, Path(scratch) / "results")["wall"] for _ in range(runs)]
                figures.append(figure(f"{case.name}: the whole command, with results", "s", walls, case.whole))
        grown = [[_run(case, _made(case, scratch)) for _ in range(runs)] for case in GROWN]
        for case, found in zip(GROWN, grown, strict=True):
            figures += _figures(case, found)
        ratios = [large["seconds"] / small["seconds"] for small, large in zip(*grown, strict=True)]
        figures.append(figure("time for ten times the jobs", "times", ratios, GROWTH))
        for case in SAMPLES:
            walls = [_run(case, _made(case, scratch))["wall"] for _ in range(runs + 1)][1:]
            figures.append(figure(case.name, "s", walls, case.reach))
    return {"schema_version": 1, "machine": describe_host(), "runs": runs, "figures": figures}


def real_cases(log: Path | None) -> list[tuple[Case, Path]]:
    """Return the cases with real logs: those of a folder, or of one file.

    A file without a case is simulated under EASY, Slurm-like and conservative backfilling, on as many one-core nodes as
    its machine has processors according to its header. Raises SchedulerError if it is missing or does not give them.
    """
    place = log or Path(os.environ.get("DROM_WORKLOADS", "/nonexistent"))
    if log is None or log.is_dir():
        for case in REAL:
            if not (place / str(case.log)).is_file():
                where = "$DROM_WORKLOADS" if log is None else str(log)
                sys.stderr.write(f"drom bench: left out: {case.name}: no {case.log} in {where}: name it with --log.\n")
        return [(case, place / str(case.log)) for case in REAL if (place / str(case.log)).is_file()]
    if not log.is_file():
        msg = f"There is no log {log}: name a file, or a folder of logs, with --log."
        raise SchedulerError(msg)
    known = [(case, log) for case in REAL if case.log == log.name]
    return known or [(case, log) for case in _cases_of(log)]


def _cases_of(log: Path) -> list[Case]:
    size, _ = machine_size(read_log(log), None)
    if size is None:
        msg = f"{log} does not give the number of processors of its machine (MaxProcs): benchmark another log."
        raise SchedulerError(msg)
    return [Case(f"{policy}, {log.name}", log.name, size, 1, policy) for policy in ("easy", "slurm", "conservative")]


def _made(case: Case, scratch: str) -> Path:
    """Return the file of a case with a generated log, which is created the first time."""
    if not isinstance(case.log, Recipe):
        msg = f"{case.name} has a log that is not made."
        raise TypeError(msg)
    path = Path(scratch) / f"{case.log.jobs}.swf"
    if not path.exists():
        write_swf(make(case.log), path)
    return path


def _run(case: Case, log: Path, out: Path | None = None) -> dict[str, float]:
    """Simulate in a separate process, with results in `out`; return its seconds, its peak memory and its total time."""
    options = ["--nodes", str(case.nodes), "--cores", str(case.cores), "--policy", case.policy, "--json"]
    for choice in case.choices:
        options += ["--set", choice]
    if out:
        options += ["--out", str(out)]
    begun = time.perf_counter()
    done = subprocess.run(
        python_command.drom("simulate", str(log), *options), capture_output=True, text=True, check=False
    )
    wall = time.perf_counter() - begun
    if done.returncode:
        msg = f"{case.name}: {done.stderr.strip().removeprefix('drom: ')}"
        raise SchedulerError(msg)
    told = json.loads(done.stdout)
    return {"seconds": told["seconds"], "memory": told["peak_memory_bytes"] / 1e6, "wall": wall}


def _figures(case: Case, found: list[dict[str, float]]) -> list[dict[str, Any]]:
    return [
        figure(case.name, "s", [one["seconds"] for one in found], case.reach),
        figure(f"{case.name}: peak memory", "MB", [one["memory"] for one in found], case.memory),
    ]
