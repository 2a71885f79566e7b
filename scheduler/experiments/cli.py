# SPDX-License-Identifier: Apache-2.0
"""`drom experiment`. What needs numpy or numba is imported when the command runs."""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer
from drom.agent.system.unix_signals import ended_by_sigterm
from drom.scheduler.cli.progress import Bar
from drom.workloads.errors import counted
from drom.workloads.files import json_text

_SHOWN = 5


def experiment(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The experiment: factors, levels and seeds.")],
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Simulations to run at once; default: one per CPU.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="The folder for the results; default: the name of FILE."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> None:
    """Simulate all combinations of levels with all seeds, several at once; compare them in pairs.

    Runs that the folder of the results has are not made again.
    """
    from drom.agent.cli import output
    from drom.scheduler.experiments import effects
    from drom.scheduler.experiments.design import parse, read_source
    from drom.scheduler.experiments.experiment import can_draw, run_experiment, write_outcome

    source = read_source(file)
    design = parse(source)
    folder = out or Path(file.stem)
    bar = Bar(sys.stderr, f"simulating {counted(len(design.cells) * len(design.seeds), 'run')}")
    try:
        with ended_by_sigterm():
            outcome = run_experiment(design, source.where, folder, jobs, say=_say, show=bar.show)
    except KeyboardInterrupt:
        bar.clear()
        _say(f"interrupted: the runs that have ended are kept in {folder}: the same command makes the others.")
        raise typer.Exit(130) from None
    finally:
        bar.clear()
    write_outcome(outcome, folder, source.text, shlex.join(["drom", *sys.argv[1:]]))
    if json:
        typer.echo(json_text({"schema_version": 1, "title": design.title, "table": effects.table_of(outcome.rows)}))
    else:
        for line in effects.lines(design, outcome.rows):
            typer.echo(line)
        width = output.width()
        typer.echo(textwrap.fill(effects.note(design), width) if width else effects.note(design))
    typer.echo(f"results written to {folder}", err=True)
    if not can_draw():
        typer.echo("note: report.html is not written: run pip install 'drom[plots]'.", err=True)
    for fault in outcome.faults[:_SHOWN]:
        _say(fault)
    if outcome.faults:
        _say(f"{counted(len(outcome.faults), 'run')} of {len(design.cells) * len(design.seeds):,} failed.")
        raise typer.Exit(1)


def _say(sentence: str) -> None:
    typer.echo(f"drom: {sentence}", err=True)
