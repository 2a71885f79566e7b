# SPDX-License-Identifier: Apache-2.0
"""What has come of jobs, as the simulator tells it, from what a scheduler has written down."""

from __future__ import annotations

from typing import Any

from drom.scheduler.live.accounting import account, core_seconds, each_attempt, schedule_of


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


def shared_history() -> dict[str, Any]:
    """Return the history of jobs on nodes of unlike sizes, of which one is gone."""
    about = {"requested": 60, "limit": 60, "class": "rigid", "user": "ann", "submitted": 100.0, "devices": {}}
    about["saving"] = ""
    over = about | {"state": "completed", "nodes": 1}
    jobs = [
        over | {"job": 1, "shares": {"g1": 2}, "devices": {"g1": {"gpu": [1]}}, "started": 100.2, "ended": 110.7},
        over | {"job": 2, "shares": {"old": 1, "g1": 1}, "nodes": 3, "started": 100.2, "ended": 105.0},
        over | {"job": 3, "shares": {"g1": 2}, "started": 105.1, "ended": 107.0},
        over | {"job": 4, "shares": {"gone": 3}, "started": 105.1, "ended": 107.0},
        about | {"job": 5, "state": "running", "shares": {"old": 1}, "nodes": 1, "started": 106.0, "ended": None},
        about | {"job": 6, "state": "pending", "shares": {}, "nodes": 2, "started": None, "ended": None},
        over | {"job": 7, "state": "cancelled", "shares": {}, "started": None, "ended": 101.0},
    ]
    entries = [
        {"job": job["job"], "at": job["started"], "what": what, "detail": {"shares": job["shares"]}}
        for job in jobs
        for what in ("placed", "started")
        if job["started"] is not None
    ]
    sizes = {"g1": [4, 2], "old": [1, 0]}
    about = {"name": "lab", "policy": "cp", "parameters": {}, "nodes": [*sizes], "cores": 0, "sizes": sizes}
    return about | {"time": 112.0, "jobs": jobs, "entries": entries}


def test_jobs_on_shared_nodes_have_rows_of_cores_and_of_gpus() -> None:
    """Cores are numbered node after node, then GPUs; a node that is gone is as large as its jobs."""
    schedule = schedule_of(shared_history())
    runs = [schedule.runs[first:last].tolist() for first, last in zip(schedule.first, schedule.first[1:], strict=False)]

    assert schedule.shared == (("g1", 4, 2), ("gone", 3, 0), ("old", 1, 0))
    assert (schedule.nodes, schedule.cores) == (8, 1)
    assert runs == [[[0, 1], [9, 9]], [[2, 2], [7, 7]], [[2, 3]], [[4, 6]], [[7, 7]], [], []]
    assert schedule.table["cores"].tolist() == [2, 2, 2, 3, 1, 2, 1]
    assert schedule.table["full_speed_run_time"].tolist() == [10, 5, 2, 2, 6, 0, 0]
    assert schedule.table["state"].tolist() == ["ended"] * 4 + ["running", "waiting", "future"]


def test_the_utilisation_of_shared_nodes_is_that_of_their_cores() -> None:
    """The energy is as if an average node took what a node takes elsewhere."""
    history = shared_history()
    figures = account(history, schedule_of(history)).summary["metrics"]
    busy = 2 * 10 + 2 * 5 + 2 * 2 + 3 * 2 + 1 * 6

    assert figures["node_utilisation"] == busy / (8 * 12)
    assert figures["energy_joule"] == 3 * 12 * 100 + busy * 200 * 3 / 8
    assert figures["malleable_starts"] == 0


def test_each_attempt_of_a_filler_is_a_job_of_the_chart() -> None:
    """It has the node, the begin and the end of that attempt; other jobs and attempts that never began are left."""
    history = shared_history()
    events = [
        *[("placed", 101.0, "old"), ("started", 102.0, ""), ("saving", 103.0, ""), ("requeued", 104.0, "")],
        *[("placed", 104.0, "g1"), ("requeued", 105.0, "")],
        *[("placed", 108.0, "g1"), ("started", 109.0, "")],
    ]
    history["entries"] += [
        {"job": 8, "at": at, "what": what, "detail": {"shares": {node: 1}} if node else {}} for what, at, node in events
    ]
    about = {"job": 8, "saving": "container", "state": "running", "shares": {"g1": 1}, "started": 109.0, "ended": None}
    history["jobs"].append(history["jobs"][4] | about)

    shown = each_attempt(history)

    found = [(job["shares"], job["started"], job["ended"]) for job in shown["jobs"] if job["saving"]]
    assert found == [({"old": 1}, 102.0, 104.0), ({"g1": 1}, 109.0, None)]
    assert shown["jobs"][:7] == history["jobs"][:7]
    assert len({job["job"] for job in shown["jobs"]}) == len(shown["jobs"]) == 9
    assert schedule_of(shown).table["state"].tolist()[-2:] == ["ended", "running"]
