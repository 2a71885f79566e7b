# SPDX-License-Identifier: Apache-2.0
"""docs/cluster.md names commands and options that are there."""

from __future__ import annotations

import re

import typer
from drom.agent.config.options import OPTIONS

from drom.app import command_line
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/cluster.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_group(command_line()).commands


def test_its_commands_and_options_are_there() -> None:
    """Those of the cluster all have a place in it."""
    code = "\n".join(re.findall(r"```.*?```|`[^`]+`", PAGE, re.DOTALL))
    named = set(re.findall(r"\bdrom ([a-z]+)", code))
    assert named <= COMMANDS.keys()
    assert {"scheduler", "submit", "queue", "history", "job", "update", "cancel", "hold", "nodes", "drain"} <= named
    known = {option for command in COMMANDS.values() for parameter in command.params for option in parameter.opts}
    known |= {f"--{option.name.replace('_', '-')}" for option in OPTIONS}
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code))
    assert len(options) > 20
    assert options <= known
