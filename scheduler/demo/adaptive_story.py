# SPDX-License-Identifier: Apache-2.0
"""The cores of adaptive jobs over time: as the scheduler's history has them, as digits, and as a picture. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.live.accounting import entries_of
from drom.scheduler.live.cluster.jobs import FINAL
from drom.workloads import figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from drom.scheduler.interface import Ints
    from matplotlib.figure import Figure

EACH = 0.1
"""Seconds from one value of a course to the next."""
WIDE, HIGH = 9.0, 3.6
"""The size of the picture, in inches."""


class Course(NamedTuple):
    """A job, and the cores that it had at multiples of `EACH` seconds."""

    name: str
    cores: Ints


def courses(history: dict[str, Any]) -> list[Course]:
    """Return the course of each job in a scheduler's answer to `history`, from the first submission on."""
    begin = min(job["submitted"] for job in history["jobs"])
    count = round((history["time"] - begin) / EACH) + 1
    entries, found = entries_of(history), list[Course]()
    for job in history["jobs"]:
        cores, held = np.zeros(count, np.int64), dict[str, int]()
        for entry in entries[job["job"]]:
            what, detail = entry["what"], entry["detail"]
            if what == "placed":
                held = dict(detail["shares"])
            elif what == "resized":
                held[detail["node"]] = detail["cores"]
            elif what in FINAL or what == "requeued":
                held = {}
            if what in ("started", "resized", "requeued", *FINAL):
                cores[round((entry["at"] - begin) / EACH) :] = sum(held.values())
        found.append(Course(job["name"], cores))
    return found


def digits(shown: Sequence[Course], width: int) -> list[str]:
    """Return a line for each job with its cores over time, a digit a column; a dot is none."""
    margin = max(len(course.name) for course in shown) + 2
    seconds = max(1, -(-round(len(shown[0].cores) * EACH) // max(10, width - margin)))
    every = round(seconds / EACH)
    lines = [
        f"{name:<{margin}}{''.join(str(min(9, held)) if held else '.' for held in cores[every // 2 :: every].tolist())}"
        for name, cores in shown
    ]
    return [*lines, f"{'':<{margin}}a column is {seconds} s, a digit the cores of a job, a dot none"]


def picture(shown: Sequence[Course], total: int, title: str) -> Figure:
    """Return the cores of all jobs above each other, of `total`. Raises WorkloadError if matplotlib is missing."""
    figure = figures.blank(WIDE, HIGH, title)
    axes = figure.subplots()
    times, floor = np.arange(len(shown[0].cores)) * EACH, np.zeros(len(shown[0].cores))
    for at, (name, cores) in enumerate(shown):
        colour = figures.COLOURS[at % len(figures.COLOURS)]
        axes.fill_between(times, floor, floor + cores, step="post", color=colour, linewidth=0, label=name)
        floor = floor + cores
    axes.set_xlim(0, times[-1])
    axes.set_ylim(0, total)
    figures.name_axes(axes, f"Cores of each job, of {total} on all nodes", "seconds", "cores")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    return figure
