# SPDX-License-Identifier: Apache-2.0
"""The command `drom bench`, with benchmarks from several packages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from drom.agent.bench import report
from drom.agent.cli.parameters import AsJson
from drom.agent.system.unix_signals import ended_by_sigterm


@ended_by_sigterm()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="node|openmp|resize-cost|faults|hostile|day|simulate|cluster|slurm", help="The benchmark."
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

    Prints medians and spread. `hostile` measures orders while another user attacks the agent's sockets; `slurm`
    measures drom with a real Slurm, as root.
    """
    if what == "node":
        from drom.agent.bench import node as benchmark

        report.bench(benchmark.node(runs), as_json=json)
    elif what == "openmp":
        from drom.agent.bench import openmp

        report.bench(openmp.measure(runs), as_json=json)
    elif what == "resize-cost":
        from drom.agent.bench.resize import resize_cost

        report.resize_cost(resize_cost(cycles), as_json=json)
    elif what == "faults":
        from drom.agent.bench.faults import faults

        report.bench(faults(runs), as_json=json)
    elif what == "hostile":
        from drom.agent.bench.hostile import hostile_users

        report.bench(hostile_users(runs), as_json=json)
    elif what == "day":
        from drom.agent.bench.day import simulate

        report.days(simulate(runs), as_json=json)
    elif what == "simulate":
        from drom.scheduler.bench.simulator import measure

        report.bench(measure(runs, log), as_json=json)
    elif what == "cluster":
        from drom.scheduler.bench import cluster

        report.bench(cluster.measure(runs), as_json=json)
    elif what == "slurm":
        from drom.scheduler.bench import slurm

        report.bench(slurm.measure(runs), as_json=json)
    else:
        known = "node, openmp, resize-cost, faults, hostile, day, simulate, cluster or slurm"
        msg = f"there is no benchmark {what!r}: choose {known}."
        raise typer.BadParameter(msg)
