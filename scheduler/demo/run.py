# SPDX-License-Identifier: Apache-2.0
"""The demonstration of a cluster: the same jobs under SD-Policy and static backfill, reported, drawn and compared."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.cli.console import Console
from drom.agent.text import table
from drom.scheduler.analysis import comparison, plots, results
from drom.scheduler.demo import story
from drom.scheduler.demo.jobs import CORES, MIX
from drom.scheduler.demo.play import DemoRun
from drom.scheduler.live import accounting
from drom.scheduler.testbed import namespaces
from drom.scheduler.testbed.cluster import HEAD, Cluster, build_ring, why_no_mpi
from drom.workloads.errors import WorkloadError
from drom.workloads.files import json_text

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.demo.play import Outcome

SCHEMA_VERSION = 1
RUNS = {"sd": "SD-Policy: running jobs shrink for others", "slurm": "static backfill: jobs keep their cores"}
"""The policies in the order in which they run, with their titles."""
SHOWN = ("makespan_s", "mean_wait_s", "mean_response_s", "mean_slowdown", "malleable_starts")
NODES = 4
VERDICT = (
    "Every job ran once, on the nodes that it was given, to its right end, though the scheduler was killed;\n"
    "no core was held by two, in {looks} looks at all nodes. Nothing is left behind."
)


def run(out: Path, *, as_json: bool) -> int:
    """Run the demonstration, with results below `out`. Return the exit status: 0 if no errors were found, else 1."""
    try:
        with _ended_by_signals():
            return _run(out, as_json=as_json)
    except (DromError, FileNotFoundError) as error:
        sys.stderr.write(f"drom: {error}\n")
        return 1


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End the block by SystemExit at the first SIGINT or SIGTERM; later ones are ignored, so that it is cleaned up."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def leave(number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _run(out: Path, *, as_json: bool) -> int:
    if reason := namespaces.why_not() or why_no_mpi():
        raise namespaces.MachineError(reason)
    results.prepare(out)
    paper = Console(silent=as_json)
    paper.write(
        f"{NODES} nodes of {CORES} cores, each with a name, an address, a network card and an agent of its own, and\n"
        f"a scheduler on {HEAD}; they talk over TCP with CURVE keys. All are namespaces of this machine, and\n"
        "their cores are emulated: the jobs are MPI programs whose ranks count the core-seconds that they hold\n"
        "instead of using them. Everything else is real. The same jobs come at the same times twice.\n"
    )
    value: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "runs": {}, "problems": []}
    with tempfile.TemporaryDirectory(prefix="drom-cluster-") as folder:
        program = build_ring(Path(folder))
        for policy, title in RUNS.items():
            paper.heading(f"{title} (--policy {policy})")
            outcome = _play(Path(folder) / policy, policy, program, paper)
            value["problems"] += [f"under {policy}: {problem}" for problem in outcome.problems]
            account = accounting.account(outcome.history, accounting.schedule_of(outcome.history))
            results.write_schedule(*account, out / policy)
            value["runs"][policy] = {
                "summary": account.summary,
                "looks": outcome.looks,
                "scheduler_back_s": round(outcome.back_s, 3),
            }
            _draw(account.schedule, outcome.history, out / f"{policy}.png", paper)
    _compare(value, paper, out)
    if as_json:
        sys.stdout.write(json_text(value) + "\n")
    for problem in value["problems"]:
        sys.stderr.write(f"drom: {problem}\n")
    return 1 if value["problems"] else 0


def _play(folder: Path, policy: str, program: Path, paper: Console) -> Outcome:
    with Cluster(folder, "--policy", policy, "--name", policy, nodes=NODES, cores=CORES) as cluster:
        return DemoRun(cluster, program, MIX, lambda line: paper.write(f"{line}\n")).run()


def _draw(schedule: Schedule, told: dict[str, Any], picture: Path, paper: Console) -> None:
    names = [job["name"] for job in told["jobs"]]
    paper.heading("Who had which cores")
    for line in story.chart(schedule, names, told["nodes"], paper.width):
        paper.write(f"{line}\n")
    try:
        plots.write(plots.gantt_figure(schedule, RUNS[picture.stem]), picture)
    except WorkloadError as error:
        paper.write(f"{error}\n")
    else:
        paper.write(f"As a picture: {picture}\n")


def _compare(value: dict[str, Any], paper: Console, out: Path) -> None:
    """Print the figures of both runs side by side, static backfill first, and add them to `value`."""
    order = ["slurm", "sd"]
    summaries = [value["runs"][policy]["summary"] for policy in order]
    rows = [row for row in comparison.rows_of(summaries) if row.figure in SHOWN]
    value["comparison"] = {row.figure: dict(zip(order, row.values, strict=True)) for row in rows}
    paper.heading("Both runs, in whole seconds as the scheduler has written them down")
    cells = [
        [row.label, *map(comparison.number, row.values), "" if row.ratios[1] is None else f"{row.ratios[1]:.2f}"]
        for row in rows
    ]
    paper.write("\n".join(table(["", "static backfill", "SD-Policy", "ratio"], cells, " >>>")) + "\n")
    paper.write(f"All figures: drom compare {os.fspath(out / 'slurm')} {os.fspath(out / 'sd')}\n")
    if not value["problems"]:
        looks = sum(value["runs"][policy]["looks"] for policy in order)
        paper.write("\n" + paper.ink(VERDICT.format(looks=looks), "1;32") + "\n")
