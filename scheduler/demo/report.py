# SPDX-License-Identifier: Apache-2.0
"""What demonstrations of a cluster have in common: a clean end by signals, pictures, and runs side by side."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from drom.agent.text import table
from drom.scheduler.analysis import comparison, plots, results
from drom.scheduler.demo import story
from drom.scheduler.live import accounting
from drom.workloads.errors import WorkloadError
from drom.workloads.files import json_text

from dromlib.errors import DromError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from drom.agent.cli.console import Console

SHOWN = ("makespan_s", "mean_wait_s", "mean_response_s", "mean_slowdown", "malleable_starts")
"""The figures of a comparison that are printed."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block by SystemExit at the first SIGINT or SIGTERM; later ones are ignored, so that it is cleaned up."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def leave(number: int, _frame: object) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def demonstrate(play: Callable[[], dict[str, Any]], *, as_json: bool) -> int:
    """Run a demonstration and return the exit status: 0 if it found no `problems`, else 1.

    What `play` returns is printed if `as_json`; failures of drom and of the machine are sentences.
    """
    try:
        with ended_by_signals():
            value = play()
    except (DromError, FileNotFoundError) as error:
        sys.stderr.write(f"drom: {error}\n")
        return 1
    if as_json:
        sys.stdout.write(json_text(value) + "\n")
    for problem in value["problems"]:
        sys.stderr.write(f"drom: {problem}\n")
    return 1 if value["problems"] else 0


def account_of(history: dict[str, Any], title: str, out: Path, paper: Console) -> dict[str, Any]:
    """Write the results in a history to the folder `out`, draw them, and return their summary.

    The picture lies beside the folder, with its name.
    """
    account = accounting.account(history, accounting.schedule_of(history))
    results.write_schedule(*account, out)
    paper.heading("Who had which cores")
    chart = accounting.chart_of(history)
    for line in story.chart(chart.schedule, chart.labels, history["nodes"], paper.width):
        paper.write(f"{line}\n")
    picture = out.with_suffix(".png")
    try:
        figure = plots.gantt_figure(chart.schedule, title, labels=chart.labels, filling=chart.filling)
        plots.write(figure, picture)
    except WorkloadError as error:
        paper.write(f"{error}\n")
    else:
        paper.write(f"As a picture: {picture}\n")
    return account.summary


def compare(value: dict[str, Any], titles: dict[str, str], out: Path, paper: Console) -> None:
    """Print the figures of runs side by side, and add them to `value`, which has them by run.

    `titles` are the names of the columns by run, that of the reference first. Ratios are to the reference.
    """
    summaries = [value["runs"][run]["summary"] for run in titles]
    rows = [row for row in comparison.rows_of(summaries) if row.figure in SHOWN]
    value["comparison"] = {row.figure: dict(zip(titles, row.values, strict=True)) for row in rows}
    cells = [
        [
            row.label,
            *map(comparison.number, row.values),
            *("" if ratio is None else f"{ratio:.2f}" for ratio in row.ratios[1:]),
        ]
        for row in rows
    ]
    heads = ["", *titles.values(), *["ratio"] * (len(titles) - 1)]
    paper.write("\n".join(table(heads, cells, " " + ">" * (len(heads) - 1))) + "\n")
    paper.write(f"All figures: drom compare {' '.join(os.fspath(out / run) for run in titles)}\n")
