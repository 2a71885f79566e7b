# SPDX-License-Identifier: Apache-2.0
"""The results of an experiment: means over the seeds, and paired differences from the baseline. Pure.

A difference is taken seed by seed, on the same jobs. Its interval is that of Student's t at 95 %; the effect size is
Cohen's d for paired samples, the mean of the differences over their standard deviation.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.text import table as lines_of
from drom.scheduler.analysis.comparison import MORE_IS_BETTER, number
from drom.scheduler.analysis.estimates import Estimate, estimate, verdict
from drom.scheduler.analysis.metrics import COUNTS
from drom.scheduler.experiments.design import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from drom.scheduler.experiments.design import Design

Cell = tuple[Any, ...]


class Row(NamedTuple):
    """A metric in a cell: its mean, and the change from the baseline as a fraction of that, over the seeds.

    `change` and `effect` are None for the baseline itself, and where they are not known; `half` is nan for one seed.
    """

    metric: str
    levels: Mapping[str, str]
    runs: int
    mean: Estimate
    change: Estimate | None
    effect: float | None
    verdict: str


def rows_of(design: Design, found: Mapping[tuple[Cell, int], Mapping[str, Any]]) -> list[Row]:
    """Return a row for each metric and cell that has runs; a failed run counts for neither side of a difference."""
    rows = []
    for metric in design.metrics:
        for cell in design.cells:
            mine = _values(design, found, cell, metric)
            if mine:
                base = _values(design, found, _baseline(design, cell), metric)
                rows.append(_row(design, metric, cell, mine, base))
    return rows


def _values(
    design: Design, found: Mapping[tuple[Cell, int], Mapping[str, Any]], cell: Cell, metric: str
) -> dict[int, float]:
    """Return the values of a metric in a cell, by seed."""
    told = {seed: found.get((cell, seed), {}).get("metrics", {}).get(metric) for seed in design.seeds}
    return {seed: float(value) for seed, value in told.items() if value is not None}


def _baseline(design: Design, cell: Cell) -> Cell:
    """Return the cell with the same levels but that of the baseline."""
    return tuple(
        factor.levels[factor.labels.index(design.baseline)] if factor.name == design.compare else level
        for factor, level in zip(design.factors, cell, strict=True)
    )


def _row(design: Design, metric: str, cell: Cell, mine: Mapping[int, float], base: Mapping[int, float]) -> Row:
    levels, mean = design.labels(cell), _estimate(list(mine.values()))
    common = [seed for seed in mine if seed in base]
    if levels.get(design.compare) == design.baseline or not design.factors or not common:
        return Row(metric, levels, len(mine), mean, None, None, "")
    gains = np.array([mine[seed] - base[seed] for seed in common])
    scale = abs(float(np.mean([base[seed] for seed in common])))
    difference = _estimate(gains.tolist())
    change = Estimate(difference.mean / scale, difference.half / scale) if scale else None
    spread = float(gains.std(ddof=1)) if len(gains) > 1 else 0.0
    better = difference.mean if metric in MORE_IS_BETTER else -difference.mean
    is_judged = len(gains) > 1 and metric not in COUNTS
    return Row(
        metric,
        levels,
        len(mine),
        mean,
        change,
        difference.mean / spread if spread else None,
        verdict(Estimate(better, difference.half)) if is_judged else "",
    )


def _estimate(values: Sequence[float]) -> Estimate:
    return estimate(np.array(values)) if len(values) > 1 else Estimate(values[0], float("nan"))


def _shown(half: float, show: Callable[[float], str]) -> str:
    return "-" if math.isnan(half) else show(half)


def cells_of(design: Design, rows: Sequence[Row]) -> list[list[str]]:
    """Return the rows as texts, below a line of headings."""
    names = [factor.name for factor in design.factors]
    heads = ["METRIC", *(name.upper() for name in names), "RUNS", "MEAN", "+-", "CHANGE", "+-", "EFFECT", "VERDICT"]
    return [heads, *(_cells(row, names) for row in rows)]


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    change = row.change
    return [
        METRICS[row.metric],
        *(row.levels[name] for name in names),
        str(row.runs),
        number(row.mean.mean),
        _shown(row.mean.half, number),
        "-" if change is None else f"{change.mean:+.1%}",
        "-" if change is None else _shown(change.half, "{:.1%}".format),
        "-" if row.effect is None else f"{row.effect:+.2f}",
        row.verdict or "-",
    ]


def lines(design: Design, rows: Sequence[Row]) -> list[str]:
    """Return the rows as a table."""
    heads, *cells = cells_of(design, rows)
    return lines_of(heads, cells, " " * (1 + len(design.factors)) + ">>>>>> ")


def note(design: Design) -> str:
    """Return what the columns mean."""
    seeds = f"{len(design.seeds)} seed{'s' * (len(design.seeds) > 1)}"
    found = f"Means over {seeds}, with half of their 95 % intervals."
    if not design.factors:
        return found
    return (
        f"{found} CHANGE is from {design.compare} {design.baseline} on the same jobs, seed by seed; EFFECT is the mean "
        "of these differences over their standard deviation (Cohen's d)."
    )


def table_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the columns of the rows, fractions and intervals as numbers; nan for what is not known."""
    found = [
        {
            "metric": row.metric,
            **row.levels,
            "runs": row.runs,
            "mean": row.mean.mean,
            "half_interval": row.mean.half,
            "change": math.nan if row.change is None else row.change.mean,
            "change_half_interval": math.nan if row.change is None else row.change.half,
            "effect": math.nan if row.effect is None else row.effect,
            "verdict": row.verdict,
        }
        for row in rows
    ]
    return {name: [row[name] for row in found] for name in found[0]} if found else {}


def runs_of(design: Design, found: Mapping[tuple[Cell, int], Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of all runs that did not fail: levels, seed, metrics, and the seconds of the simulation."""
    rows = [
        {
            **design.labels(cell),
            "seed": seed,
            **{name: math.nan if (value := run["metrics"][name]) is None else value for name in METRICS},
            "seconds": run["seconds"],
        }
        for (cell, seed), run in found.items()
        if "fault" not in run
    ]
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
