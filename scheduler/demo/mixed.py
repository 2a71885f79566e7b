# SPDX-License-Identifier: Apache-2.0
"""The demonstration of unlike nodes: jobs ask for cores, memory and GPUs of them, planned by constraint programming."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.cli.console import Console
from drom.agent.errors import ControlError
from drom.agent.execution.devices import GPU
from drom.scheduler.analysis import results
from drom.scheduler.cp.model import require
from drom.scheduler.demo import report
from drom.scheduler.demo.mixed_acts import ACTS, GIB, Stage
from drom.scheduler.demo.mixed_story import Size
from drom.scheduler.testbed.local import scheduler, unlike_agents

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION = 1
NODES = {
    "gpu1": Size(4, 32 * GIB, 2),
    "gpu2": Size(4, 32 * GIB, 2),
    "fat": Size(12, 256 * GIB),
    "old1": Size(2, 8 * GIB),
    "old2": Size(2, 8 * GIB),
}
TITLE = "unlike nodes, constraint programming (--policy cp)"
VERDICT = (
    "Every job ran once and saw the GPUs that it was given, and the filler lost nothing. No node had more cores or\n"
    "memory in use than it has, no GPU had two jobs, and no core was held by two, in {looks} looks at all nodes.\n"
    "Nothing is left behind."
)


def run(out: Path, *, as_json: bool, pace: float = 1.0) -> int:
    """Run the demonstration, with results in `out`; jobs take `pace` times as long as usual.

    Return the exit status: 0 if no errors were found, else 1.
    """
    return report.demonstrate(lambda: _run(out, pace, as_json=as_json), as_json=as_json)


def _run(out: Path, pace: float, *, as_json: bool) -> dict[str, Any]:
    require()
    results.prepare(out)
    paper = Console(silent=as_json)
    paper.write("Unlike nodes on this machine, each a real agent whose cores, memory and GPUs are emulated:\n")
    for name, size in NODES.items():
        paper.write(f"  {name:<6}{size.words}\n")
    paper.write("The scheduler is real, too, and plans by constraint programming. Jobs print the GPUs that they see.\n")
    with tempfile.TemporaryDirectory(prefix="drom-mixed-") as folder:
        stage = _play(Path(folder), pace, paper)
    value = {"schema_version": SCHEMA_VERSION, "looks": stage.looks, "problems": stage.problems}
    value["summary"] = report.account_of(stage.history, TITLE, out, paper)
    if not stage.problems:
        paper.write("\n" + paper.ink(VERDICT.format(looks=stage.looks), "1;32") + "\n")
    return value


def _play(folder: Path, pace: float, paper: Console) -> Stage:
    """Play all acts, and return the stage once all jobs are over and the cluster has ended."""
    (folder / "work").mkdir()
    options = {name: _options(size) for name, size in NODES.items()}
    # Plain Python gives the same answers, and starts immediately on a machine that has compiled nothing.
    with (
        scheduler(folder / "queue", "--policy", "cp", "--name", "mixed", NUMBA_DISABLE_JIT="1") as client,
        unlike_agents(folder / "queue", options) as agents,
    ):
        client.await_nodes(len(NODES), agents)
        stage = Stage(client, folder, NODES, lambda line: paper.write(f"{line}\n"), pace)
        try:
            for title, act in ACTS.items():
                paper.heading(title)
                act(stage)
            stage.until_over()
            paper.heading("What the jobs with GPUs printed")
            stage.judge()
        finally:
            with suppress(ControlError):
                stage.clear()
    return stage


def _options(size: Size) -> Sequence[str]:
    """Return the options of the agent of a node."""
    counted = ["--resources", f"{GPU}={size.gpus}"] if size.gpus else []
    return ["--emulate", f"pack:1 core:{size.cores} pu:1", "--memory", f"{size.memory // GIB}G", *counted]
