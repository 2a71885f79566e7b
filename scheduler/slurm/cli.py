# SPDX-License-Identifier: Apache-2.0
"""The commands `drom slurm`."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from drom.agent.cli import output
from drom.agent.cli.parameters import AsJson
from drom.agent.observe.log import failure
from drom.agent.text import counted, escaped
from drom.scheduler.slurm import checks
from drom.scheduler.slurm.errors import SlurmError
from drom.scheduler.slurm.inspection import inspect_file, inspect_running
from drom.scheduler.slurm.reader import Reader

if TYPE_CHECKING:
    from drom.scheduler.slurm.checks import Finding

app = typer.Typer(help="Check whether drom can work with a Slurm.")
SCHEMA_VERSION = 1


@app.command()
def check(
    level: Annotated[
        int,
        typer.Option(
            help="0: agents respect Slurm's CPUs; 1: malleable jobs share nodes; 2: a daemon decides which.",
            min=checks.LEVELS[0],
            max=checks.LEVELS[-1],
        ),
    ] = 1,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Check a slurm.conf, or a saved 'scontrol show config', instead of the Slurm that runs.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Check the configuration of Slurm for drom: each setting that matters, what to write instead, and why.

    Exit status: 0 nothing must change, 1 something must, 2 the configuration cannot be read. Nothing is changed.
    A slurm.conf is read with cgroup.conf, plugstack.conf and job_submit.lua beside it. A saved output of 'scontrol show
    config' may be followed by that of 'scontrol show partition -o'.
    """
    try:
        site = inspect_file(config) if config else inspect_running(Reader(os.environ), socket.gethostname())
    except SlurmError as error:
        typer.echo(failure(f"drom: {error}"), err=True)
        raise typer.Exit(2) from error
    found = checks.judge(site, level)
    changes = sum(one.state == checks.CHANGE for one in found)
    if json:
        rows = [
            {"state": one.state, "what": one.what, "now": one.now, "wanted": one.wanted, "why": one.why}
            for one in found
        ]
        output.emit({"schema_version": SCHEMA_VERSION, "level": level, "changes": changes, "findings": rows})
    else:
        for one in found:
            _print(one)
        output.say(_summary(found, level))
    raise typer.Exit(int(changes > 0))


def _print(one: Finding) -> None:
    output.say(escaped(f"{one.state:<6}  {one.what}{': ' if one.now else ''}{one.now}"))
    for word, text in (("write", one.wanted), ("why", one.why)):
        if text:
            output.say(escaped(f"        {word:<5}  {text}"))


def _summary(found: list[Finding], level: int) -> str:
    changes, notes = (sum(one.state == state for one in found) for state in (checks.CHANGE, checks.NOTE))
    said = f"{counted(changes, 'setting')} must change for level {level}" if changes else f"Ready for level {level}"
    return f"\n{said}; {counted(notes, 'note')}."
