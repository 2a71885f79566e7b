# SPDX-License-Identifier: Apache-2.0
"""What ranks that rest cost, measured on this machine in little time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.scheduler.reproduction.adaptive.figures import draw_course
from drom.scheduler.reproduction.adaptive.residual import (
    Outcome,
    Sample,
    course,
    interference,
    lines,
    node,
    phases,
    to_json,
)
from drom.scheduler.testbed.cluster import why_no_mpi

from tests.support.pictures import files_of

if TYPE_CHECKING:
    from pathlib import Path

FOUND = Outcome(
    2,
    {2: [0.01, 0.03, 0.02]},
    [Sample(1.0, 300, 2, None), Sample(2.0, 200, 1, None), Sample(3.0, 100, 1, 0.001), Sample(4.0, 310, 2, None)],
)


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(why_no_mpi()), reason=why_no_mpi())
def test_jobs_share_this_machine_and_one_loses_half_of_it() -> None:
    """Two adaptive jobs make steps beside each other, as two rigid ones do; then ranks of one rest, and return."""
    with node() as here:
        if here.cores < 2:
            pytest.skip("needs two cores")
        rounds: list[int] = []
        (slower,) = interference(here, 2, 1, 1.0, lambda: rounds.append(1))
        samples = course(here, 3.0, lambda _: None)

    assert -0.9 < slower < 9
    assert len(rounds) == 2
    assert [part[0].ranks for _, part in phases(samples)][:2] == [here.cores, here.cores - here.cores // 2]
    assert max(sample.rate for sample in samples) > 0
    assert any(sample.resting is not None for sample in samples)


def test_tables_and_json() -> None:
    """Medians with their interval, and the phases of the course."""
    table, _, row, _, figures, _, first, half, again, _ = lines(FOUND)

    assert table == "Table 5: adaptive jobs that share 2 cores take longer than rigid ones by (95 % interval)"
    assert " ".join(row.split()) == "2 of 1 +2.00% +1.00% +3.00% -"
    assert figures == "Figures 3 to 5: an adaptive job loses half of its cores for a while"
    assert " ".join(first.split()) == "all cores 2 300 - -"
    assert " ".join(half.split()) == "half of them 1 150 0.10% 0.10%"
    assert " ".join(again.split()) == "all again 2 310 - -"
    assert to_json(FOUND)["interference"] == [{"jobs": 2, "slower": [0.01, 0.03, 0.02]}]


def test_a_picture(tmp_path: Path) -> None:
    """Steps a second above the CPU time of ranks that rest."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    draw_course(FOUND, tmp_path)

    assert {file.name for file in tmp_path.iterdir()} == {*files_of("course")}
    assert "3.0,0.1," in (tmp_path / "course.csv").read_text(encoding="utf-8")
