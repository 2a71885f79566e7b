# SPDX-License-Identifier: Apache-2.0
"""`drom reproduce adaptive`: its jobs, its intervals, and what comes of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.scheduler.analysis.estimates import Estimate, estimate
from drom.scheduler.reproduction.adaptive.contracts import WORDS
from drom.scheduler.reproduction.adaptive.experiment import LOADS, SERVICE_S, Point, jobs_of, points_at

from tests.support.commands import drom
from tests.support.pictures import files_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Reproduce it once; return the folder, and what was told."""
    folder = tmp_path_factory.mktemp("adaptive") / "out"
    text, _ = drom("reproduce", "adaptive", "--out", folder, "--json")
    return folder, json.loads(text)


def test_files(told: tuple[Path, dict[str, Any]]) -> None:
    """The value that is printed, and a picture per figure."""
    folder, value = told
    pictures = files_of(*(f"figure-{number}" for number in (7, 8, 9, 10)), *(f"contracts-{name}" for name in WORDS))

    assert {file.name for file in folder.iterdir()} == {"adaptive.json", *pictures}
    assert json.loads((folder / "adaptive.json").read_text(encoding="utf-8")) == value
    assert {(point["figure"], point["load"]) for point in value["points"]} == {
        (f, x) for f in (7, 8, 9, 10) for x in LOADS
    }


def test_adaptive_jobs_do_better_at_every_load(told: tuple[Path, dict[str, Any]]) -> None:
    """Shorter responses and more processors in use, both beyond the 95 % interval of the difference."""
    assert {point["verdict"] for point in told[1]["points"]} == {"better"}


def test_payoff_earns_more_at_every_load(told: tuple[Path, dict[str, Any]]) -> None:
    """More of the pay-off than first fit and equipartition with the same jobs, beyond the 95 % interval."""
    rows = [row for row in told[1]["contracts"] if row["metric"] == "payoff"]

    assert [row["load"] for row in rows] == list(LOADS)
    assert {gain["verdict"] for row in rows for gain in row["gains"].values()} == {"better"}


def test_a_long_stall_takes_the_gain_away() -> None:
    """Where each change costs ten minutes, adaptive jobs do worse under much load, and better if that is weighed."""
    response, _ = points_at("simulation", 1.0, seed=1, stall=600)

    assert (response.verdict, response.verdict_on_weighing) == ("worse", "better")


def test_jobs() -> None:
    """Arrivals at the load, sizes from 1 to 64, and the mean service time on the whole machine."""
    work = jobs_of(0.5, 20_000, 7)
    whole = work.run_time[work.allocated == 64]

    assert work.submit[-1] / 20_000 == pytest.approx(SERVICE_S * 1000 / 0.5, rel=0.05)
    assert set(work.allocated.tolist()) == set(range(1, 65))
    assert whole.mean() == pytest.approx(SERVICE_S * 1000, rel=0.2)


def test_intervals() -> None:
    """Ten values of variance 1 have a half width of 2.262 / sqrt(10), and a difference within it is none."""
    values = np.array([-1.0, 1.0] * 5) * np.sqrt(0.9)
    nothing = Estimate(0, 0)

    assert estimate(values) == pytest.approx((0, 2.262157 / np.sqrt(10)))
    point = Point("x", 1, "response_s", nothing, nothing, Estimate(-2, 1), nothing, Estimate(2, 1))
    assert (point.verdict, point.verdict_on_weighing) == ("better", "worse")
    assert point._replace(metric="utilisation", gain=Estimate(2, 3)).verdict == "same"


def test_bad_stall() -> None:
    """A negative stall is refused."""
    _, said = drom("reproduce", "adaptive", "--stall", "-1", code=2)

    assert "--stall" in said
