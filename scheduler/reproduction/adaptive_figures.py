# SPDX-License-Identifier: Apache-2.0
"""Figures 7 to 10 of Kale, Kumar and DeSouza (CCGRID 2002): as text, as JSON, as pictures.

The text of the paper that is at hand gives no number of these figures, so that none stands beside ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler import plots
from scheduler.reproduction.adaptive import JOBS, RESPONSE, UTILISATION, Estimate, Point
from workloads.figures import COLOURS, blank, name_axes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

FIGURES = {
    ("cluster", RESPONSE): 7,
    ("cluster", UTILISATION): 8,
    ("simulation", RESPONSE): 9,
    ("simulation", UTILISATION): 10,
}
_WORDS = {RESPONSE: "mean response, s", UTILISATION: "mean utilisation"}


def lines(found: Sequence[Point]) -> Iterator[str]:
    """Give a table per figure, each value with half of its 95 % interval."""
    for (experiment, metric), number in FIGURES.items():
        yield f"Figure {number}: {_WORDS[metric]}, {JOBS[experiment]:,} jobs"
        yield f"  {'load':>4} {'rigid':>20} {'adaptive':>20} {'difference':>20}"
        for point in _of(found, experiment, metric):
            cells = " ".join(f"{_text(value):>20}" for value in (point.rigid, point.adaptive, point.gain))
            yield f"  {point.load:4.1f} {cells}  {point.verdict}"
        yield ""


def to_json(found: Sequence[Point], seed: int, stall: float) -> dict[str, Any]:
    """Return all as plain values."""
    rows = [
        point._asdict()
        | {name: getattr(point, name)._asdict() for name in ("rigid", "adaptive", "gain")}
        | {"figure": FIGURES[point.experiment, point.metric], "verdict": point.verdict, "paper": None}
        for point in found
    ]
    return {"schema_version": 1, "seed": seed, "stall_s": stall, "points": rows}


def draw(found: Sequence[Point], folder: Path) -> None:
    """Write figure-7.png to figure-10.png. Raises WorkloadError when matplotlib is missing."""
    for (experiment, metric), number in FIGURES.items():
        title = f"Figure {number}: {_WORDS[metric]}, {JOBS[experiment]:,} jobs"
        plots.write(_figure(title, list(_of(found, experiment, metric)), metric), folder / f"figure-{number}.png")


def _figure(title: str, found: Sequence[Point], metric: str) -> Figure:
    figure = blank(7, 4.5, title)
    axes = figure.subplots()
    for colour, name in zip(COLOURS, ("rigid", "adaptive"), strict=False):
        values: list[Estimate] = [getattr(point, name) for point in found]
        axes.errorbar(
            [point.load for point in found],
            [value.mean for value in values],
            [value.half for value in values],
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
            label=name,
        )
    if metric == RESPONSE:
        axes.set_yscale("log")
    name_axes(axes, "with 95 % intervals", "load factor", _WORDS[metric])
    axes.legend(frameon=False)
    return figure


def _of(found: Sequence[Point], experiment: str, metric: str) -> Iterator[Point]:
    return (point for point in found if (point.experiment, point.metric) == (experiment, metric))


def _text(value: Estimate) -> str:
    return (
        f"{value.mean:,.4g} ± {value.half:.2g}" if abs(value.mean) < 1000 else f"{value.mean:,.0f} ± {value.half:,.0f}"
    )
