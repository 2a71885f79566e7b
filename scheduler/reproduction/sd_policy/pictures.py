# SPDX-License-Identifier: Apache-2.0
"""Figures 1 to 8 as pictures, and all results as one HTML page. matplotlib is imported when drawing."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.analysis import plots
from drom.scheduler.analysis.metrics import FIGURES
from drom.scheduler.analysis.page import image, write_page
from drom.scheduler.analysis.results import load_schedule
from drom.scheduler.analysis.series import NODES
from drom.scheduler.reproduction.sd_policy import paper
from drom.scheduler.reproduction.sd_policy.outcome import folder_of
from drom.scheduler.reproduction.sd_policy.settings import CUTOFFS, DYNAMIC, DYNAMIC_WORST, MAXSD_10, STATIC
from drom.scheduler.reproduction.sd_policy.tables import cells
from drom.workloads.figures import COLOURS, blank, name_axes, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from drom.scheduler.reproduction.sd_policy.outcome import Outcome
    from drom.scheduler.reproduction.sd_policy.settings import Setting
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_METRICS = (paper.MAKESPAN, paper.RESPONSE, paper.SLOWDOWN)


def write_all(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Write the figures as figure-*.png, as SVG and with their numbers, and report.html into a folder of results.

    Raises SchedulerError if they cannot be written, WorkloadError if matplotlib is missing.
    """
    figures = dict(_figures(outcomes, folder))
    for name, figure in figures.items():
        plots.write_picture(figure, folder / f"{name}.png")
    pieces = ["<h1>SD-Policy, reproduced</h1>"]
    for outcome in outcomes:
        pieces += _table(outcome)
    pieces += [image(figure, name) for name, figure in figures.items()]
    write_page(folder / "report.html", "drom reproduce sd-policy", pieces, "--out")


def _figures(outcomes: Sequence[Outcome], folder: Path) -> Iterator[tuple[str, Figure]]:
    simulated = [outcome for outcome in outcomes if STATIC.name in outcome.runs]
    if simulated:
        for number, key in enumerate(_METRICS, 1):
            yield f"figure-{number}", _bars(f"Figure {number}: {FIGURES[key]}", simulated, CUTOFFS, (key,))
        yield "figure-8", _bars("Figure 8: runtime models", simulated, (DYNAMIC, DYNAMIC_WORST), _METRICS)
    if any(outcome.number == 4 and {STATIC.name, MAXSD_10.name} <= outcome.runs.keys() for outcome in simulated):
        runs = {setting.label: load_schedule(folder_of(folder, 4, setting.name)) for setting in (STATIC, MAXSD_10)}
        one, two = runs.items()
        yield "figures-4-to-6", plots.ratio_figure(one, two, NODES)
        yield "figure-7", plots.days_figure(runs)


def _bars(title: str, outcomes: Sequence[Outcome], settings: Sequence[Setting], metrics: Sequence[str]) -> Figure:
    """Draw metrics under several settings, relative to static backfilling, with the paper's values."""
    figure = blank(6 + 3 * len(metrics), 4.5, f"{title}, relative to static backfilling")
    for axes, key in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for place, setting in enumerate(settings):
            ratios = [_ratio(outcome.runs, setting.name, key) for outcome in outcomes]
            x = np.arange(len(outcomes)) + (place - (len(settings) - 1) / 2) * 0.8 / len(settings)
            axes.bar(x, ratios, 0.8 / len(settings), color=COLOURS[place], label=setting.label)
            record(axes, setting.label, [outcome.number for outcome in outcomes], ratios)
            _mark(
                axes, x, setting.label, {o.number: paper.CHANGES.get((o.number, setting.name, key)) for o in outcomes}
            )
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(outcomes)), [f"{o.number}{', sample' if o.stands_in else ''}" for o in outcomes])
        name_axes(axes, FIGURES[key], "workload", "ratio to static")
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _mark(axes: Axes, x: np.ndarray, label: str, given: Mapping[int, paper.Given | None]) -> None:
    """Mark the paper's value for each workload that has one."""
    known = [
        (place, number, 1 + one.value / 100)
        for place, (number, one) in zip(x, given.items(), strict=True)
        if one is not None
    ]
    if known:
        places, numbers, values = zip(*known, strict=True)
        axes.scatter(places, values, marker="D", color="black", s=24, zorder=3, label="paper")
        record(axes, f"{label}, paper", numbers, values)


def _ratio(runs: Mapping[str, dict[str, float]], name: str, key: str) -> float:
    return runs[name][key] / runs[STATIC.name][key] if name in runs else np.nan


def _table(outcome: Outcome) -> Iterator[str]:
    yield f"<h2>Workload {outcome.number}: {escape(outcome.title)}</h2>"
    for note in outcome.notes:
        yield f"<p>{escape(note)}</p>"
    head = "".join(f"<th>{name}</th>" for name in ("", "", "paper", "here", "deviation"))
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in cells(row)) for row in outcome.rows)
    yield f"<table><tr>{head}</tr>" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "</table>"
