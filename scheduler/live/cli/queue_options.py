# SPDX-License-Identifier: Apache-2.0
"""The options of `drom queue`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer
from drom.agent.cli.parameters import AsJson, reader
from drom.scheduler.live.cli.job_options import JobOptions

MOST_LISTED = 10_000_000
"""The largest --limit: more jobs than a scheduler can have."""


def _picture(text: str) -> Path:
    """Return the path of a picture. Raises ValueError for an unknown kind of picture."""
    from drom.scheduler.analysis.plots import KINDS

    if Path(text).suffix[1:] not in KINDS:
        kinds = ", ".join(f".{kind}" for kind in KINDS)
        msg = f"{text!r} is not a picture: end its name in one of {kinds}."
        raise ValueError(msg)
    return Path(text)


@dataclass(frozen=True, slots=True)
class QueueOptions(JobOptions):
    """The options of `drom queue`."""

    every: bool = typer.Option(False, "--all", help="Also list the last jobs that have ended.")
    last: int | None = typer.Option(
        None, min=1, max=100_000, help="How many of the last jobs: with --all, default 100; in a report, default all."
    )
    limit: int | None = typer.Option(
        None,
        metavar="N",
        min=0,
        max=MOST_LISTED,
        help="The most waiting and running jobs to list; 0: all. Default: 1000; with --json: all.",
    )
    watch: bool = typer.Option(False, "--watch", help="Repeat the list each second, until Ctrl-C.")
    gantt: Path | None = typer.Option(
        None, metavar="FILE", help="Draw the jobs on each node over time: .png, .svg, .pdf.", parser=reader(_picture)
    )
    out: Path | None = typer.Option(
        None, metavar="DIR", help="Write the jobs that have run to a folder as drom simulate does, for drom compare."
    )
    html: Path | None = typer.Option(
        None, metavar="FILE", help="Write a report on the jobs that have run, with pictures, to one file."
    )
    json: AsJson = False
