# SPDX-License-Identifier: Apache-2.0
"""The demonstrations of clusters, such as `drom demo-cluster` and `drom demo-adaptive`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from drom.agent.cli.parameters import AsJson

WithPictures = Annotated[Path, typer.Option(metavar="DIR", help="The folder for results and pictures.")]
BesidePicture = Annotated[Path, typer.Option(metavar="DIR", help="The folder for results; the picture is beside it.")]


def demo_cluster(out: WithPictures = Path("out/cluster"), json: AsJson = False) -> None:
    """Watch a cluster of four nodes on this machine, under SD-Policy and under static backfill; takes root's rights."""
    from drom.scheduler.demo.run import run

    raise typer.Exit(run(out, as_json=json))


def demo_controllers(out: BesidePicture = Path("out/controllers"), json: AsJson = False) -> None:
    """Watch three active schedulers on this machine, of which one is killed, with a member of their etcd."""
    from drom.scheduler.demo.controllers import run

    raise typer.Exit(run(out, as_json=json))


def demo_adaptive(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The picture of each job's cores over time.")] = Path(
        "out/adaptive.png"
    ),
    json: AsJson = False,
) -> None:
    """Watch an adaptive MPI job shrink and grow over four nodes on this machine; takes root's rights."""
    from drom.scheduler.demo.adaptive import run

    raise typer.Exit(run(out, as_json=json))


def demo_mixed(out: BesidePicture = Path("out/mixed"), json: AsJson = False) -> None:
    """Watch jobs get cores, memory and GPUs of unlike nodes on this machine, under constraint programming."""
    from drom.scheduler.demo.mixed import run

    raise typer.Exit(run(out, as_json=json))


def demo_slurm(out: WithPictures = Path("out/slurm"), json: AsJson = False) -> None:
    """Watch jobs of a real Slurm share nodes on this machine, and without sharing; takes root's rights."""
    from drom.scheduler.demo.slurm import run

    raise typer.Exit(run(out, as_json=json))
