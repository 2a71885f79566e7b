# SPDX-License-Identifier: Apache-2.0
"""The comparison as one HTML file: the table, the meaning of its columns, then ratios and pictures of all runs."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from drom.scheduler.analysis.page import write_page
from drom.scheduler.analysis.report import sections
from drom.scheduler.comparison.table import cells, columns_of, notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from drom.scheduler.comparison.table import Result


def write_comparison(title: str, results: Sequence[Result], out: Path, path: Path) -> None:
    """Write a page about results with folders below `out`, of which at least one must have figures.

    Raises SchedulerError if it cannot be written, WorkloadError if matplotlib is missing.
    """
    whole = [result for result in results if result.figures]
    pieces = [
        f"<h1>{escape(title)}</h1>",
        *_table(whole),
        *(f'<p class="note">{escape(note)}</p>' for note in notes(results)),
        "<h2>Beside the first</h2>",
        *sections([out / result.contender.name for result in whole]),
    ]
    write_page(path, f"drom compare-policies: {title}", pieces, "--html")


def _table(whole: Sequence[Result]) -> Iterator[str]:
    columns = columns_of(whole)
    head = "".join(f"<th>{escape(name)}</th>" for name in ("policy", *(column.head.lower() for column in columns)))
    yield f"<table><tr>{head}</tr>"
    for result in whole:
        values = "".join(f"<td>{value}</td>" for value in cells(result, columns))
        yield f"<tr><td>{escape(result.contender.name)}</td>{values}</tr>"
    yield "</table><ul>"
    yield from (f"<li>{escape(column.head.lower())}: {escape(column.meaning)}</li>" for column in columns)
    yield "</ul>"
