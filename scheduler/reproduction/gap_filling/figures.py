# SPDX-License-Identifier: Apache-2.0
"""Figure 2 of Polyakov and Dubenskaya (GRID 2018) with and without filling, and the gain: as text, JSON, pictures.

The available text of the paper gives no numbers of its figure, so that only drom's are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drom.agent.text import table
from drom.scheduler.analysis import plots
from drom.scheduler.reproduction.gap_filling.experiment import (
    ACCURACIES,
    DEPTH,
    NODES,
    NONE,
    PAUSES,
    TIME_SLOTS,
    A,
    B,
    Point,
)
from drom.workloads.figures import COLOURS, blank, name_axes, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from drom.scheduler.analysis.estimates import Estimate
    from matplotlib.figure import Figure

_SHOWN = 0.5
"""The accuracy of the table of gains."""
_WAYS = ((NONE, 1, 0), (A, 60, 5), (B, 1, 5))
"""Policy, T and t of the lines of the figure."""


def lines(found: Sequence[Point], days: int) -> Iterator[str]:
    """Yield both tables, each value with half of its 95 % interval."""
    yield f"Figure 2: mean load over the accuracy p of requests, {NODES} slots, {days} days"
    loads = [[f"{p:.2f}", *(_text(_find(found, p, *way).load) for way in _WAYS)] for p in ACCURACIES]
    yield from table(["p", *(_way(*way) for way in _WAYS)], loads, ">" * (1 + len(_WAYS)))
    yield ""
    yield f"Gain in utilisation by a filler queue that is always full, p = {_SHOWN:g}, c = 1; times in minutes"
    heads = ("regular", "idle slots", "gain", "0.1 (1 - t) c", "both", "delayed jobs", "delay, s")
    yield from table(["policy", "T", "t", *heads], list(map(_cells, _of(found, _SHOWN))), " >>" + ">" * len(heads))


def _cells(point: Point) -> list[str]:
    slot, pause = (str(value) if point.policy in who else "-" for value, who in _numbers(point))
    bound = "-" if point.bound is None else f"{point.bound:.4f}"
    whole = _text(point.whole) if point.policy == A else "-"
    both = f"{point.regular.mean + point.gain.mean:.4f}"
    values = (_text(point.regular), whole, _text(point.gain), bound, both)
    delays = (f"{value.mean:,.0f} ± {value.half:,.0f}" for value in (point.delayed, point.delay_s))
    return [point.policy, slot, pause, *values, *delays]


def _numbers(point: Point) -> Iterator[tuple[int, str]]:
    yield point.slot_min, A
    yield point.pause_min, A + B


def to_json(found: Sequence[Point], seed: int, days: int) -> dict[str, Any]:
    """Return all results as JSON values."""
    names = ("regular", "whole", "load", "gain", "delayed", "delay_s")
    rows = [
        point._asdict() | {name: getattr(point, name)._asdict() for name in names} | {"bound": point.bound}
        for point in found
    ]
    return {"schema_version": 1, "seed": seed, "days": days, "slots": NODES, "depth": DEPTH, "points": rows}


def draw(found: Sequence[Point], folder: Path) -> None:
    """Write figure-2.png and gain.png, with SVG and numbers beside them. Raises WorkloadError without matplotlib."""
    plots.write_picture(_load_figure(found), folder / "figure-2.png")
    plots.write_picture(_gain_figure(found), folder / "gain.png")


def _load_figure(found: Sequence[Point]) -> Figure:
    figure = blank(7, 4.5, "Figure 2: load over the accuracy of requests")
    axes = figure.subplots()
    for colour, way in zip(COLOURS, _WAYS, strict=False):
        loads = [_find(found, accuracy, *way).load for accuracy in ACCURACIES]
        means, halves = zip(*loads, strict=True)
        axes.errorbar(ACCURACIES, means, halves, color=colour, marker="o", markersize=4, capsize=3, label=_way(*way))
        record(axes, _way(*way), ACCURACIES, means, halves)
    name_axes(axes, "with 95 % intervals; T and t in minutes", "accuracy p", "mean load")
    axes.legend(frameon=False)
    return figure


def _gain_figure(found: Sequence[Point]) -> Figure:
    figure = blank(9, 4.5, f"Gain in utilisation, p = {_SHOWN:g}")
    axes = figure.subplots()
    ways = [(A, slot) for slot in TIME_SLOTS] + [(B, 1)]
    for colour, (policy, slot) in zip(COLOURS, ways, strict=False):
        shown = [p for p in _of(found, _SHOWN) if (p.policy, p.slot_min) == (policy, slot)]
        pauses = [point.pause_min for point in shown]
        gains = [point.gain for point in shown]
        label = f"A, T = {slot}" if policy == A else B
        axes.errorbar(
            pauses, [g.mean for g in gains], [g.half for g in gains], color=colour, marker="o", capsize=3, label=label
        )
        record(axes, label, pauses, [g.mean for g in gains], [g.half for g in gains])
        if policy == A:
            bounds = [point.bound or 0.0 for point in shown]
            axes.plot(pauses, bounds, color=colour, linestyle="--", label=f"0.1 (1 - t) c, T = {slot}")
            record(axes, f"0.1 (1 - t) c, T = {slot}", pauses, bounds)
    axes.set_xticks(PAUSES)
    name_axes(axes, "with 95 % intervals", "restore and save, minutes", "useful work, share of the machine")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _way(policy: str, slot: int, pause: int) -> str:
    return {NONE: "without filling", A: f"A, T = {slot}, t = {pause}", B: f"B, t = {pause}"}[policy]


def _of(found: Sequence[Point], accuracy: float) -> Iterator[Point]:
    return (point for point in found if point.accuracy == accuracy)


def _find(found: Sequence[Point], accuracy: float, policy: str, slot: int, pause: int) -> Point:
    return next(point for point in found if point[:4] == (accuracy, policy, slot, pause))


def _text(value: Estimate) -> str:
    return f"{value.mean:.4f} ± {value.half:.4f}"
