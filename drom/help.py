# SPDX-License-Identifier: Apache-2.0
"""Formats the help of a group: its commands under headings, each with the first phrase of its help."""

from __future__ import annotations

import re
from typing import Any

import typer.core

HEADINGS = {
    "The node": ("agent", "doctor", "config", "keys", "topology"),
    "Programs": ("run", "top", "ps", "explain", "events", "resize", "set", "attach", "release", "flags"),
    "Cluster": ("scheduler", "submit", "queue", "history", "job", "update", "cancel", "hold", "nodes", "drain"),
    "Slurm": ("slurm",),
    "Scheduling": ("simulate", "compare", "compare-policies", "experiment", "reproduce", "workload"),
    "Looking at drom itself": (
        "demo",
        "demo-cluster",
        "demo-adaptive",
        "demo-controllers",
        "demo-mixed",
        "demo-slurm",
        "bench",
    ),
}
"""The commands of `drom` by heading, as in drom(1)."""


class Commands(typer.core.TyperGroup):
    """A group of commands: `drom` itself, under `HEADINGS`, or one of its groups, which have few commands."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 - typer's own click has no names for types
        """Return a command with a complete first phrase for lists, which typer would cut off."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help and not command.short_help:
            command.short_help = re.split(r"[.:;](?:\s|$)", " ".join(command.help.split()), maxsplit=1)[0]
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the lists."""
        headings = {"Commands": self.list_commands(ctx)} if ctx.parent else HEADINGS
        for heading, names in headings.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(heading):
                formatter.write_dl([(name, one.get_short_help_str()) for name, one in commands.items()])
