# SPDX-License-Identifier: Apache-2.0
"""The history of a cluster of drom."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.workloads.formats.test_sacct import columns, fault_of, log_of

if TYPE_CHECKING:
    from pathlib import Path

JOB = {
    "job": 7,
    "name": "md",
    "user": "ann",
    "state": "completed",
    "partition": "batch",
    "nodes": 2,
    "shares": {"n1": 4, "n2": 4},
    "submitted": "2026-03-01T12:00:00.250Z",
    "started": "2026-03-01T12:00:10.750Z",
    "ended": "2026-03-01T12:01:10.500Z",
    "requested": 600,
    "cpu_seconds": 400.0,
    "max_rss": 8 << 20,
}


def text_of(*jobs: Any, **changes: Any) -> str:
    """Return what `drom history --json` prints."""
    return json.dumps({"schema_version": 1, "time": "2026-03-01T13:00:00Z", "jobs": jobs} | changes)


def test_jobs_that_are_over(tmp_path: Path) -> None:
    """Times are rounded; jobs that were cancelled in the queue are left out; fillers have no limit."""
    never = JOB | {"job": 8, "state": "cancelled", "shares": {}, "started": None}
    filler = JOB | {"job": 9, "state": "cancelled", "requested": 366 * 86400, "cpu_seconds": 0, "max_rss": 0}
    log = log_of(tmp_path / "history.json", text_of(JOB, never, filler | {"user": "bob"}))

    assert columns(log, "job", "submit", "wait", "run_time", "status", "user") == [
        [7, 9],
        [0, 0],
        [11, 11],
        [60, 60],
        [1, 5],
        [1, 2],
    ]
    assert columns(log, "allocated", "requested_time", "cpu_time", "used_memory") == [
        [8, 8],
        [600, -1],
        [50, -1],
        [1024, -1],
    ]
    assert log.header_number("UnixStartTime") == 1772366400
    assert {"; User: 1 ann", "; User: 2 bob", "; Partition: 1 batch"} <= set(log.comments)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (text_of(JOB, schema_version=9), " is not what drom history --json of this version prints: write it anew."),
        (text_of(JOB, jobs=None), " is not what drom history --json of this version prints: write it anew."),
        (text_of({"job": 7}), ", jobs[0] is not a job of drom history --json: write it anew."),
        (text_of(JOB | {"submitted": None}), ", jobs[0] has no time of submission: leave the job out."),
        (text_of(JOB | {"started": "noon"}), ", jobs[0], started: 'noon' is not a time such as 2026-03-01T12:00:00, "),
        (text_of(JOB | {"shares": {"n1": "all"}}), ", jobs[0], shares: 'all' is not a number."),
        (text_of(JOB | {"max_rss": None}), ", jobs[0], max_rss: 'None' is not a number."),
    ],
)
def test_bad_json_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """It names the job and the key."""
    assert fault_of(tmp_path / "history.json", text).startswith(sentence)
