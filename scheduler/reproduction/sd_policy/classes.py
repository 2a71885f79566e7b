# SPDX-License-Identifier: Apache-2.0
"""Figures 4 to 7 as numbers: classes of jobs by size and run time, and days, under static backfilling and SD-Policy.

The paper does not give the borders of its classes; those of `drom.scheduler.analysis.series` are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.scheduler.analysis.metrics import slowdown
from drom.scheduler.analysis.series import DAY, TIMES, Span, grid_of, means_per, period
from drom.scheduler.reproduction.sd_policy import paper
from drom.scheduler.reproduction.sd_policy.tables import CHANGE, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.interface import Floats

_SMALL, _SHORT = 512, "4 h"
_LARGE, _LONG = 1024, "1 d"


class Classes(NamedTuple):
    """Means of a complete schedule by class: rows are sizes, columns run times; nan for a class without jobs."""

    slowdown: Floats
    run_time: Floats
    wait: Floats
    jobs: Floats
    by_period: Floats
    """Mean slowdowns by the time of submission: per day, or per hour for a short schedule."""
    daily: bool

    @classmethod
    def of(cls, schedule: Schedule) -> Classes:
        """Return the means of a schedule."""
        table, submit = schedule.table, schedule.table["submit"]
        values = (slowdown(table), table["run_time"].astype(np.float64), table["wait"].astype(np.float64))
        slow, run, wait = (grid_of(schedule, value) for value in values)
        span = Span(int(submit.min()), int(submit.max()))
        length = period(span)
        by_period = means_per(length, span, submit, values[0])
        return cls(slow.means, run.means, wait.means, slow.jobs.astype(np.float64), by_period, length == DAY)

    def to_json(self) -> dict[str, Any]:
        """Return the means as JSON values."""
        return {name: np.asarray(value).tolist() for name, value in self._asdict().items()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Classes:
        """Return the means from JSON values."""
        return cls(**{name: np.array(told[name], np.float64) for name in cls._fields[:-1]}, daily=told["daily"])


def class_rows(static: Classes, malleable: Classes) -> list[Row]:
    """Return rows on the paper's statements about the ratios of Figures 4 to 6, for the same jobs."""
    slow, run, wait = (_ratios(getattr(static, what), getattr(malleable, what)) for what in Classes._fields[:3])
    jobs, ratio = _large(static.jobs, slow)
    longer = None if ratio is None else 100 * (1 / ratio - 1)
    return [
        Row("Figure 4", "largest ratio up to 512 nodes and 4 h", "", paper.LARGEST_RATIO, _largest(slow)),
        Row("Figure 4", f"classes with more slowdown, of {_known(slow)}", "", paper.WORSE_CLASSES, _below_1(slow)),
        Row("Figure 4", "jobs of 513-1,024 nodes, 12 h to 1 d", "", paper.LARGE_JOBS, jobs),
        Row("Figure 4", "the same: slowdown", CHANGE, paper.LARGE_JOBS_SLOWDOWN, longer),
        Row("Figure 5", f"classes with longer run times, of {_known(run)}", "", None, _below_1(run)),
        Row("Figure 6", f"classes with longer waits, of {_known(wait)}", "", None, _below_1(wait)),
    ]


def day_rows(static: Classes, malleable: Classes) -> list[Row]:
    """Return a row with the number of days on which submitted jobs have more slowdown, as in Figure 7."""
    one, two = static.by_period, malleable.by_period
    known = np.isfinite(one) & np.isfinite(two)
    word = "days" if static.daily else "hours"
    return [Row("Figure 7", f"{word} with more slowdown, of {known.sum()}", "", None, int((two > one)[known].sum()))]


def _ratios(static: Floats, malleable: Floats) -> Floats:
    """Return the ratios of means; nan where one of them is 0 or missing."""
    ratios = np.full(static.shape, np.nan)
    known = (static > 0) & (malleable > 0)
    ratios[known] = static[known] / malleable[known]
    return ratios


def _known(ratios: Floats) -> int:
    return int(np.isfinite(ratios).sum())


def _below_1(ratios: Floats) -> int:
    return int((ratios < 1).sum())


def _largest(ratios: Floats) -> float | None:
    part = ratios[: _row(_SMALL) + 1, : _column(_SHORT) + 1]
    return float(np.nanmax(part)) if np.isfinite(part).any() else None


def _large(jobs: Floats, ratios: Floats) -> tuple[int, float | None]:
    """Return the number of jobs of the class named in the text, and its ratio."""
    if len(ratios) <= _row(_LARGE):
        return 0, None
    place = _row(_LARGE), _column(_LONG)
    ratio = float(ratios[place])
    return int(jobs[place]), ratio if np.isfinite(ratio) else None


def _row(nodes: int) -> int:
    """Return the class of sizes of which this power of two is the largest."""
    return nodes.bit_length() - 1


def _column(name: str) -> int:
    return list(TIMES).index(name)
