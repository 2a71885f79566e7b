# SPDX-License-Identifier: Apache-2.0
"""The courses of adaptive jobs: from a scheduler's history, as digits and as a picture."""

from __future__ import annotations

from typing import Any

import pytest
from drom.scheduler.demo.adaptive_story import courses, digits, picture


def entry(job: int, at: float, what: str, **detail: Any) -> dict[str, Any]:
    """Return an entry of a job's history."""
    return {"job": job, "at": 100 + at, "what": what, "detail": detail}


HISTORY = {
    "time": 110.0,
    "jobs": [{"job": 1, "name": "ocean", "submitted": 100.0}, {"job": 2, "name": "check", "submitted": 103.0}],
    "entries": [
        entry(1, 0, "submitted"),
        entry(1, 0, "placed", shares={"n1": 2, "n2": 2}),
        entry(1, 1, "started"),
        entry(2, 3, "placed", shares={"n1": 0, "n2": 2}),
        entry(1, 4, "resized", node="n2", cores=0),
        entry(2, 5, "started"),
        entry(2, 8, "completed"),
        entry(1, 9, "resized", node="n2", cores=2),
        entry(1, 10, "completed"),
    ],
}


def test_a_course_has_the_cores_of_each_moment() -> None:
    """A job has what it was placed with from its start on, then what its nodes report, and nothing once it is over."""
    ocean, check = courses(HISTORY)

    assert (ocean.name, check.name) == ("ocean", "check")
    assert ocean.cores[5::10].tolist() == [0, 4, 4, 4, 2, 2, 2, 2, 2, 4]
    assert check.cores[5::10].tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 0, 0]


def test_courses_as_digits_and_as_a_picture() -> None:
    """A line for each job, and areas above each other up to all cores."""
    shown = courses(HISTORY)

    assert digits(shown, 80) == [
        "ocean  .444222224",
        "check  .....222..",
        "       a column is 1 s, a digit the cores of a job, a dot none",
    ]
    pytest.importorskip("matplotlib")
    axes = picture(shown, 4, "title").axes[0]
    assert axes.get_ylim() == (0, 4)
    assert axes.get_legend_handles_labels()[1] == ["ocean", "check"]
