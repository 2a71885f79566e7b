# SPDX-License-Identifier: Apache-2.0
"""What a scheduler answers, as lines: whatever users wrote, terminals do not obey it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agent.words import LAST_MOMENT
from scheduler.live import listing
from scheduler.live.spec import Spec

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
    }
    return about | times | more


def test_a_queue_shows_what_cannot_be_printed() -> None:
    """Why a job failed and what it is called, on one line each."""
    lines = listing.queue({"jobs": [brief(), brief(state="pending", ended=None, name=NASTY[:20])], "time": 0.0})

    assert len(lines) == 3
    assert all(line.isprintable() for line in lines)
    assert lines[1].endswith(f"  {SAID}")


def test_a_job_shows_what_cannot_be_printed() -> None:
    """Its command, what is explained, and its history."""
    spec = Spec(command=("echo", NASTY)).to_json() | {"ranks": 1}
    history = [{"at": 0.0, "what": "failed", "detail": {"reason": NASTY, "shares": {NASTY: 1}, "mates": [NASTY]}}]

    lines = listing.job(brief(spec=spec, history=history, explanation=[f"It is over: failed: {NASTY}."]))

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
        lines = listing.queue({"jobs": [row], "time": NOON})
    finally:
        monkeypatch.undo()
        time.tzset()

    assert lines[1].endswith(f"others are before it; {shown}")


def test_scripts_read_moments_as_iso_8601() -> None:
    """Spans stay seconds, and fields of these names that are no moments of ours are left alone."""
    history = [{"at": 1.5, "what": "placed", "detail": {"time": 7}}]
    told = listing.for_scripts(brief(spec={"time": 600}, history=history, started=LAST_MOMENT * 10.0))
    queue = listing.for_scripts({"time": 60.0, "jobs": [brief()], "before": None})

    assert (told["time"], told["submitted"], told["ended"]) == (
        "1970-01-01T00:00:02.000Z",
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:01.000Z",
    )
    assert (told["started"], told["expected_start"]) == ("9998-12-31T23:59:59.000Z", None)
    assert (told["limit"], told["spec"]["time"]) == (60, 600)
    assert told["history"] == [{"at": "1970-01-01T00:00:01.500Z", "what": "placed", "detail": {"time": 7}}]
    assert queue["jobs"][0]["ended"] == told["ended"]


def test_nodes_show_what_cannot_be_printed() -> None:
    """Why they are drained or cannot start jobs now; columns stay below their headings."""
    drained = {"name": "n1", "state": "drained", "cores": 4, "jobs": {}, "drained": NASTY, "busy": ""}
    busy = {"name": "n2", "state": "busy", "cores": 4, "jobs": {}, "drained": "", "busy": NASTY}

    assert listing.nodes({"nodes": [drained, busy]}) == [
        "NODE  STATE    CORES  JOBS  REASON",
        f"n1    drained  4      free  {SAID}",
        f"n2    busy     4      free  {SAID}",
    ]
