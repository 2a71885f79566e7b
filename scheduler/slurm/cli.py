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
from drom.agent.cli.usage import finite
from drom.agent.errors import SlurmError
from drom.agent.observe.log import failure
from drom.agent.text import counted, escaped
from drom.scheduler.errors import SchedulerError
from drom.scheduler.slurm import checks
from drom.scheduler.slurm.inspection import inspect_file, inspect_running
from drom.scheduler.slurm.reader import Reader

if TYPE_CHECKING:
    from drom.scheduler.slurm.checks import Finding

app = typer.Typer()
SCHEMA_VERSION = 1
STATE = Path("/var/lib/drom/slurm")


@app.callback(invoke_without_command=True)
def slurm(
    context: typer.Context,
    partition: Annotated[
        str, typer.Option(metavar="NAME", help="The partition whose jobs wait at the gate.")
    ] = "malleable",
    policy: Annotated[
        str, typer.Option(metavar="POLICY", help="The policy that decides: sd, slurm, easy, or a file.")
    ] = "sd",
    choices: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the policy; may be repeated."),
    ] = None,
    state: Annotated[Path, typer.Option(metavar="DIR", help="The folder with the jobs that were released.")] = STATE,
    helper: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The program drom-slurm-helper, which asks Slurm quicker than its commands."),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="The least time between two looks at Slurm; default: 0.25, and 0.1 with --helper.",
            min=0.05,
            max=60,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would start now, and change nothing; takes no gate.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Decide, as SlurmUser or root, which jobs of a Slurm start now, and on which nodes; or run one of the commands.

    Jobs of the partition wait for the licence drom_gate, which job_submit.lua gives them. Where this does not run,
    Slurm starts them itself.
    """
    if context.invoked_subcommand:
        return
    from drom.scheduler.slurm.running import run, show_forecast

    try:
        if dry_run:
            show_forecast(partition, policy, choices or [], as_json=json)
        else:
            run(partition, policy, choices or [], state, interval=interval, helper=helper)
    except SchedulerError as error:
        typer.echo(failure(f"drom: {error}"), err=True)
        raise typer.Exit(1) from error
    except SlurmError as error:
        typer.echo(failure(f"drom: {error}"), err=True)
        raise typer.Exit(2) from error


@app.command()
def report(
    jobs: Annotated[bool, typer.Option("--jobs", help="A row for each job instead of each user.")] = False,
    days: Annotated[
        float, typer.Option(help="Leave out jobs that ended longer ago.", min=0, max=36500, callback=finite)
    ] = 7.0,
    state: Annotated[Path, typer.Option(metavar="DIR", help="The folder of drom slurm, with jobs that ended.")] = STATE,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Also store the jobs that have ended, for a site without the daemon: run this by cron."
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Show what Slurm's jobs used: core-hours that they held, lent to other jobs and borrowed from them.

    Agents with slurm_comments write this into admin comments. Jobs that Slurm still has are read from there, others
    from the folder of drom slurm, where the daemon stores the jobs that end.
    """
    from drom.scheduler.slurm.reporting import show_report

    try:
        show_report(days, state, per_job=jobs, records=record, as_json=json)
    except SlurmError as error:
        typer.echo(failure(f"drom: {error}"), err=True)
        raise typer.Exit(2) from error


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
