# SPDX-License-Identifier: Apache-2.0
"""What a scheduler answers, as lines: whatever users wrote, terminals do not obey it."""

from __future__ import annotations

from typing import Any

from scheduler.live import listing
from scheduler.live.spec import Spec

NASTY = "\x1b[31mred\nNEWLINE\r\x9b\udcff"
SAID = r"\x1b[31mred\nNEWLINE\r\x9b\udcff"


def brief(**more: Any) -> dict[str, Any]:
    """Return a job that has failed as an answer has it."""
    about = {"job": 1, "name": "true", "user": "ann", "state": "failed", "reason": NASTY, "nodes": 1, "shares": {}}
    times = {"started": None, "ended": 1.0, "limit": 60, "requested": 60, "expected_start": None}
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


def test_nodes_show_what_cannot_be_printed() -> None:
    """Why they are drained; columns stay below their headings."""
    node = {"name": "n1", "state": "drained", "cores": 4, "jobs": {}, "drained": NASTY}

    assert listing.nodes({"nodes": [node]}) == [
        "NODE  STATE    CORES  JOBS  REASON",
        f"n1    drained  4      free  {SAID}",
    ]
