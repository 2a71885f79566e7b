# SPDX-License-Identifier: Apache-2.0
"""The options of `drom history`: what the scheduler is asked, and how its answer is printed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from drom.agent.cli import output
from drom.agent.cli.parameters import AsJson, reader
from drom.scheduler.live.cli import history, tables
from drom.scheduler.live.cli.job_options import JobOptions
from drom.scheduler.live.cluster.paging import SCHEMA_VERSION
from drom.scheduler.live.cluster.spec import MOST_JOBS

FIRST = 1000
"""The number of jobs in a table by default."""


def _moment(text: str) -> float:
    return history.parse_moment(text, time.time())


@dataclass(frozen=True, slots=True)
class HistoryOptions(JobOptions):
    """The options of `drom history`; without `--state` it lists jobs that are over."""

    since: float | None = typer.Option(
        None,
        metavar="TIME",
        help="Only jobs that ended at or after this: 2h (ago), today, 2026-11-20, 2026-11-20T14:30.",
        parser=reader(_moment),
    )
    until: float | None = typer.Option(
        None, metavar="TIME", help="Only jobs that ended before this.", parser=reader(_moment)
    )
    limit: int | None = typer.Option(
        None,
        metavar="N",
        min=0,
        max=MOST_JOBS - 1,
        help="The newest N jobs; 0: all. Default: 1000 in a table, otherwise all.",
    )
    by: str | None = typer.Option(
        None,
        metavar="user|state|day",
        help="Print totals: jobs, core-hours, mean wait.",
        parser=reader(history.parse_by),
    )
    columns: Sequence[str] | None = typer.Option(
        None, metavar="NAME,...", help="The columns of the list.", parser=reader(history.parse_columns)
    )
    csv: bool = typer.Option(False, "--csv", help="Print CSV, with durations in seconds.")
    json: AsJson = False

    @property
    def choice(self) -> dict[str, object]:
        """What chooses jobs, as the scheduler is asked."""
        from drom.scheduler.live.cluster.jobs import FINAL

        chosen = self.job_filter
        fields = {
            "since": self.since,
            "until": self.until,
            "users": list(chosen.users),
            "states": sorted(chosen.states or FINAL),
            "names": list(chosen.names),
        }
        return {name: value for name, value in fields.items() if value}

    @property
    def contradiction(self) -> str:
        """What is wrong with the options together; empty if nothing is."""
        if self.json and self.csv:
            return "--json and --csv contradict each other: give one of them."
        if self.columns and (self.json or self.by):
            return "--columns applies to the list and to --csv: omit it."
        if self.since is not None and self.until is not None and self.since >= self.until:
            return "--since is not before --until: exchange them."
        return ""

    @property
    def most(self) -> int:
        """How many jobs are asked for."""
        first = 0 if self.json or self.csv or self.by else FIRST
        return (first if self.limit is None else self.limit) or MOST_JOBS - 1

    def show(self, value: dict[str, Any]) -> None:
        """Print the scheduler's answer."""
        rows, now, names = value["jobs"], value["time"], self.columns or history.USUAL
        sums = history.totals(rows, self.by, now) if self.by else []
        if self.json:
            found = {"totals": sums} if self.by else {"jobs": rows}
            output.emit(tables.for_scripts({"schema_version": SCHEMA_VERSION, "time": now} | found))
        elif self.csv:
            output.csv(*(history.records_of_totals(sums, self.by) if self.by else history.records(rows, names, now)))
        else:
            for line in self._lines(rows, names, now):
                output.say(line)

    def _lines(self, rows: list[dict[str, Any]], names: Sequence[str], now: float) -> list[str]:
        if not rows:
            return ["No such job is over: see drom queue for those that wait and run."]
        if self.by:
            return history.total_lines(rows, self.by, now)
        shown = history.lines(rows, names, now)
        if len(rows) == FIRST and self.limit is None:
            shown.append(
                f"These are the newest {FIRST:,} jobs: see all with --limit 0, or choose with --since and --user."
            )
        return shown
