# SPDX-License-Identifier: Apache-2.0
"""What has come of jobs, as the simulator tells it, from what a scheduler has written down."""

from __future__ import annotations

from drom.scheduler.live.accounting import core_seconds, schedule_of


def test_a_job_on_a_node_that_is_forgotten_is_told() -> None:
    """The node counts for as long as a job that ran there does; sizes after its end count nothing."""
    job = {"job": 1, "state": "completed", "shares": {"n9": 4, "n1": 4}, "nodes": 2, "requested": 60, "limit": 60}
    times = {"submitted": 0.0, "started": 10.0, "ended": 30.0, "class": "malleable"}
    events = [
        (10.0, "placed", {"shares": {"n9": 4, "n1": 4}}),
        (10.0, "started", {}),
        (20.0, "resized", {"node": "n9", "cores": 2}),
        (99.0, "resized", {"node": "n9", "cores": 4}),
    ]
    entries = [{"job": 1, "at": at, "what": what, "detail": detail} for at, what, detail in events]
    told = {"nodes": ["n1"], "cores": 4, "time": 100.0, "jobs": [job | times], "entries": entries}

    schedule = schedule_of(told)

    assert (schedule.nodes, schedule.runs.tolist()) == (2, [[0, 1]])
    assert schedule.table["full_speed_run_time"].tolist() == [round((10 * 8 + 10 * 6) / 8)]


def test_core_seconds_are_those_of_all_attempts() -> None:
    """Each counts from its start to its end with the cores that the job held; a job that waits has none."""
    events = [
        (0.0, "submitted", {"name": "x"}),
        (10.0, "placed", {"shares": {"n1": 2}}),
        (12.0, "started", {}),
        (20.0, "resized", {"node": "n1", "cores": 4}),
        (30.0, "requeued", {"reason": "node n1 went down"}),
        (40.0, "placed", {"shares": {"n2": 4}}),
        (41.0, "requeued", {"reason": "busy"}),
        (50.0, "placed", {"shares": {"n1": 4, "n2": 4}}),
        (60.0, "started", {}),
        (65.0, "held", {"by": "ann"}),
        (70.0, "ending", {}),
        (75.0, "completed", {}),
    ]
    entries = [{"job": 1, "at": at, "what": what, "detail": detail} for at, what, detail in events]

    first = 8 * 2 + 10 * 4
    assert core_seconds(entries, 75.0) == first + 15 * 8
    assert core_seconds(entries, 72.0) == first + 12 * 8  # its program ended before it had left its nodes
    assert core_seconds(entries[:9], 100.0) == first + 40 * 8
    assert core_seconds(entries[:8], 100.0) == first
    assert core_seconds([], 100.0) == 0
