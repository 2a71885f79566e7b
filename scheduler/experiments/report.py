# SPDX-License-Identifier: Apache-2.0
"""The report of an experiment as one HTML file: its table and pictures, date, command line and design."""

from __future__ import annotations

from html import escape
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.analysis.page import image, write_page
from drom.scheduler.analysis.plots import write_picture
from drom.scheduler.experiments.design import METRICS
from drom.scheduler.experiments.effects import cells_of, note
from drom.workloads.figures import COLOURS, blank, name_axes, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from drom.scheduler.experiments.design import Design, Factor
    from drom.scheduler.experiments.effects import Row
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_UNITS = {"_s": "seconds", "_joule": "joules"}
_MARKERS = "osD^v*"
_MOST_PANELS = 12
_WIDE = 30
"""Values whose extremes have a ratio beyond this are drawn on a logarithmic scale."""


def write_report(design: Design, rows: Sequence[Row], text: str, command: str, path: Path) -> None:
    """Write a report on an experiment that was given as a text by a command, and its pictures with their numbers.

    Raises SchedulerError if they cannot be written, WorkloadError if matplotlib is missing.
    """
    pictures = _pictures(design, rows)
    for metric, figure in pictures.items():
        write_picture(figure, path.with_name(f"{metric}.svg"))
    pieces = [
        f"<h1>{escape(design.title)}</h1>",
        *_table(design, rows),
        *(f"<h2>{escape(METRICS[metric])}</h2>{image(one, METRICS[metric])}" for metric, one in pictures.items()),
        f"<h2>Experiment</h2><pre>{escape(text)}</pre>",
    ]
    write_page(path, design.title, pieces, "--out", command)


def _table(design: Design, rows: Sequence[Row]) -> Iterator[str]:
    head, *body = cells_of(design, rows)
    yield "<table><tr>" + "".join(f"<th>{escape(name.lower())}</th>" for name in head) + "</tr>"
    for row, cells in zip(rows, body, strict=True):
        kind = {"better": "better", "worse": "worse"}.get(row.verdict, "")
        yield f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    yield "</table>"
    yield f"<p>{escape(note(design))}</p>"


def _pictures(design: Design, rows: Sequence[Row]) -> dict[str, Figure]:
    """Return a figure for each metric; none if nothing is compared."""
    metrics = design.metrics if design.factors else ()
    return {metric: _figure(design, [row for row in rows if row.metric == metric], metric) for metric in metrics}


def _figure(design: Design, rows: Sequence[Row], metric: str) -> Figure:
    """Draw a metric over the levels of a factor, a line for each level that is compared, a panel for all others."""
    (compared,) = (factor for factor in design.factors if factor.name == design.compare)
    others = [factor for factor in design.factors if factor is not compared]
    along, *rest = others or [compared]
    panels = list(product(*(factor.labels for factor in rest)))[:_MOST_PANELS]
    columns = min(len(panels), 3)
    figure = blank(2 + 4.5 * columns, 3.5 * -(-len(panels) // columns) + 0.5, METRICS[metric])
    grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False, sharey=True).ravel()
    unit = next((unit for ending, unit in _UNITS.items() if metric.endswith(ending)), "")
    for axes, panel in zip(grid, panels, strict=False):
        fixed = {factor.name: level for factor, level in zip(rest, panel, strict=True)}
        here = [row for row in rows if fixed.items() <= row.levels.items()]
        _draw(axes, here, along, compared)
        title = ", ".join(f"{name} {level}" for name, level in fixed.items())
        name_axes(axes, title, along.name, f"{METRICS[metric]}{f' ({unit})' if unit else ''}")
    means = [row.mean.mean for row in rows]
    if min(means) > 0 and max(means) > _WIDE * min(means):
        grid[0].set_yscale("log")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    if others:
        grid[columns - 1].legend(
            fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), title=compared.name
        )
    return figure


def _draw(axes: Axes, rows: Sequence[Row], along: Factor, compared: Factor) -> None:
    numbers = [float(level) for level in along.levels if type(level) in (int, float)]
    places = dict(
        zip(along.labels, numbers if len(numbers) == len(along.levels) else range(len(along.levels)), strict=True)
    )
    for at, level in enumerate(compared.labels):
        mine = [row for row in rows if row.levels[compared.name] == level]
        means, halves = [row.mean.mean for row in mine], np.nan_to_num([row.mean.half for row in mine])
        record(axes, level, [row.levels[along.name] for row in mine], means, halves)
        axes.errorbar(
            [places[row.levels[along.name]] for row in mine],
            means,
            halves,
            marker=_MARKERS[at % len(_MARKERS)],
            color=COLOURS[at % len(COLOURS)],
            capsize=3,
            label=level,
        )
    axes.set_xticks(list(places.values()), list(places))
