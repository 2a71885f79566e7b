# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from drom.workloads.cleaning import clean
from drom.workloads.errors import WorkloadError
from drom.workloads.plots import busy, draw, hour_of_day
from drom.workloads.workload import make_workload

from tests.support.job_logs import synthetic

if TYPE_CHECKING:
    from pathlib import Path


def test_a_page_as_png_and_svg(tmp_path: Path) -> None:
    """Both kinds of file, and the text of the SVG names what is drawn."""
    log = synthetic()
    draw(log, clean(log)[0], 64, tmp_path / "log.png")
    draw(log, clean(log)[0], 64, tmp_path / "log.svg")

    assert (tmp_path / "log.png").read_bytes()[:4] == b"\x89PNG"
    svg = (tmp_path / "log.svg").read_text()
    assert "<svg" in svg
    assert "Load on 64 processors" in svg


@pytest.mark.parametrize("missing", ["requested_time", "wait", "run_time", "allocated"])
def test_what_is_unknown_is_left_out(tmp_path: Path, missing: str) -> None:
    """A log that lacks a field is drawn nevertheless."""
    log = synthetic(3)
    log = log.with_columns(**{missing: np.full(3, -1)}).with_columns(requested_processors=np.full(3, -1))
    draw(log, clean(log)[0], 64, tmp_path / "log.svg")

    unknown = "no job has both" in (tmp_path / "log.svg").read_text()
    assert unknown == (missing in {"requested_time", "run_time"})


def test_one_job_is_drawn(tmp_path: Path) -> None:
    """No axis needs more."""
    log = make_workload({"submit": np.array([5])})
    draw(log, clean(log)[0], 1, tmp_path / "log.png")

    assert (tmp_path / "log.png").stat().st_size > 1000


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    """The sentence names the kinds there are."""
    with pytest.raises(WorkloadError, match=r"'log.bmp' is not a picture: end the name in .png or .svg"):
        draw(synthetic(), synthetic(), 64, tmp_path / "log.bmp")


def test_hours_are_those_of_the_place() -> None:
    """By start and zone of the header; without a start from the log's time 0."""
    log = make_workload({"submit": np.array([0, 3600])})

    assert hour_of_day(log)[0].tolist() == [0, 1]
    assert not hour_of_day(log)[1]
    local = log.commented(("; UnixStartTime: 7200", "; TimeZone: 3600"))
    assert hour_of_day(local)[0].tolist() == [3, 4]
    assert hour_of_day(local)[1]


def test_busy_processors_over_time() -> None:
    """Means over each interval of what runs: 2 from 5 to 15, 4 more from 10 to 20."""
    log = make_workload(
        {
            "submit": np.array([0, 10]),
            "wait": np.array([5, -1]),
            "run_time": np.array([10, 10]),
            "allocated": np.array([2, 4]),
        }
    )

    assert busy(log, np.array([0.0, 5.0, 10.0, 15.0, 20.0, 30.0])).tolist() == [0, 2, 6, 4, 0]
