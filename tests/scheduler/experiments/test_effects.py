# SPDX-License-Identifier: Apache-2.0
"""Means, intervals and paired differences, against scipy where it is installed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from drom.scheduler.experiments.design import METRICS, Source, parse
from drom.scheduler.experiments.effects import lines, note, rows_of, runs_of, table_of

if TYPE_CHECKING:
    from drom.scheduler.experiments.design import Design

VALUES = {"fcfs": (10.0, 12.0, 17.0, 11.0), "easy": (8.0, 11.0, 11.0, 10.5)}


def design_of(**changes: Any) -> Design:
    """Return an experiment with two policies and four seeds."""
    values = {"seeds": 4, "metrics": ["mean_wait_s", "utilisation"], "workload": {"model": "lublin"}} | changes
    return parse(Source({"simulation": {"nodes": 4, "policy": ["fcfs", "easy"]}} | values, "", str))


def found_of(design: Design, **others: float) -> dict[tuple[tuple[Any, ...], int], dict[str, Any]]:
    """Return runs with these values of both metrics, and 0 for all others."""
    return {
        ((policy,), seed): {"metrics": dict.fromkeys(METRICS, others.get("value", value)), "seconds": 0.5}
        for policy, values in VALUES.items()
        for seed, value in zip(design.seeds, values, strict=True)
    }


def test_differences_are_paired() -> None:
    """The interval of the change is that of the differences, seed by seed; more is better for utilisation."""
    stats: Any = pytest.importorskip("scipy.stats", reason="needs scipy")
    design = design_of()
    base, row, _, used = rows_of(design, found_of(design))
    low, high = stats.ttest_rel(VALUES["easy"], VALUES["fcfs"]).confidence_interval()
    gains = [-2, -1, -6, -0.5]
    spread = stats.tstd(gains)
    half = stats.t.ppf(0.975, 3) * stats.sem(VALUES["easy"])

    assert (base.change, base.effect, base.verdict, base.runs) == (None, None, "", 4)
    assert row.mean == pytest.approx((10.125, half), rel=1e-4)
    assert row.change == pytest.approx((-2.375 / 12.5, (high - low) / 2 / 12.5), rel=1e-4)
    assert row.effect == pytest.approx(-2.375 / spread)
    assert (row.verdict, used.verdict) == ("same", "same")


def test_a_change_beyond_its_interval_is_better_or_worse() -> None:
    """Depending on the metric; counts are neither."""
    design = design_of(metrics=["mean_wait_s", "utilisation", "distinct_mates"])
    found = found_of(design)
    for seed, value in zip(design.seeds, VALUES["fcfs"], strict=True):
        found[("easy",), seed]["metrics"] = dict.fromkeys(METRICS, value - 1 - 0.01 * seed)

    assert [row.verdict for row in rows_of(design, found)] == ["", "better", "", "worse", "", ""]


def test_runs_that_failed_are_in_neither_side() -> None:
    """The pairs of the other seeds remain; a cell without runs has no row, one without pairs no change."""
    design = design_of(metrics=["mean_wait_s"])
    found = found_of(design)
    found[("fcfs",), 3] = {"fault": "x"}
    base, row = rows_of(design, found)
    assert (base.runs, row.runs) == (3, 4)
    assert row.change
    assert row.change.mean == pytest.approx(-3.5 / 33)

    for seed in design.seeds:
        found[("fcfs",), seed] = {"fault": "x"}
    (row,) = rows_of(design, found)
    assert (row.levels, row.change) == ({"policy": "easy"}, None)
    assert len(runs_of(design, found)["seed"]) == 4


def test_values_that_have_no_ratio_or_no_spread() -> None:
    """A baseline of 0, a single seed, and differences that are all the same."""
    design = design_of(metrics=["mean_wait_s"])
    zero = rows_of(design, found_of(design, value=0))[1]
    one = design_of(metrics=["mean_wait_s"], seeds=[1])
    single = rows_of(one, {key: run for key, run in found_of(design).items() if key[1] == 1})[1]

    assert (zero.change, zero.effect, zero.verdict) == (None, None, "same")
    assert (single.mean.mean, single.change and single.change.mean, single.effect, single.verdict) == (
        8,
        -0.2,
        None,
        "",
    )
    assert math.isnan(single.mean.half)
    assert lines(one, [single])[1].split() == ["wait", "easy", "1", "8", "-", "-20.0%", "-", "-", "-"]
    assert math.isnan(table_of([single])["half_interval"][0])


def test_the_note_says_what_is_compared() -> None:
    """Without factors nothing is."""
    alone = design_of(simulation={"nodes": 4, "policy": "fcfs"}, seeds=[7])

    assert "CHANGE is from policy fcfs on the same jobs" in note(design_of())
    assert note(alone) == "Means over 1 seed, with half of their 95 % intervals."
