# SPDX-License-Identifier: Apache-2.0
"""The command `drom demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from drom.agent.cli.orders import AsJson


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the picture goes.")] = Path("out"),
    seconds: Annotated[float, typer.Option(help="How long the first program runs.")] = 12.0,
    json: AsJson = False,
) -> None:
    """Watch two OpenMP programs share this machine."""
    from drom.agent.demo import run as demonstration

    raise typer.Exit(demonstration.run(out, seconds, as_json=json))
