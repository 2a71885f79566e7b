# SPDX-License-Identifier: Apache-2.0
"""The demonstration of drom on a real, unpatched Slurm: the same jobs with and without sharing of nodes, compared."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from drom.agent.cli.console import Console
from drom.scheduler.analysis import results
from drom.scheduler.demo import report
from drom.scheduler.demo.jobs import CORES, MIX
from drom.scheduler.demo.slurm_play import SlurmRun
from drom.scheduler.testbed.cluster import build_ring, why_no_mpi
from drom.scheduler.testbed.namespaces import MachineError
from drom.scheduler.testbed.slurm import SlurmCluster, build_plugin, plugin_line, why_no_slurm, write_job_submit

SCHEMA_VERSION = 1
NODES = 4
RUNS = {
    "backfill": "Slurm alone: jobs keep their nodes (OverSubscribe=NO)",
    "shared": "Slurm with drom: running jobs shrink for others (OverSubscribe=YES:2)",
    "decided": "Slurm with drom slurm: SD-Policy decides which jobs share nodes",
}
"""The partitions in the order in which the jobs run there, with the titles of the runs."""
DECIDED = "decided"
COLUMNS = {"backfill": "Slurm alone", "shared": "agents", DECIDED: "drom slurm"}
SETTINGS = """\
JobSubmitPlugins=lua
Licenses=drom_gate:1000000
PriorityType=priority/multifactor
PartitionName=backfill Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=shared Nodes={nodes} MaxTime=INFINITE State=UP OverSubscribe=YES:2
PartitionName=decided Nodes={nodes} MaxTime=INFINITE State=UP OverSubscribe=YES:2
"""
DEADLINE = 300
"""Seconds that a task may wait for its first cores."""
VERDICT = (
    "Every job ran once, to its right end; no core was held by two, in {looks} looks at all nodes.\n"
    "The mean slowdown is {shared:.2f} and {decided:.2f} times that of Slurm's backfill alone. Nothing is left behind."
)


def run(out: Path, *, as_json: bool) -> int:
    """Run the demonstration, with results below `out`. Return the exit status: 0 if no errors were found, else 1."""
    return report.demonstrate(lambda: _run(out, as_json=as_json), as_json=as_json)


def _run(out: Path, *, as_json: bool) -> dict[str, Any]:
    if reason := why_no_slurm() or why_no_mpi():
        raise MachineError(reason)
    results.prepare(out)
    paper = Console(silent=as_json)
    paper.write(
        f"A real Slurm: slurmctld, and {NODES} nodes of {CORES} cores, each with a slurmd and an agent of drom. All\n"
        "are namespaces of this machine, and their cores are emulated: the jobs are MPI programs whose ranks count\n"
        "the core-seconds that they hold instead of using them. Slurm starts each job; a plugin registers its tasks.\n"
        "The same jobs come at the same times three times.\n"
    )
    value: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "runs": {}, "problems": []}
    with tempfile.TemporaryDirectory(prefix="drom-slurm-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # Slurm's daemon has another user
        program, plugin = build_ring(folder), plugin_line(build_plugin(folder), DEADLINE)
        write_job_submit(folder, gated=DECIDED)
        with SlurmCluster(folder, nodes=NODES, cores=CORES, settings=SETTINGS, plugstack=plugin) as cluster:
            for partition, title in RUNS.items():
                paper.heading(title)
                with cluster.decided(DECIDED) if partition == DECIDED else nullcontext():
                    outcome = SlurmRun(cluster, program, MIX, partition, lambda line: paper.write(f"{line}\n")).run()
                value["problems"] += [f"in {partition}: {problem}" for problem in outcome.problems]
                value["runs"][partition] = {
                    "summary": report.account_of(outcome.history, title, out / partition, paper),
                    "looks": outcome.looks,
                    "slowdown": round(outcome.slowdown, 3),
                }
    paper.heading("All runs, in whole seconds")
    report.compare(value, COLUMNS, out, paper)
    slowdowns = {partition: value["runs"][partition]["slowdown"] for partition in RUNS}
    ratios = {partition: round(slowdown / slowdowns["backfill"], 3) for partition, slowdown in slowdowns.items()}
    value["slowdown_ratios"] = ratios
    if not value["problems"]:
        looks = sum(run["looks"] for run in value["runs"].values())
        paper.write("\n" + paper.ink(VERDICT.format(looks=looks, **ratios), "1;32") + "\n")
    return value
