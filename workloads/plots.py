# SPDX-License-Identifier: Apache-2.0
"""A workload on one page: arrivals, sizes, times, accuracy of requests, load. matplotlib is imported when drawing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from drom.workloads.errors import WorkloadError
from drom.workloads.figures import BLUE, ORANGE, blank, save
from drom.workloads.levels import mean_level

if TYPE_CHECKING:
    import os

    from drom.workloads.workload import Floats, Ints, Workload
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg")
_DAY = 86_400
_BINS = 200


def draw(workload: Workload, cleaned: Workload, processors: int, path: str | os.PathLike[str]) -> None:
    """Write a page about a log as PNG or SVG, by the suffix of `path`.

    Counts are of the log as recorded; sizes and load are of the cleaned jobs, on a machine of `processors`. Raises
    WorkloadError for another suffix and if matplotlib is missing.
    """
    target = Path(path)
    if target.suffix not in FORMATS:
        msg = f"{target.name!r} is not a picture: end the name in {' or '.join(FORMATS)}."
        raise WorkloadError(msg)
    name = Path(workload.source).name or "workload"
    figure = blank(13, 7.5, f"{name}: {len(workload):,} jobs")
    axes = figure.subplots(2, 3)
    _hours(axes[0, 0], workload)
    _sizes(axes[0, 1], cleaned)
    _times(axes[0, 2], workload)
    _arrivals(axes[1, 0], workload)
    _accuracy(axes[1, 1], workload)
    _load(axes[1, 2], cleaned, processors)
    for panel in axes.flat:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    save(figure, target, target.suffix[1:])


def hour_of_day(workload: Workload) -> tuple[Ints, bool]:
    """Return each submission's hour, 0 to 23, and whether the log has its date; if not, hours count from its time 0."""
    start = workload.header_number("UnixStartTime")
    zone = workload.header_number("TimeZone") or 0
    return (workload.submit + (start or 0) + zone) // 3600 % 24, start is not None


def busy(cleaned: Workload, edges: Floats) -> Floats:
    """Return the mean number of busy processors between each two of `edges`, seconds of the log.

    Jobs run from their recorded start, submission plus wait (0 where unknown), for their run time.
    """
    start = cleaned.submit + np.maximum(cleaned.wait, 0)
    return mean_level(start, start + cleaned.run_time, cleaned.allocated, edges)


def _hours(axes: Axes, workload: Workload) -> None:
    hours, known = hour_of_day(workload)
    counts = np.bincount(hours, minlength=24)
    axes.bar(np.arange(24) + 0.5, counts / counts.mean(), width=0.9, color=BLUE)
    axes.set_title("Arrivals by hour of the day", loc="left", fontsize=10)
    axes.set_xlabel("hour, local time" if known else "hour from the log's time 0 (its clock is unknown)", fontsize=9)
    axes.set_ylabel("relative to the mean", fontsize=9)
    axes.set_xlim(0, 24)
    axes.set_xticks(range(0, 25, 4))


def _sizes(axes: Axes, cleaned: Workload) -> None:
    top = int(np.ceil(np.log2(max(2, int(cleaned.allocated.max())))))
    bins = np.clip(np.ceil(np.log2(cleaned.allocated)).astype(np.int64), 0, top)
    whole = (cleaned.allocated & (cleaned.allocated - 1)) == 0
    powers = np.bincount(bins[whole], minlength=top + 1) / len(cleaned) * 100
    others = np.bincount(bins[~whole], minlength=top + 1) / len(cleaned) * 100
    axes.bar(range(top + 1), powers, color=BLUE, label="powers of two")
    axes.bar(range(top + 1), others, bottom=powers, color=ORANGE, label="other sizes, up to it")
    axes.set_title("Sizes", loc="left", fontsize=10)
    axes.set_xlabel("processors", fontsize=9)
    axes.set_ylabel("% of jobs", fontsize=9)
    shown = range(0, top + 1, max(1, -(-top // 8)))
    axes.set_xticks(list(shown), [f"{2**power:,}" for power in shown])
    axes.legend(fontsize=8, frameon=False)


def _times(axes: Axes, workload: Workload) -> None:
    for values, label, colour in (
        (workload.run_time, "run time", BLUE),
        (workload.requested_time, "requested time", ORANGE),
    ):
        known = np.sort(values[values > 0])
        if len(known):
            probes = np.unique(np.geomspace(1, known[-1], 400).astype(np.int64))
            share = np.searchsorted(known, probes, side="right") / len(known) * 100
            axes.step(probes, share, where="post", label=label, color=colour)
    axes.set_xscale("log")
    axes.set_xlim(1, None)
    marks = {1: "1 s", 60: "1 min", 3600: "1 h", _DAY: "1 d", 30 * _DAY: "30 d"}
    axes.set_xticks(list(marks), list(marks.values()))
    axes.minorticks_off()
    axes.set_title("Run times and requested times", loc="left", fontsize=10)
    axes.set_ylabel("% of jobs at most as long", fontsize=9)
    if axes.lines:
        axes.legend(fontsize=8, frameon=False)


def _arrivals(axes: Axes, workload: Workload) -> None:
    days = (workload.submit - workload.submit.min()) / _DAY
    axes.hist(days, bins=min(_BINS, max(1, int(days.max()) + 1)), color=BLUE)
    axes.set_title("Arrivals over time", loc="left", fontsize=10)
    axes.set_xlabel("days from the first submission", fontsize=9)
    axes.set_ylabel("jobs", fontsize=9)


def _accuracy(axes: Axes, workload: Workload) -> None:
    known = (workload.requested_time > 0) & (workload.run_time >= 0)
    axes.set_title("Accuracy of requests", loc="left", fontsize=10)
    axes.set_xlabel("run time / requested time", fontsize=9)
    axes.set_ylabel("% of jobs", fontsize=9)
    if not known.any():
        axes.text(0.5, 0.5, "no job has both", ha="center", transform=axes.transAxes)
        return
    ratio = workload.run_time[known] / workload.requested_time[known]
    counts, edges = np.histogram(np.minimum(ratio, 1.05), bins=np.linspace(0, 1.1, 45))
    axes.bar(edges[:-1], counts / len(ratio) * 100, width=np.diff(edges), align="edge", color=BLUE)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    longer = (ratio > 1).mean()
    if longer:
        axes.annotate(f"longer: {longer:.1%}", (0.98, 0.95), xycoords="axes fraction", ha="right", fontsize=8)


def _load(axes: Axes, cleaned: Workload, processors: int) -> None:
    first = cleaned.submit.min()
    last = (cleaned.submit + np.maximum(cleaned.wait, 0) + cleaned.run_time).max()
    edges = np.linspace(first, last, _BINS + 1)
    axes.stairs(busy(cleaned, edges) / processors * 100, (edges - first) / _DAY, fill=True, color=BLUE)
    axes.axhline(100, color="black", linewidth=0.7)
    axes.set_title(f"Load on {processors:,} processors", loc="left", fontsize=10)
    axes.set_xlabel("days from the first submission", fontsize=9)
    axes.set_ylabel("% busy" if (cleaned.wait >= 0).all() else "% busy, had no job waited", fontsize=9)
    axes.set_ylim(0, None)
