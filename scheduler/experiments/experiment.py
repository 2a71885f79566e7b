# SPDX-License-Identifier: Apache-2.0
"""An experiment from its design to a folder of results, for `drom experiment` and for `drom.experiment` in Python."""

from __future__ import annotations

import csv
import importlib.util
import io
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.scheduler.analysis.results import has_parquet, write_parquet
from drom.scheduler.errors import SchedulerError
from drom.scheduler.experiments.effects import rows_of, runs_of, table_of
from drom.scheduler.experiments.report import write_report
from drom.scheduler.experiments.running import check, run_design
from drom.scheduler.simulator.batch import compile_before
from drom.workloads.files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from drom.scheduler.experiments.design import Design
    from drom.scheduler.experiments.effects import Row

REPORT = "report.html"


class Outcome(NamedTuple):
    """The results of an experiment: a row for each metric and cell, the table of runs, and why runs failed."""

    design: Design
    rows: list[Row]
    runs: dict[str, list[Any]]
    faults: list[str]


def run_experiment(
    design: Design,
    where: Callable[[str], str],
    folder: Path,
    at_once: int | None,
    *,
    say: Callable[[str], None],
    show: Callable[[float], None],
) -> Outcome:
    """Make the runs that `folder` does not have, `at_once` at a time (None: one for each CPU).

    `where` returns the place of a key in a file.

    `say` gets what is compiled, `show` the fraction that is done. Raises SchedulerError for a level that cannot be,
    and if all runs fail.
    """
    seed = design.seeds[0]
    compile_before(dict.fromkeys(design.case(design.chosen(cell), seed).policy for cell in design.cells), say)
    check(design, where)
    found = run_design(design, folder, at_once, show)
    faults = [
        f"{design.name(cell)}, seed {seed}: {run['fault']}" for (cell, seed), run in found.items() if "fault" in run
    ]
    if len(faults) == len(found):
        msg = f"All runs have failed, the first: {faults[0]}"
        raise SchedulerError(msg)
    return Outcome(design, rows_of(design, found), runs_of(design, found), faults)


def write_outcome(outcome: Outcome, folder: Path, text: str, command: str) -> None:
    """Write the tables and, with matplotlib, the report; `text` is the experiment as it was given, by a `command`.

    Raises SchedulerError if they cannot be written.
    """
    try:
        _write_table(outcome.runs, folder / "runs")
        _write_table(table_of(outcome.rows), folder / "table")
    except OSError as error:
        msg = f"The results cannot be written to {folder}: {error.strerror}: name another --out."
        raise SchedulerError(msg) from error
    if can_draw():
        write_report(outcome.design, outcome.rows, text, command, folder / REPORT)


def can_draw() -> bool:
    """Return whether reports can be written."""
    return importlib.util.find_spec("matplotlib") is not None


def _write_table(columns: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Write a table as Parquet if pyarrow is installed, otherwise as CSV."""
    if has_parquet():
        write_parquet(columns, path.with_suffix(".parquet"))
        return
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([columns, *zip(*columns.values(), strict=True)])
    with replacing(path.with_suffix(".csv")) as file:
        file.write(stream.getvalue().encode())
