# SPDX-License-Identifier: Apache-2.0
"""The picture of a node over time as a PNG file; needs matplotlib, which is imported when something is drawn."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

from drom.agent.observe.timeline import DARK, PALETTE, PictureError, cpu_rows, in_force_s, jobs_of, refuse_empty, spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    from drom.agent.observe.timeline import Span, TimelineChange
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PNG_WIDTH_INCHES = 10.0
_PNG_DPI = 150
_PNG_LABELLED_ROWS = 32
_NARROWEST_HATCH = 200
"""The part of the width that a hatch needs; a narrower one would look like a dotted line."""


def draw_png(
    path: str | PathLike[str],
    changes: Sequence[TimelineChange],
    cores: Sequence[tuple[int, int]],
    end_s: float,
    *,
    title: str = "Who held which CPU",
) -> None:
    """Write a picture as a PNG file: one row per CPU grouped by socket, and below it how long each change took.

    Raises PictureError when matplotlib is missing.
    """
    refuse_empty(cores, end_s)
    figure, _ = _figure(changes, cores, end_s, title)
    figure.savefig(path, format="png")


def _colours(jobs: Sequence[str]) -> dict[str, str]:
    return {job: PALETTE[number % len(PALETTE)][0] for number, job in enumerate(jobs)}


def _figure(
    changes: Sequence[TimelineChange], cores: Sequence[tuple[int, int]], end_s: float, title: str
) -> tuple[Figure, dict[int, float]]:
    """Return the figure and the height (in its first axes) of each CPU's middle."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PictureError("Drawing a PNG needs matplotlib: run pip install 'drom[plots]'.") from error

    rows = cpu_rows(cores)
    middles = _middles(rows)
    figure = Figure(figsize=(_PNG_WIDTH_INCHES, 2.6 + min(max(0.3 * len(rows), 1.2), 6.0)), dpi=_PNG_DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    upper, lower = figure.subplots(
        2, 1, sharex=True, gridspec_kw={"height_ratios": [min(max(0.3 * len(rows), 1.2), 6.0), 1.0]}
    )
    colours = _colours(jobs_of(changes))
    held = [span for span in spans(changes, end_s) if span.cpu in middles]
    _draw_sockets(upper, rows, middles, end_s)
    _draw_spans(upper, held, middles, end_s, colours)
    _draw_latencies(lower, changes, end_s, colours)
    upper.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=10)
    named = _draw_names(figure, upper, held, middles, colours)
    hatched = any(not span.settled and span.end_s - span.start_s > end_s / _NARROWEST_HATCH for span in held)
    _draw_legend(upper, {job: colour for job, colour in colours.items() if job not in named}, hatched=hatched)
    return figure, middles


def _middles(rows: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Return the height of each CPU's middle: rows are 1 high, with a gap between sockets."""
    gap = max(0.5, len(rows) / 50)
    middles, shift, before = {}, 0.5, rows[0][0]
    for number, (package, mask) in enumerate(rows):
        shift += gap if package != before else 0.0
        before = package
        middles[mask.bit_length() - 1] = number + shift
    return middles


def _draw_sockets(axes: Axes, rows: Sequence[tuple[int, int]], middles: dict[int, float], end_s: float) -> None:
    sockets: dict[int, list[int]] = defaultdict(list)
    for package, mask in rows:
        sockets[package].append(mask.bit_length() - 1)
    every = math.ceil(len(rows) / _PNG_LABELLED_ROWS)
    shown = []
    for package, numbers in sockets.items():
        top, bottom = middles[numbers[0]] - 0.5, middles[numbers[-1]] + 0.5
        axes.axhspan(top, bottom, color="#f2f2f2", zorder=0)
        axes.annotate(
            f"socket {package}",
            (0, (top + bottom) / 2),
            xycoords=("axes fraction", "data"),
            xytext=(-32, 0),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="center",
            fontsize=9,
        )
        shown += numbers[::every]
        if every == 1:
            for cpu in numbers[1:]:
                axes.axhline(middles[cpu] - 0.5, color="white", alpha=0.5, linewidth=0.7, zorder=3)
    axes.set_xlim(0, end_s)
    axes.set_ylim(max(middles.values()) + 0.5, 0)
    axes.set_yticks([middles[cpu] for cpu in shown], [str(cpu) for cpu in shown], fontsize=8)
    axes.annotate(
        "CPU", (0, 1), xycoords="axes fraction", xytext=(-4, 4), textcoords="offset points", ha="right", fontsize=8
    )
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.grid(axis="x", color="#000000", alpha=0.12, linewidth=0.6, zorder=4)
    axes.set_axisbelow(False)
    axes.spines[:].set_visible(False)


def _draw_spans(
    axes: Axes, held: Iterable[Span], middles: dict[int, float], end_s: float, colours: dict[str, str]
) -> None:
    from matplotlib.patches import Rectangle

    for rectangle, span in _rectangles(held, middles):
        left, right, top, bottom = rectangle
        patch = Rectangle((left, top), right - left, bottom - top, facecolor=colours[span.job], linewidth=0, zorder=2)
        if not span.settled and right - left > end_s / _NARROWEST_HATCH:
            patch.set_hatch("/////")
            patch.set_edgecolor("white")
        axes.add_patch(patch)


def _rectangles(
    held: Iterable[Span], middles: dict[int, float]
) -> Iterator[tuple[tuple[float, float, float, float], Span]]:
    """Join equal spans of neighbouring rows: (left, right, top, bottom) of each rectangle, and a span of it."""
    alike: dict[tuple[str, float, float, bool], list[Span]] = defaultdict(list)
    for span in sorted(held, key=lambda span: middles[span.cpu]):
        alike[span.job, span.start_s, span.end_s, span.settled].append(span)
    for group in alike.values():
        first = 0
        for number, span in enumerate(group):
            height = middles[span.cpu]
            if number + 1 == len(group) or middles[group[number + 1].cpu] > height + 1:
                yield (span.start_s, span.end_s, middles[group[first].cpu] - 0.5, height + 0.5), span
                first = number + 1


def _draw_names(
    figure: Figure, axes: Axes, held: Sequence[Span], middles: dict[int, float], colours: dict[str, str]
) -> set[str]:
    """Write each job's name in its largest rectangle of each socket, where it fits; return the jobs that have one."""
    canvas = figure.canvas
    canvas.draw()
    renderer = canvas.get_renderer()  # type: ignore[attr-defined]
    named = set()
    for job, colour in colours.items():
        for left, right, top, bottom in _largest_rectangles([span for span in held if span.job == job], middles):
            height = round(bottom - top)
            # Not on the line between two rows: the row above the middle of an even number of rows.
            middle = (top + bottom - (height % 2 == 0)) / 2
            ink = "white" if colour in DARK else "black"
            text = axes.text(
                (left + right) / 2, middle, job, color=ink, fontsize=10, ha="center", va="center_baseline", zorder=5
            )
            (x0, y0), (x1, y1) = axes.transData.transform([(left, bottom), (right, top)])
            box = text.get_window_extent(renderer)
            if box.width > x1 - x0 or box.height > (y1 - y0) * 1.1:
                text.remove()
            else:
                named.add(job)
    return named


def _draw_legend(axes: Axes, unnamed: dict[str, str], *, hatched: bool) -> None:
    """Explain the colours of jobs that no name inside a block explains, and hatches."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, label=job) for job, colour in unnamed.items()]
    if hatched:
        label = "asked for, not yet in force"
        handles.append(Patch(facecolor="#777777", edgecolor="white", hatch="/////", linewidth=0, label=label))
    if handles:
        axes.legend(
            handles=handles,
            loc="lower right",
            bbox_to_anchor=(1, 1),
            ncols=min(len(handles), 4),
            frameon=False,
            fontsize=8,
            borderaxespad=0.2,
        )


def _largest_rectangles(held: Iterable[Span], middles: dict[int, float]) -> list[tuple[float, float, float, float]]:
    """Return (left, right, top, bottom) of a job's largest rectangle in each block of neighbouring rows."""
    at: dict[float, list[Span]] = defaultdict(list)
    for span in held:
        at[middles[span.cpu]].append(span)

    def reach(span: Span, row: float, step: int) -> float:
        while any(other.start_s <= span.start_s and span.end_s <= other.end_s for other in at.get(row + step, ())):
            row += step
        return row

    best: dict[float, tuple[float, tuple[float, float, float, float]]] = {}
    block = 0.0
    for row in sorted(at):
        if row - 1 not in at:
            block = row
        for span in at[row]:
            top, bottom = reach(span, row, -1) - 0.5, reach(span, row, 1) + 0.5
            area = (bottom - top) * (span.end_s - span.start_s)
            if area > best.get(block, (0.0,))[0]:
                best[block] = (area, (span.start_s, span.end_s, top, bottom))
    return [rectangle for _, rectangle in best.values()]


def _draw_latencies(axes: Axes, changes: Iterable[TimelineChange], end_s: float, colours: dict[str, str]) -> None:
    """Draw a stem at each request, as high as the time until it was in force; a cross if it never was."""
    asked = [change for change in changes if change.cpus and change.time_s <= end_s]
    waits = [(change, 1000 * (in_force_s(change) - change.time_s)) for change in asked]
    applied = sorted(((c, wait) for c, wait in waits if 0 < wait < math.inf), key=lambda pair: -pair[1])
    low = min((wait for _, wait in applied), default=1.0) / 3
    high = max((wait for _, wait in applied), default=1.0) * 6
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    labelled: list[tuple[float, float]] = []
    for change, wait in applied:
        colour = colours[change.job]
        axes.vlines(change.time_s, low, wait, color=colour, linewidth=1.5, clip_on=False)
        axes.plot(change.time_s, wait, "o", color=colour, markersize=5, mec="black", mew=0.5, clip_on=False, zorder=5)
        place = (change.time_s / end_s, math.log(wait / low) / math.log(high / low))
        if any(abs(place[0] - x) < 0.07 and abs(place[1] - y) < 0.2 for x, y in labelled):
            continue  # the labels would cover each other; the higher one stays
        labelled.append(place)
        _annotate(axes, _duration(wait), change.time_s, wait)
    for change, wait in waits:
        if wait == math.inf:
            axes.plot(change.time_s, high / 3, "x", color=colours[change.job])
            _annotate(axes, "not yet", change.time_s, high / 3)
    axes.set_ylabel("in force\nafter (ms)", fontsize=8)
    axes.set_xlabel("time (s)", fontsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.tick_params(labelsize=8)
    axes.grid(axis="x", color="#000000", alpha=0.12, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _annotate(axes: Axes, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), xytext=(5, 3), textcoords="offset points", fontsize=7)


def _duration(milliseconds: float) -> str:
    if milliseconds < 999.5:
        return f"{milliseconds:.3g} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
    return f"{milliseconds / 1000:.3g} s"
