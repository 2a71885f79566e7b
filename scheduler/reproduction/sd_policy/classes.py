# SPDX-License-Identifier: Apache-2.0
"""Figures 4 to 7 as numbers: classes of jobs by size and run time, and days, under static backfilling and SD-Policy.

The paper does not give the borders of its classes; those of `drom.scheduler.analysis.series` are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.analysis.metrics import slowdown
from drom.scheduler.analysis.plots import ratio_of
from drom.scheduler.analysis.series import DAY, TIMES, grid_of, means_per, period, span_of
from drom.scheduler.reproduction.sd_policy import paper
from drom.scheduler.reproduction.sd_policy.tables import CHANGE, Row

if TYPE_CHECKING:
    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.analysis.series import Grid

_SMALL, _SHORT = 512, "4 h"
_LARGE, _LONG = 1024, "1 d"


def class_rows(static: Schedule, malleable: Schedule) -> list[Row]:
    """Return rows on the paper's statements about the ratios of Figures 4 to 6, for full schedules of the same jobs."""
    slow, run, wait = (_ratios(static, malleable, what) for what in ("slowdown", "run_time", "wait"))
    jobs, ratio = _large(slow)
    longer = None if ratio is None else 100 * (1 / ratio - 1)
    return [
        Row("Figure 4", "largest ratio up to 512 nodes and 4 h", "", paper.LARGEST_RATIO, _largest(slow)),
        Row("Figure 4", f"classes with more slowdown, of {_known(slow)}", "", paper.WORSE_CLASSES, _below_1(slow)),
        Row("Figure 4", "jobs of 513-1,024 nodes, 12 h to 1 d", "", paper.LARGE_JOBS, jobs),
        Row("Figure 4", "the same: slowdown", CHANGE, paper.LARGE_JOBS_SLOWDOWN, longer),
        Row("Figure 5", f"classes with longer run times, of {_known(run)}", "", None, _below_1(run)),
        Row("Figure 6", f"classes with longer waits, of {_known(wait)}", "", None, _below_1(wait)),
    ]


def day_rows(static: Schedule, malleable: Schedule) -> list[Row]:
    """Return a row with the number of days on which submitted jobs have more slowdown, as in Figure 7."""
    span = span_of(static)
    length = period(span)
    one, two = (means_per(length, span, s.table["submit"], slowdown(s.table)) for s in (static, malleable))
    known = np.isfinite(one) & np.isfinite(two)
    word = "days" if length == DAY else "hours"
    return [Row("Figure 7", f"{word} with more slowdown, of {known.sum()}", "", None, int((two > one)[known].sum()))]


def _ratios(static: Schedule, malleable: Schedule, what: str) -> Grid:
    def grid(schedule: Schedule) -> Grid:
        table = schedule.table
        return grid_of(schedule, slowdown(table) if what == "slowdown" else table[what].astype(np.float64))

    return ratio_of(grid(static), grid(malleable))


def _known(grid: Grid) -> int:
    return int(np.isfinite(grid.means).sum())


def _below_1(grid: Grid) -> int:
    return int((grid.means < 1).sum())


def _largest(grid: Grid) -> float | None:
    part = grid.means[: _row(_SMALL) + 1, : _column(_SHORT) + 1]
    return float(np.nanmax(part)) if np.isfinite(part).any() else None


def _large(grid: Grid) -> tuple[int, float | None]:
    """Return the number of jobs of the class named in the text, and its ratio."""
    if len(grid.means) <= _row(_LARGE):
        return 0, None
    place = _row(_LARGE), _column(_LONG)
    ratio = float(grid.means[place])
    return int(grid.jobs[place]), ratio if np.isfinite(ratio) else None


def _row(nodes: int) -> int:
    """Return the class of sizes of which this power of two is the largest."""
    return nodes.bit_length() - 1


def _column(name: str) -> int:
    return list(TIMES).index(name)
