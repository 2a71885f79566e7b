# SPDX-License-Identifier: Apache-2.0
"""Figures 7 to 10 of Kale, Kumar and DeSouza (CCGRID 2002), and contracts on the same jobs: as text, JSON, pictures.

The available text of the paper gives no numbers of these figures, so that only drom's are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drom.agent.text import table
from drom.scheduler.analysis import plots
from drom.scheduler.reproduction.adaptive import contracts
from drom.scheduler.reproduction.adaptive.experiment import JOBS, LOADS, RESPONSE, UTILISATION, Point
from drom.workloads.figures import COLOURS, blank, name_axes, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from drom.scheduler.analysis.estimates import Estimate
    from drom.scheduler.reproduction.adaptive.contracts import Level
    from drom.scheduler.reproduction.adaptive.residual import Outcome
    from matplotlib.figure import Figure

FIGURES = {
    ("cluster", RESPONSE): 7,
    ("cluster", UTILISATION): 8,
    ("simulation", RESPONSE): 9,
    ("simulation", UTILISATION): 10,
}
_WORDS = {RESPONSE: "mean response, s", UTILISATION: "mean utilisation"}


def lines(found: Sequence[Point]) -> Iterator[str]:
    """Yield a table per figure, each value with half of its 95 % interval."""
    for (experiment, metric), number in FIGURES.items():
        yield f"Figure {number}: {_WORDS[metric]}, {JOBS[experiment]:,} jobs"
        rows = [
            [
                f"{point.load:.1f}",
                *map(_text, (point.rigid, point.adaptive, point.gain)),
                point.verdict,
                _text(point.weighing),
                point.verdict_on_weighing,
            ]
            for point in _of(found, experiment, metric)
        ]
        yield from table(["load", "rigid", "adaptive", "difference", "", "weighing costs", ""], rows, ">>>> >")
        yield ""


def contract_lines(found: Sequence[Level]) -> Iterator[str]:
    """Yield a table per metric of contracts, each value with half of its 95 % interval, and a verdict on payoff."""
    for metric, words in contracts.WORDS.items():
        yield f"Contracts: {words}, {contracts.COUNT:,} jobs"
        rows = [
            [f"{one.load:.1f}", *(_text(one.levels[name]) for name in contracts.POLICIES), _verdicts(one)]
            for one in found
            if one.metric == metric
        ]
        headings = ["load", *contracts.POLICIES, "payoff against each"]
        yield from table(headings, rows, ">" * (1 + len(contracts.POLICIES)))
        yield ""


def _verdicts(level: Level) -> str:
    return ", ".join(level.verdict(other) for other in level.gains)


def to_json(found: Sequence[Point], bound: Sequence[Level], seed: int, stall: float) -> dict[str, Any]:
    """Return all results as JSON values."""
    rows = [
        point._asdict()
        | {name: getattr(point, name)._asdict() for name in ("rigid", "adaptive", "gain", "weighing", "saved")}
        | {"figure": FIGURES[point.experiment, point.metric], "verdict": point.verdict, "paper": None}
        | {"verdict_on_weighing": point.verdict_on_weighing}
        for point in found
    ]
    kept = [
        {
            "load": level.load,
            "metric": level.metric,
            "levels": {name: value._asdict() for name, value in level.levels.items()},
            "gains": {name: value._asdict() | {"verdict": level.verdict(name)} for name, value in level.gains.items()},
        }
        for level in bound
    ]
    return {"schema_version": 3, "seed": seed, "stall_s": stall, "points": rows, "contracts": kept}


def draw(found: Sequence[Point], bound: Sequence[Level], folder: Path) -> None:
    """Write figure-7.png to figure-10.png, and contracts-METRIC.png, with SVG and numbers beside them.

    Raises WorkloadError without matplotlib.
    """
    for (experiment, metric), number in FIGURES.items():
        title = f"Figure {number}: {_WORDS[metric]}, {JOBS[experiment]:,} jobs"
        points = list(_of(found, experiment, metric))
        curves = {name: [getattr(point, name) for point in points] for name in ("rigid", "adaptive", "weighing")}
        figure = _figure(title, _WORDS[metric], curves, logarithmic=metric == RESPONSE)
        plots.write_picture(figure, folder / f"figure-{number}.png")
    for metric, words in contracts.WORDS.items():
        found_here = [level for level in bound if level.metric == metric]
        curves = {name: [level.levels[name] for level in found_here] for name in contracts.POLICIES}
        figure = _figure(f"Contracts, {contracts.COUNT:,} jobs", words, curves)
        plots.write_picture(figure, folder / f"contracts-{metric}.png")


def draw_course(found: Outcome, folder: Path) -> None:
    """Write course.png, with SVG and numbers beside it: Figures 3 to 5. Raises WorkloadError without matplotlib."""
    figure = blank(7, 4.5, "Figures 3 to 5: an adaptive job that loses half of its cores for a while")
    above, below = figure.subplots(2, sharex=True)
    at = [sample.at for sample in found.course]
    rates = [sample.rate for sample in found.course]
    above.plot(at, rates, color=COLOURS[0])
    record(above, "job", at, rates)
    name_axes(above, f"{found.cores} cores, half of them, and all again", "", "steps/s")
    resting = [(sample.at, 100 * sample.resting) for sample in found.course if sample.resting is not None]
    below.plot(*zip(*resting, strict=True), color=COLOURS[1])
    record(below, "resting rank", *zip(*resting, strict=True))
    name_axes(below, "ranks that rest", "time, s", "CPU time of each, %")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
    plots.write_picture(figure, folder / "course.png")


def _figure(title: str, words: str, curves: Mapping[str, list[Estimate]], *, logarithmic: bool = False) -> Figure:
    """Return a picture of values over the loads."""
    figure = blank(7, 4.5, title)
    axes = figure.subplots()
    for colour, (name, values) in zip(COLOURS, curves.items(), strict=False):
        axes.errorbar(
            LOADS,
            [value.mean for value in values],
            [value.half for value in values],
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
            label=name,
        )
        record(axes, name, LOADS, [value.mean for value in values], [value.half for value in values])
    if logarithmic:
        axes.set_yscale("log")
    name_axes(axes, "with 95 % intervals", "load factor", words)
    axes.legend(frameon=False)
    return figure


def _of(found: Sequence[Point], experiment: str, metric: str) -> Iterator[Point]:
    return (point for point in found if (point.experiment, point.metric) == (experiment, metric))


def _text(value: Estimate) -> str:
    return (
        f"{value.mean:,.4g} ± {value.half:.2g}" if abs(value.mean) < 1000 else f"{value.mean:,.0f} ± {value.half:,.0f}"
    )
