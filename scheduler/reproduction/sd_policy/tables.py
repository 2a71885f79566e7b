# SPDX-License-Identifier: Apache-2.0
"""The paper's tables and figures as rows: its values, drom's values, and their deviations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.text import table
from drom.scheduler.analysis.metrics import FIGURES
from drom.scheduler.reproduction.sd_policy import paper
from drom.scheduler.reproduction.sd_policy.settings import CUTOFFS, DYNAMIC, DYNAMIC_WORST, FIXED, MAXSD_10, STATIC
from drom.workloads.mix import TABLE_2, applications

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from drom.scheduler.reproduction.sd_policy.paper import Given

Metrics = dict[str, Any]
"""The metrics of a summary.json."""
CHANGE, SHARE = "%", "% of jobs"
"""The units whose deviation is in points."""
_AMONG = {paper.FIXED_VALUES: FIXED, paper.ALL_SETTINGS: CUTOFFS}


class Row(NamedTuple):
    """A number of the paper and drom's; None if the paper does not give it, or if it was not simulated."""

    place: str
    """The table or figure of the paper."""
    what: str
    unit: str
    paper: Given | None
    here: float | None

    def deviation(self) -> float | None:
        """Return the deviation of `here` from the paper: in points for changes, else percent; None if one is missing.

        For a bound it is the distance by which the size of `here` exceeds it.
        """
        if self.paper is None or self.here is None:
            return None
        if self.paper.bound:
            return max(0.0, abs(self.here) - self.paper.value)
        if self.unit in {CHANGE, SHARE}:
            return self.here - self.paper.value
        return change(self.here, self.paper.value)

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        given = {"paper": self.paper and self.paper.value, "paper_is_bound": bool(self.paper and self.paper.bound)}
        head = {"place": self.place, "what": self.what, "unit": self.unit}
        return head | given | {"here": self.here, "deviation": self.deviation()}


def change(value: float | None, base: float | None) -> float | None:
    """Return the difference of a value from a base in percent; None if one is missing or the base is 0."""
    return None if value is None or not base else 100 * (value / base - 1)


def table_1(workload: int, runs: Mapping[str, Metrics]) -> list[Row]:
    """Return the rows of static backfilling; `runs` are the metrics of complete runs, by setting."""
    static = runs.get(STATIC.name, {})
    return [
        Row("Table 1", f"{STATIC.label}: {FIGURES[key]}", "s" if key.endswith("_s") else "", given, static.get(key))
        for key, given in paper.STATIC[workload].items()
    ]


def figures_1_to_3(workload: int, runs: Mapping[str, Metrics]) -> Iterator[Row]:
    """Yield the changes under every value of MAX_SLOWDOWN, then the best change and the place of the best."""
    for number, key in enumerate((paper.MAKESPAN, paper.RESPONSE, paper.SLOWDOWN), 1):
        for setting in CUTOFFS:
            given = paper.CHANGES.get((workload, setting.name, key))
            here = _change(runs, setting.name, STATIC.name, key)
            yield Row(f"Figure {number}", f"{setting.label}: {FIGURES[key]}", CHANGE, given, here)
    found = [_change(runs, setting.name, STATIC.name, paper.SLOWDOWN) for setting in CUTOFFS]
    known = [value for value in found if value is not None]
    best = min(known) if len(known) == len(CUTOFFS) else None
    yield Row("Figure 3", "best setting: slowdown", CHANGE, paper.BEST_SLOWDOWN[workload], best)
    yield _place_of_best(workload, runs)


def _place_of_best(workload: int, runs: Mapping[str, Metrics]) -> Row:
    """Return the place, by slowdown, of the setting that is the paper's best."""
    name, among = paper.BEST[workload]
    label = next(setting.label for setting in _AMONG[among] if setting.name == name)
    found = {setting.name: runs[setting.name][paper.SLOWDOWN] for setting in _AMONG[among] if setting.name in runs}
    place = 1 + sum(other < found[name] for other in found.values()) if len(found) == len(_AMONG[among]) else None
    return Row("Figure 3", f"{label}: place among {among}", "", paper.Given(1), place)


def figure_8(workload: int, runs: Mapping[str, Metrics]) -> list[Row]:
    """Return the changes from the ideal to the worst-case model."""
    return [
        Row(
            "Figure 8",
            f"{DYNAMIC.label}, worst case to ideal: {FIGURES[key]}",
            CHANGE,
            given,
            _change(runs, DYNAMIC_WORST.name, DYNAMIC.name, key),
        )
        for key, given in paper.MODELS[workload].items()
    ]


def figure_7(runs: Mapping[str, Metrics]) -> list[Row]:
    """Return the rows on the use of malleability in workload 4."""
    run = runs.get(MAXSD_10.name, {})
    given = {"malleable starts": (paper.STARTS, "malleable_starts"), "mates": (paper.MATES, "distinct_mates")}
    return [
        Row("Figure 7", f"{MAXSD_10.label}: {name}", "jobs", number, run.get(key))
        for name, (number, key) in given.items()
    ]


def workload_5(seed: int, static: Metrics) -> list[Row]:
    """Return rows on static backfilling on a real machine in the paper, and on the mix of applications made here."""
    made = np.bincount(applications(np.arange(1, paper.REAL_JOBS + 1), seed), minlength=len(TABLE_2)) / paper.REAL_JOBS
    return [
        *table_1(5, {STATIC.name: static}),
        *(
            Row("Table 2", f"jobs that run {row.name}", SHARE, paper.Given(row.share), float(100 * share))
            for row, share in zip(TABLE_2, made, strict=True)
        ),
    ]


def _change(runs: Mapping[str, Metrics], name: str, base: str, key: str) -> float | None:
    return change(runs.get(name, {}).get(key), runs.get(base, {}).get(key))


def cells(row: Row) -> tuple[str, str, str, str, str]:
    """Return a row as text: place, what, paper, here, deviation."""
    here = "not run" if row.here is None else text_of(row, row.here)
    return row.place, row.what, given_text(row), here, _apart(row)


def lines(rows: Iterable[Row]) -> list[str]:
    """Return a table as lines of text."""
    return table(("PLACE", "WHAT", "PAPER", "HERE", "DEVIATION"), list(map(cells, rows)), "  >>>")


def given_text(row: Row) -> str:
    """Return the paper's number as text."""
    if row.paper is None:
        return "not given"
    return f"below {row.paper.value:g} {row.unit}" if row.paper.bound else text_of(row, row.paper.value)


def text_of(row: Row, value: float) -> str:
    """Return a value with the unit of a row."""
    if row.unit == CHANGE:
        return f"{value:+.1f} %"
    if row.unit == SHARE:
        return f"{value:.1f} %"
    if row.unit:
        return f"{value:,.0f} {row.unit}"
    return f"{value:,.1f}" if value >= 999.5 else f"{value:.3g}"


def _apart(row: Row) -> str:
    deviation = row.deviation()
    if deviation is None:
        return "-"
    return f"{deviation:+.1f} {'points' if row.unit in {CHANGE, SHARE} else '%'}"
