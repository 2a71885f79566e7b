# SPDX-License-Identifier: Apache-2.0
"""The options by which users choose jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import typer
from drom.agent.cli.parameters import reader
from drom.agent.system.users import user_name
from drom.scheduler.live.cluster.job_filter import JobFilter, parse_names, parse_states


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Jobs by user, state and name."""

    users: Sequence[str] | None = typer.Option(
        None, "--user", "-u", metavar="NAME,...", help="Only jobs of these users.", parser=reader(parse_names)
    )
    mine: bool = typer.Option(False, "--me", help="Only one's own jobs.")
    states: Sequence[str] | None = typer.Option(
        None,
        "--state",
        "-t",
        metavar="STATE,...",
        help="Only jobs in these states, such as running.",
        parser=reader(parse_states),
    )
    names: Sequence[str] | None = typer.Option(
        None, "--name", "-n", metavar="NAME,...", help="Only jobs with these names.", parser=reader(parse_names)
    )

    @property
    def job_filter(self) -> JobFilter:
        """The filter for these jobs; all its fields are empty if no option is given."""
        ours = (user_name(os.geteuid()),) if self.mine else ()
        return JobFilter((*(self.users or ()), *ours), self.states or (), self.names or ())
