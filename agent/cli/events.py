# SPDX-License-Identifier: Apache-2.0
"""The command that shows the events of a node."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

import typer
from drom.agent.cli import output
from drom.agent.cli.orders import RuntimeDir
from drom.agent.config import sources
from drom.agent.observe import event_log, text_view
from drom.agent.text import WordError

INTERVAL = 0.2
"""Seconds between two reads of a history that is followed."""


def events(
    runtime_dir: RuntimeDir,
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Only events of this job.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only events since then: 90s, 10m, 2h or 1d ago, or 2026-11-21T19:50."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new events, until Ctrl-C.")] = False,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="PATH", help="Default: the file in which an agent would keep its events."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON value for each event, one per line.")] = False,
) -> None:
    """Show what has happened on this node, under this agent and those before it."""
    try:
        moment = text_view.parse_since(since, datetime.now(timezone.utc)) if since else ""
    except WordError as error:
        raise typer.BadParameter(str(error)) from error
    path = file or _default(runtime_dir)
    found = False
    for event in event_log.read(path, (lambda: time.sleep(INTERVAL)) if follow else None):
        found = True
        if text_view.is_wanted(event, job, moment):
            output.event(event, as_json=json)
    if not found and path.stat().st_size:
        raise event_log.EventLogError(f"there is no event in {path}: name an agent's file of events with --file.")


def _default(runtime_dir: Path) -> Path:
    settings = sources.load({}, os.environ, sources.default_file(os.environ))
    return replace(sources.options_of(settings), runtime_dir=str(runtime_dir)).events_path
