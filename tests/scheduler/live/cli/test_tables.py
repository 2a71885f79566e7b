# SPDX-License-Identifier: Apache-2.0
"""What a scheduler answers, as lines: whatever users wrote, terminals do not obey it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from drom.agent.text import LAST_MOMENT
from drom.scheduler.live.cli import tables
from drom.scheduler.live.cluster.spec import Dependency, Spec, visible

NASTY = "\x1b[31mred\nNEWLINE\r\x9b\udcff"
SAID = r"\x1b[31mred\nNEWLINE\r\x9b\udcff"


def brief(**more: Any) -> dict[str, Any]:
    """Return a job that has failed as an answer has it."""
    about = {"job": 1, "name": "true", "user": "ann", "state": "failed", "reason": NASTY, "nodes": 1, "shares": {}}
    times = {
        "submitted": 0.0,
        "started": None,
        "ended": 1.0,
        "time": 2.0,
        "limit": 60,
        "requested": 60,
        "expected_start": None,
        "cpu_seconds": 0.0,
        "max_rss": 0,
    }
    return about | times | more


def test_a_queue_shows_what_cannot_be_printed() -> None:
    """Why a job failed and what it is called, on one line each."""
    lines = tables.queue({"jobs": [brief(), brief(state="pending", ended=None, name=NASTY[:20])], "time": 0.0})

    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert lines[1].endswith(f"  {SAID}")


def test_a_queue_shows_the_cores_of_adaptive_jobs() -> None:
    """How many a job has now of its range, and of which nodes; rigid ones have one number, waiting ones none yet."""
    adaptive = {"state": "running", "ended": None, "least": 2, "most": 8}
    runs = brief(**adaptive, shares={"n1": 2, "n2": 0, "n3": 1}, sizes={"n1": 2, "n2": 2, "n3": 1})
    waits = brief(**adaptive | {"state": "pending", "reason": "it waits"}, sizes={})
    rigid = brief(**adaptive | {"least": 3, "most": 3}, shares={"n1": 3}, sizes={"n1": 3})

    lines = [line.split() for line in tables.queue({"jobs": [runs, waits, rigid], "time": 0.0})]

    assert lines[0][7] == "CORES"
    assert lines[1][-6:] == ["5", "of", "2-8", "n1:2,", "n2:2,", "n3:1"]
    assert lines[2][-3:] == ["2-8", "it", "waits"]
    assert lines[3][-4:] == ["3", "of", "3", "n1:3"]


def test_a_queue_shows_the_nodes_of_jobs_that_may_leave_some() -> None:
    """On how many nodes of its range a job has cores now; waiting ones have the range, those that are over its end."""
    leaves = {"nodes": 4, "min_nodes": 2}
    runs = brief(**leaves, state="running", ended=None, shares={"n1": 2}, sizes={"n1": 2, "n2": 0})
    waits = brief(**leaves, state="pending", ended=None, reason="it waits", sizes={})

    lines = [line.split() for line in tables.queue({"jobs": [runs, waits, brief(**leaves)], "time": 0.0})]

    assert lines[1][-4:] == ["1", "of", "2-4", "n1:2"]
    assert lines[2][-3:] == ["2-4", "it", "waits"]
    assert lines[3][6] == "4"


def test_a_job_shows_what_cannot_be_printed() -> None:
    """Its command, what is explained, and its history."""
    spec = Spec(command=("echo", NASTY)).to_json() | {"ranks": 1}
    history = [{"at": 0.0, "what": "failed", "detail": {"reason": NASTY, "shares": {NASTY: 1}, "mates": [NASTY]}}]

    lines = tables.job(brief(spec=spec, history=history, explanation=[f"It is over: failed: {NASTY}."]))

    assert all(line.isprintable() for line in lines)
    assert f"command: echo {SAID}" in lines
    assert lines[-1].endswith(f"failed  reason {SAID}, shares {SAID}:1, mates {SAID}")


NOON = 1_800_000_000 // 86400 * 86400 + 43200.0
"""At some day, in any time zone but those beyond twelve hours."""


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        (NOON + 60, "expected 12:01:00"),
        (NOON + 86400, "expected 2027-01-16 12:00:00"),
        (NOON - 86400, "expected 2027-01-14 12:00:00"),
        (1e15, "expected 9998-12-31 23:59:59"),
    ],
)
def test_a_moment_of_another_day_has_its_day(moment: float, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue may be days long; a calendar ends."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        row = brief(state="pending", ended=None, reason="others are before it", expected_start=moment)
        lines = tables.queue({"jobs": [row], "time": NOON})
    finally:
        monkeypatch.undo()
        time.tzset()

    assert lines[1].endswith(f"others are before it; {shown}")


def test_scripts_read_moments_as_iso_8601() -> None:
    """Spans stay seconds, and fields of these names that are no moments of ours are left alone."""
    history = [{"at": 1.5, "what": "placed", "detail": {"time": 7}}]
    told = tables.for_scripts(brief(spec={"time": 600}, history=history, started=LAST_MOMENT * 10.0))
    queue = tables.for_scripts({"time": 60.0, "jobs": [brief()], "before": None})

    assert (told["time"], told["submitted"], told["ended"]) == (
        "1970-01-01T00:00:02.000Z",
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:01.000Z",
    )
    assert (told["started"], told["expected_start"]) == ("9998-12-31T23:59:59.000Z", None)
    assert (told["limit"], told["spec"]["time"]) == (60, 600)
    assert told["history"] == [{"at": "1970-01-01T00:00:01.500Z", "what": "placed", "detail": {"time": 7}}]
    assert queue["jobs"][0]["ended"] == told["ended"]


def test_a_job_that_waits_for_many_jobs_names_few_of_them() -> None:
    """`drom job` cuts a long list of dependencies in its middle."""
    after = tuple(Dependency("afterany", number) for number in range(1, 301))
    lines = tables.job(brief(spec=Spec(("true",), folder="/", after=after).to_json(), history=[], explanation=[]))

    assert "malleable, afterany:1, afterany:2, aftera\N{HORIZONTAL ELLIPSIS}8, afterany:299, afterany:300" in lines[2]


def test_a_job_that_waits_for_a_failure_names_the_array_once() -> None:
    """As the user has written it, beside single jobs."""
    any_of = tuple(Dependency("afternotok", number, array=12) for number in (12, 13, 14))
    spec = Spec(("true",), folder="/", after=(*any_of, Dependency("afternotok", 7)))
    lines = tables.job(brief(spec=spec.to_json(), history=[], explanation=[]))

    assert lines[2].endswith(", malleable, afternotok:12, afternotok:7")


def test_a_job_shows_what_it_asks_for() -> None:
    """A line each, with those alone of which there is something to say."""
    plain = tables.job(brief(spec=Spec(command=("true",), folder="/home/ann").to_json(), history=[], explanation=[]))
    assert plain[1:-2] == [
        "command: true",
        "asks for: 1 node, 0 tasks, 60 s, malleable",
        "output: drom-%j.out",
        "folder: /home/ann",
    ]
    much = Spec(
        ("in.txt",),
        "#!/bin/sh",
        ranks=2,
        threads=3,
        priority=-5,
        after=(Dependency("afterok", 7),),
        constraint=("big", "fast"),
        memory=4 << 30,
        resources={"gpu": 2},
        output="/out/%j",
        error="%x.err",
        input="data",
        folder="/home/ann",
        signal="B:USR1@120",
    )
    wants = "4 GiB of memory, gpu=2, feature big, feature fast, priority -5, signal B:USR1@120, afterok:7"
    over = {"started": 0.5, "shares": {"n1": 4, "n2": 4}, "cpu_seconds": 12.0, "max_rss": 3 << 20}
    lines = tables.job(brief(name="solve", spec=much.to_json(), history=[], explanation=["It is over."], **over))
    assert lines[1:-2] == [
        "It is over.",
        "ran on: n1, n2",
        "used: 12 s of CPU time, 3 MiB of memory at most",
        "script: solve in.txt",
        f"asks for: 1 node, 2 tasks, 3 cores per task, 60 s, malleable, {wants}",
        "output: /out/%j",
        "error: %x.err",
        "input: data",
        "folder: /home/ann",
    ]
    others = tables.job(brief(spec=visible(much, whole=False), history=[], explanation=[]))
    assert "command: a script of its user" in others


def test_spans_in_a_history_are_told_as_such() -> None:
    """A limit has grown to so much."""
    history = [{"at": 0.0, "what": "limit", "detail": {"seconds": 4200}}]
    spec = Spec(command=("true",)).to_json()

    assert tables.job(brief(spec=spec, history=history, explanation=[]))[-1].endswith("  limit  70 min")


def node(name: str, state: str = "up", **more: Any) -> dict[str, Any]:
    """Return a node as an answer has it."""
    usual = {"cores": 4, "jobs": {}, "drained": "", "busy": "", "memory": 0, "features": [], "resources": {}}
    usual["limits_memory"] = False
    return {"name": name, "state": state, "heard": NOON, "gone_since": None} | usual | more


def test_nodes_are_told_in_the_order_of_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that takes jobs is free; of one that is away is told since when."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    rows = [
        node("n10", "gone", gone_since=NOON + 15, drained="dust"),
        node("n2", jobs={7: 2, 8: 2}),
        node("n1"),
        node("n11", "gone", heard=None),
    ]
    try:
        lines = tables.nodes({"nodes": rows, "time": NOON + 60})
    finally:
        monkeypatch.undo()
        time.tzset()

    assert lines == [
        "NODE  STATE  CORES  JOBS                    REASON",
        "n1    up     4      free",
        "n2    up     4      2 of job 7, 2 of job 8",
        "n10   gone   4      -                       dust; its agent is silent since 12:00:00",
        "n11   gone   4      -                       its agent has not contacted this scheduler yet",
    ]


def test_nodes_name_the_jobs_at_rest_there() -> None:
    """A node that a job has left for another names both, and is not free when the other has ended."""
    left, last = (node(name, jobs=jobs, resting=[1]) for name, jobs in (("n1", {"1": 0, "2": 4}), ("n2", {"1": 0})))
    lines = tables.nodes({"nodes": [left, last], "time": 0.0})
    assert [line.split("  ")[-1] for line in lines[1:]] == ["4 of job 2, job 1 at rest", "job 1 at rest"]


def test_nodes_have_columns_for_what_some_of_them_have() -> None:
    """Memory, features, resources."""
    rows = [
        node("n1", memory=2 << 30, limits_memory=True),
        node("n2", features=["big", "fast"], resources={"gpu": 2, "port": 1}),
    ]

    assert tables.nodes({"nodes": rows, "time": NOON}) == [
        "NODE  STATE  CORES  MEMORY  LIMITS  FEATURES  RESOURCES     JOBS  REASON",
        "n1    up     4      2 GiB   memory  -         -             free",
        "n2    up     4      -       -       big,fast  gpu=2,port=1  free",
    ]


def test_nodes_say_why_no_filler_starts() -> None:
    """Regular jobs may start there."""
    lines = tables.nodes({"nodes": [node("n1", full="the disk is full.")], "time": NOON})

    assert lines[1] == "n1    up     4      free  no filler starts in a container: the disk is full."


def test_nodes_show_what_cannot_be_printed() -> None:
    """Why they are drained or cannot start jobs now; columns stay below their headings."""
    rows = [node("n1", "drained", drained=NASTY), node("n2", "busy", busy=NASTY)]

    assert tables.nodes({"nodes": rows, "time": NOON}) == [
        "NODE  STATE    CORES  JOBS  REASON",
        f"n1    drained  4      -     {SAID}",
        f"n2    busy     4      -     {SAID}",
    ]
