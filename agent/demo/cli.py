# SPDX-License-Identifier: Apache-2.0
"""The command `drom demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from drom.agent.cli.parameters import AsJson


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder for the picture.")] = Path("out"),
    seconds: Annotated[float, typer.Option(help="The run time of the first program.")] = 12.0,
    json: AsJson = False,
) -> None:
    """Watch two OpenMP programs share this machine."""
    from drom.agent.demo import run as demonstration

    raise typer.Exit(demonstration.run(out, seconds, as_json=json))
