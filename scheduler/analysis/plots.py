# SPDX-License-Identifier: Apache-2.0
"""Figures of schedules; those that compare runs take several by name. matplotlib is imported when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.gantt import (
    FILLER,
    GPUS,
    GUEST,
    ON_CORES,
    SHRUNK,
    WHOLE,
    WITH_GPUS,
    bands,
    boxes,
    filler_boxes,
    shared_boxes,
    window_of,
)
from drom.scheduler.analysis.metrics import malleable, slowdown
from drom.scheduler.analysis.schedule import has_ended
from drom.scheduler.analysis.series import (
    DAY,
    NODES,
    Grid,
    Span,
    busy_nodes,
    counts_per,
    grid_of,
    means_per,
    period,
    span_of,
    unit_of,
    waiting,
)
from drom.scheduler.errors import SchedulerError
from drom.workloads.errors import counted
from drom.workloads.figures import COLOURS, GREEN, ORANGE, YELLOW, blank, data_of, name_axes, record, require, save
from drom.workloads.files import replacing

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from pathlib import Path

    from drom.scheduler.analysis.gantt import GanttBox
    from drom.scheduler.analysis.schedule import Schedule, SharedNode
    from drom.scheduler.interface import Floats, Ints
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PICTURES = ("gantt", "load", "days", "heatmaps")
"""The figures that `draw_all` draws."""
KINDS = ("png", "svg", "pdf")
"""The formats of figures."""

_ALONE = ("#9ecae1", "#6baed6", "#c6dbef", "#4292c6")
_GPUS = ("#fdae6b", "#fd8d3c", "#fdd0a2", "#f16913")
_LOOKS = {
    WHOLE: ("alone on a node", _ALONE),
    SHRUNK: ("shrunk for a guest", (GREEN,)),
    GUEST: ("guest", (ORANGE,)),
    FILLER: ("filler", (YELLOW,)),
    ON_CORES: ("job", _ALONE),
    WITH_GPUS: ("job with GPUs", _GPUS),
    GPUS: ("its GPUs", _GPUS),
}
"""The name of each kind of boxes, and the colours of its jobs, one after the other."""
_HATCH = "//////"
_IDLE = ("#f2f2f2", "#dcdcdc")
"""The colours of idle cores and GPUs."""
_MOST_NAMES = 60
"""The most names of nodes at the axis of a chart."""
_CHART, _LETTER = (760.0, 420.0), 7.0
"""The width and height of a chart, and the size of the letters in it, in points."""
BINS = 400


def draw_all(  # noqa: PLR0917 - the last two are for the Gantt chart
    schedule: Schedule, name: str, folder: Path, kind: str, window: Span | None = None, fillers: Ints | None = None
) -> None:
    """Write gantt (of a window), load, days and heatmaps as png, svg or pdf into a folder, as `write_picture` does.

    There is no gantt if the nodes of jobs are unknown. `fillers` are the runs of filler jobs, of shape ``(runs, 4)``:
    container, node, begin, end.
    Raises SchedulerError if they cannot be written, WorkloadError if matplotlib is missing.
    """
    runs = {name: schedule}
    figures = (
        gantt_figure(schedule, name, window, fillers) if len(schedule.runs) else None,
        load_figure(runs),
        days_figure(runs),
        heat_figure(schedule, name),
    )
    for title, figure in zip(PICTURES, figures, strict=True):
        if figure is not None:
            write_picture(figure, folder / f"{title}.{kind}")


def write_picture(figure: Figure, path: Path) -> None:
    """Write a figure as `write` does, and beside it the same as SVG and its numbers as CSV.

    Raises SchedulerError if they cannot be written.
    """
    write(figure, path)
    if path.suffix != ".svg":
        write(figure, path.with_suffix(".svg"))
    if data := data_of(figure):
        try:
            with replacing(path.with_suffix(".csv")) as stream:
                stream.write(data.encode())
        except OSError as error:
            raise _unwritable(path.with_suffix(".csv"), "--out", error) from error


def write(figure: Figure, path: Path, option: str = "--out") -> None:
    """Write a figure in the format of the suffix. Raises SchedulerError, with `option`, if it cannot be written."""
    try:
        with replacing(path) as stream:
            save(figure, stream, path.suffix[1:])
    except OSError as error:
        raise _unwritable(path, option, error) from error


def _unwritable(path: Path, option: str, error: OSError) -> SchedulerError:
    return SchedulerError(f"{path} cannot be written: {error.strerror}: name another {option}.")


def gantt_figure(
    schedule: Schedule,
    name: str,
    window: Span | None = None,
    fillers: Ints | None = None,
    *,
    labels: Sequence[object] = (),
    filling: Container[int] = (),
) -> Figure:
    """Draw which jobs had which nodes; shrunk jobs and guests have their part of a node's height, and a colour.

    Jobs are named by `labels`, or by their numbers, where there is room. A node that jobs share by cores is as high as
    it has cores, with its GPUs below them, and `filling` are the rows of fillers in the table of jobs.
    Raises WorkloadError if matplotlib is missing.
    """
    require()
    from matplotlib.patches import Patch

    span = span_of(schedule)
    window = window or window_of(schedule)
    unit, unit_name = _unit(window)
    shared, count = schedule.shared, len(schedule.shared) or schedule.nodes
    figure = blank(12, 7, f"{name}: {counted(count, 'node')}{_of_window(window, span)}")
    axes = figure.subplots()
    axes.set_xlim((window.begin - span.begin) / unit, (window.end - span.begin) / unit)
    axes.set_ylim(0, schedule.nodes)
    numbers = range(0, schedule.nodes, _step(schedule.nodes))
    axes.set_yticks([number + 0.5 for number in numbers], [f"{number:,}" for number in numbers])
    found = [*(shared_boxes if shared else boxes)(schedule, window), *filler_boxes(fillers, window)]
    found = [box._replace(kind=FILLER) if shared and box.job in filling else box for box in found]
    drawn = [_Drawn((b.begin - span.begin) / unit, (b.end - span.begin) / unit, b) for b in found]
    _draw_boxes(axes, [one for one in drawn if one.box.kind != GPUS])
    if shared:
        _draw_boxes(axes, [one for one in drawn if one.box.kind == GPUS], _HATCH)
        _draw_bands(axes, shared)
    jobs = [one for one in drawn if shared or one.box.kind != FILLER]
    _draw_labels(axes, jobs, labels or schedule.table["job_id"].tolist())
    title = f"Which jobs have which {'cores' if shared else 'nodes'}"
    name_axes(axes, title, f"{unit_name} from the first submission", "" if shared else "node")
    patches = [
        Patch(facecolor=_LOOKS[kind][1][0], label=_LOOKS[kind][0], hatch=_HATCH if kind == GPUS else "")
        for kind in sorted({box.kind for box in found})
    ]
    if patches:
        axes.legend(handles=patches, fontsize=8, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    return figure


def _step(nodes: int) -> int:
    """Return of how many nodes one is numbered at the axis: 1, 2 or 5, or a power of ten times as many."""
    power = int(10 ** len(str(nodes * 2 // _MOST_NAMES)))
    return next(power // part for part in (10, 5, 2, 1) if nodes * part <= power * _MOST_NAMES // 2)


class _Drawn(NamedTuple):
    """A box, and its begin and end at the axis of time."""

    begin: float
    end: float
    box: GanttBox


def _draw_boxes(axes: Axes, drawn: Sequence[_Drawn], hatch: str = "") -> None:
    from matplotlib.collections import PolyCollection

    corners = [[(begin, box.low), (end, box.low), (end, box.high), (begin, box.high)] for begin, end, box in drawn]
    faces = [(colours := _LOOKS[box.kind][1])[box.job % len(colours)] for _, _, box in drawn]
    edge = 0.3 if len(drawn) <= 2000 else 0
    shapes = PolyCollection(corners, facecolors=faces, edgecolors="white", linewidths=edge, rasterized=True)
    shapes.set_hatch(hatch)
    axes.add_collection(shapes)


def _draw_bands(axes: Axes, nodes: Sequence[SharedNode]) -> None:
    """Draw the cores and GPUs of nodes, the first node on top, with their names at the axis."""
    found = bands(nodes)
    for band in found:
        bottom = band.top + band.rows * band.height
        axes.axhspan(band.top, bottom, color=_IDLE[band.height < 1], linewidth=0, zorder=0)
    axes.set_ylim(max(band.top + band.rows * band.height for band in found), 0)
    every = -(-len(nodes) // _MOST_NAMES)
    middles = [band.top + band.rows / 2 for band in found[: len(nodes) : every]]
    axes.set_yticks(middles, [node.name for node in nodes[::every]])


def _draw_labels(axes: Axes, drawn: Sequence[_Drawn], labels: Sequence[object]) -> None:
    """Write the labels of jobs into their boxes on nodes or cores, where these have room."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    wide, high = _CHART[0] / (right - left), _CHART[1] / abs(bottom - top)
    for begin, end, box in drawn:
        text = str(labels[box.job])
        has_room = (end - begin) * wide >= _LETTER * len(text) and (box.high - box.low) * high >= _LETTER
        if has_room and box.kind != GPUS:
            x, y, size = (begin + end) / 2, (box.low + box.high) / 2, _LETTER
            axes.text(x, y, text, ha="center", va="center", fontsize=size, parse_math=False)


def load_figure(runs: Mapping[str, Schedule]) -> Figure:
    """Draw the busy nodes and the jobs in the queue over time."""
    figure = blank(12, 6, f"{', '.join(runs)}: utilisation and queue")
    upper, lower = figure.subplots(2, 1, sharex=True)
    span = _common(runs)
    unit, unit_name = _unit(span)
    edges = span.edges(BINS)
    for colour, (name, schedule) in zip(_cycle(len(runs)), runs.items(), strict=True):
        x = (edges - span.begin) / unit
        look = {"color": colour, "label": name, "fill": len(runs) == 1}
        for axes, level in (
            (upper, busy_nodes(schedule, edges) / schedule.nodes * 100),
            (lower, waiting(schedule, edges)),
        ):
            axes.stairs(level, x, **look)
            record(axes, name, x[:-1], level)
    upper.set_ylim(0, 105)
    name_axes(upper, "Utilisation", "", f"% of {unit_of(runs.values())} at work")
    name_axes(lower, "Queue", f"{unit_name} from the first submission", "jobs waiting")
    _name_runs(upper, runs)
    return figure


def days_figure(runs: Mapping[str, Schedule]) -> Figure:
    """Draw the mean slowdown of the jobs submitted on each day, and the number that started on parts of nodes."""
    span = _common(runs)
    length = period(span)
    word = "day" if length == DAY else "hour"
    figure = blank(12, 6, f"{', '.join(runs)}: slowdown per {word}")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    for colour, (name, schedule) in zip(_cycle(len(runs)), runs.items(), strict=True):
        table, slow = schedule.table, slowdown(schedule.table)
        ended = has_ended(table)
        means = means_per(length, span, table["submit"][ended], slow[ended])
        upper.plot(
            np.arange(len(means)) + 0.5, means, color=colour, label=name, linewidth=1.2, marker=".", markersize=3
        )
        record(upper, name, range(len(means)), means)
        starts = counts_per(length, span, table["start"][malleable(table, schedule.cores)])
        lower.stairs(starts, np.arange(len(starts) + 1), color=colour, fill=len(runs) == 1)
        record(lower, name, range(len(starts)), starts)
    if any(np.nan_to_num(line.get_ydata()).max(initial=0) > 0 for line in upper.get_lines()):
        upper.set_yscale("log")
    name_axes(upper, "Slowdown", "", f"mean of the jobs submitted in each {word}")
    name_axes(lower, "Malleable starts", f"{word}s from the first submission", f"starts per {word}")
    lower.set_ylim(0, max(1, lower.get_ylim()[1]))
    _name_runs(upper, runs)
    return figure


def heat_figure(schedule: Schedule, name: str, unit: str = NODES) -> Figure:
    """Draw the mean slowdown, wait and run time by size, in nodes or cores, and run time with all resources."""
    figure = blank(18, 7.5, f"{name}: means by size and run time")
    table, ended = schedule.table, has_ended(schedule.table)
    values = {
        "slowdown": slowdown(table),
        "wait (hours)": table["wait"] / 3600,
        "run time (hours)": table["run_time"] / 3600,
    }
    for axes, (title, value) in zip(figure.subplots(1, 3), values.items(), strict=True):
        grid = grid_of(schedule, value, ended, unit)
        _heat(axes, grid, f"Mean {title}", None)
    return figure


def ratio_figure(first: tuple[str, Schedule], other: tuple[str, Schedule], unit: str) -> Figure:
    """Draw the ratio of the first's mean slowdown, wait and run time to the other's: above 1 the other is better.

    As Figures 4 to 6 of the SD-Policy paper. Classes in which either mean is 0 or missing stay empty. `unit` is the
    unit of sizes, which `unit_of` returns for the two.
    """
    figure = blank(18, 7.5, f"{first[0]} / {other[0]}: above 1 {other[0]} is better")
    for axes, what in zip(figure.subplots(1, 3), ("slowdown", "wait", "run time"), strict=True):
        means = []
        for _, schedule in (first, other):
            table = schedule.table
            value = slowdown(table) if what == "slowdown" else table[what.replace(" ", "_")].astype(np.float64)
            means.append(grid_of(schedule, value, has_ended(table), unit))
        _heat(axes, ratio_of(*means), f"Ratio of mean {what}", 2.0)
    return figure


def ratio_of(first: Grid, other: Grid) -> Grid:
    """Return the ratios of the means of two grids of the same classes; nan if one of them is 0 or missing."""
    rows = min(len(first.means), len(other.means))
    one, two = first.means[:rows], other.means[:rows]
    known = (one > 0) & (two > 0)
    ratios = np.full(one.shape, np.nan)
    ratios[known] = one[known] / two[known]
    return Grid(ratios, first.jobs[:rows], first.sizes[:rows], first.times, first.unit)


def _heat(axes: Axes, grid: Grid, title: str, widest: float | None) -> None:
    """Draw a grid; `widest` of a grid of ratios is the power of ten at which the colours end."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    shown = grid.means[np.isfinite(grid.means) & (grid.means > 0)]
    if not len(shown):
        shown = np.ones(1)
    low, high = shown.min(), max(shown.max(), shown.min() * 1.01)
    if widest is not None:
        reach = float(np.clip(np.abs(np.log10(shown)).max(), 0.3, widest))
        low, high = 10**-reach, 10**reach
    colours, norm = colormaps["viridis" if widest is None else "RdBu"], LogNorm(low, high, clip=True)
    image = axes.imshow(grid.means, origin="lower", aspect="auto", cmap=colours, norm=norm)
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label=title)
    known = np.nonzero(np.isfinite(grid.means))
    times, sizes = [grid.times[column] for column in known[1]], [grid.sizes[row] for row in known[0]]
    record(axes, title, times, sizes, grid.means[known])
    record(axes, "jobs", times, sizes, grid.jobs[known])
    for row, column in zip(*known, strict=True):
        light = np.dot(colours(norm(grid.means[row, column]))[:3], (0.299, 0.587, 0.114)) > 0.5
        text = f"{_short(grid.means[row, column])}\n{_short(grid.jobs[row, column])}"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if light else "white")
    axes.set_xticks(range(len(grid.times)), grid.times, rotation=45, ha="right")
    axes.set_yticks(range(len(grid.sizes)), grid.sizes)
    name_axes(axes, f"{title}; below: jobs", "run time with all resources, up to", grid.unit)


def guests(schedule: Schedule) -> int:
    """Return the number of jobs that started on parts of nodes."""
    return int(malleable(schedule.table, schedule.cores).sum())


def _short(value: Floats | float) -> str:
    number = float(value)
    for limit, sign in ((1e6, "M"), (1e4, "k")):
        if number >= limit:
            return f"{number / (1e6 if sign == 'M' else 1e3):.3g}{sign}"
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def _common(runs: Mapping[str, Schedule]) -> Span:
    spans = [span_of(schedule) for schedule in runs.values()]
    return Span(min(span.begin for span in spans), max(span.end for span in spans))


def _unit(span: Span) -> tuple[int, str]:
    length = span.end - span.begin
    return (DAY, "days") if length >= 4 * DAY else (3600, "hours") if length >= 4 * 3600 else (1, "seconds")


def _of_window(window: Span, span: Span) -> str:
    if window == span:
        return ""
    return f", from second {window.begin:,} to {window.end:,} of the log"


def _cycle(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _name_runs(axes: Axes, runs: Mapping[str, Schedule]) -> None:
    if len(runs) > 1:
        axes.legend(fontsize=8, frameon=False, ncols=6, loc="lower right", bbox_to_anchor=(1, 1))
