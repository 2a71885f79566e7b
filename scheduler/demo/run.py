# SPDX-License-Identifier: Apache-2.0
"""The demonstration of a cluster: the same jobs under SD-Policy and static backfill, reported, drawn and compared."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.cli.console import Console
from drom.scheduler.analysis import results
from drom.scheduler.demo import report
from drom.scheduler.demo.jobs import CORES, MIX
from drom.scheduler.demo.play import DemoRun
from drom.scheduler.testbed import namespaces
from drom.scheduler.testbed.cluster import HEAD, Cluster, build_ring, why_no_mpi

if TYPE_CHECKING:
    from drom.scheduler.demo.play import Outcome

SCHEMA_VERSION = 1
RUNS = {"sd": "SD-Policy: running jobs shrink for others", "slurm": "static backfill: jobs keep their cores"}
"""The policies in the order in which they run, with their titles."""
NODES = 4
VERDICT = (
    "Every job ran once, on the nodes that it was given, to its right end, though the scheduler was killed;\n"
    "no core was held by two, in {looks} looks at all nodes. Nothing is left behind."
)


def run(out: Path, *, as_json: bool) -> int:
    """Run the demonstration, with results below `out`. Return the exit status: 0 if no errors were found, else 1."""
    return report.demonstrate(lambda: _run(out, as_json=as_json), as_json=as_json)


def _run(out: Path, *, as_json: bool) -> dict[str, Any]:
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
            value["runs"][policy] = {
                "summary": report.account_of(outcome.history, title, out / policy, paper),
                "looks": outcome.looks,
                "scheduler_back_s": round(outcome.back_s, 3),
            }
    paper.heading("Both runs, in whole seconds as the scheduler has written them down")
    report.compare(value, {"slurm": "static backfill", "sd": "SD-Policy"}, out, paper)
    if not value["problems"]:
        looks = sum(run["looks"] for run in value["runs"].values())
        paper.write("\n" + paper.ink(VERDICT.format(looks=looks), "1;32") + "\n")
    return value


def _play(folder: Path, policy: str, program: Path, paper: Console) -> Outcome:
    with Cluster(folder, "--policy", policy, "--name", policy, nodes=NODES, cores=CORES) as cluster:
        return DemoRun(cluster, program, MIX, lambda line: paper.write(f"{line}\n")).run()
