# SPDX-License-Identifier: Apache-2.0
"""The command `drom bench`, with benchmarks from several packages."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from drom.agent.bench import report
from drom.agent.cli.parameters import AsJson
from drom.agent.system.unix_signals import ended_by_sigterm

MEASURES = {
    "node": ("drom.agent.bench.node", "node"),
    "openmp": ("drom.agent.bench.openmp", "measure"),
    "adaptive": ("drom.agent.bench.adaptive", "measure"),
    "faults": ("drom.agent.bench.faults", "faults"),
    "hostile": ("drom.agent.bench.hostile", "hostile_users"),
    "cluster": ("drom.scheduler.bench.cluster", "measure"),
    "slurm": ("drom.scheduler.bench.slurm", "measure"),
}
"""The benchmarks that take a number of runs and return a table: the module and the function of each."""
NAMES = "node, openmp, adaptive, resize-cost, faults, hostile, day, simulate, cluster or slurm"


@ended_by_sigterm()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="BENCHMARK",
            help=f"{NAMES}.",
        ),
    ] = "node",
    runs: Annotated[int, typer.Option(help="Runs of each measurement; for day: days.", min=5)] = 5,
    cycles: Annotated[int, typer.Option(help="Shrinks, moves and growths of each program.", min=5)] = 20,
    log: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="simulate: a log, or a folder of logs; default: $DROM_WORKLOADS."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure the node agent, its recovery from faults, what resizes cost programs, the simulator or a live cluster.

    Prints medians and spread. `adaptive` measures nodes that an adaptive MPI program gets and gives up; `hostile`
    measures orders while another user attacks the agent's sockets; `slurm` measures drom with a real Slurm, as root.
    """
    if what in MEASURES:
        module, name = MEASURES[what]
        report.bench(getattr(import_module(module), name)(runs), as_json=json)
    elif what == "resize-cost":
        from drom.agent.bench.resize import resize_cost

        report.resize_cost(resize_cost(cycles), as_json=json)
    elif what == "day":
        from drom.agent.bench.day import simulate

        report.days(simulate(runs), as_json=json)
    elif what == "simulate":
        from drom.scheduler.bench.simulator import measure

        report.bench(measure(runs, log), as_json=json)
    else:
        msg = f"there is no benchmark {what!r}: choose {NAMES}."
        raise typer.BadParameter(msg)
