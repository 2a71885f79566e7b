# SPDX-License-Identifier: Apache-2.0
"""Functions shared by pictures: creating and saving a figure, and the numbers that it shows.

matplotlib is imported when one is drawn.
"""

from __future__ import annotations

import csv
import importlib.util
import io
from typing import IO, TYPE_CHECKING
from weakref import WeakKeyDictionary

from drom.workloads.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, SKY, YELLOW = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, YELLOW)
"""Colours that colour-blind people can distinguish (Okabe and Ito)."""
COLUMNS = ("panel", "series", "x", "y", "value")
"""The columns of `data_of`."""
_SHOWN: WeakKeyDictionary[Axes, list[tuple[object, ...]]] = WeakKeyDictionary()


def require() -> None:
    """Raise WorkloadError if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise WorkloadError("Drawing needs matplotlib: run pip install 'drom[plots]'.")


def blank(width: float, height: float, title: str) -> Figure:
    """Return an empty figure, with sizes in inches. Raises WorkloadError if matplotlib is missing."""
    require()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def name_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title of a panel, the names of its axes, and the style of all panels."""
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, target: Path | IO[bytes], kind: str) -> None:
    """Write a figure as png, svg or pdf; the same picture gives the same bytes, and one layout in all formats."""
    if engine := figure.get_layout_engine():  # once: matplotlib would do so for each format, with a draft of all texts
        engine.execute(figure)
        figure.set_layout_engine(None)
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(target, format=kind, metadata=undated.get(kind))


def record(axes: Axes, series: str, x: Iterable[object], y: Iterable[object], values: Iterable[object] = ()) -> None:
    """Record points that a panel shows, for `data_of`.

    `values` are those of the classes of a heat map, or half of the interval around each y.
    """
    xs, ys, rest = list(x), list(y), list(values)
    _SHOWN.setdefault(axes, []).extend(zip([series] * len(xs), xs, ys, rest or [""] * len(xs), strict=True))


def data_of(figure: Figure) -> str:
    """Return the numbers that a figure shows as comma-separated values in the units of its axes; empty if none."""
    rows = [(axes.get_title(loc="left"), *row) for axes in figure.axes for row in _SHOWN.get(axes, ())]
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([COLUMNS, *rows])
    return stream.getvalue() if rows else ""
