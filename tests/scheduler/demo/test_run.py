"""The demonstration of a cluster, as far as it needs none: what it tells, how it judges, where it cannot be."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drom.scheduler.demo import story
from drom.scheduler.demo.jobs import CORES, MIX, Submission
from drom.scheduler.demo.run import run
from drom.scheduler.live import accounting
from drom.scheduler.testbed import namespaces

if TYPE_CHECKING:
    from pathlib import Path

LONG, SHORT = Submission(0, "long", 2, 30, 90), Submission(1, "short", 2, 5, 20)
NAMES = {1: "long", 2: "short"}


def entry(at: float, job: int, what: str, **detail: Any) -> dict[str, Any]:
    """Return an entry of a job's history."""
    return {"at": 1000 + at, "job": job, "what": what, "detail": detail}


ENTRIES = [
    entry(0.0, 1, "submitted", name="long"),
    entry(0.0, 1, "placed", shares={"n1": 4, "n2": 4}),
    entry(0.1, 1, "started"),
    entry(1.0, 2, "submitted", name="short"),
    entry(3.0, 2, "placed", shares={"n2": 2, "n1": 2}, mates=[1]),
    entry(3.0, 1, "limit", seconds=95),
    *(entry(3.0, 1, "ordered", node=node, cores=2, **{"for": 2}) for node in ("n1", "n2")),
    *(entry(3.1, 1, "resized", node=node, cores=2) for node in ("n2", "n1")),
    entry(3.2, 2, "started"),
    entry(13.2, 2, "failed", reason="node n1: it is on fire"),
    entry(13.3, 1, "resized", node="n1", cores=4),
    entry(14.0, 2, "requeued", reason="node n1 went down"),
]
LINES = """\
   0.0 s  long (job 1) is submitted: 2 nodes, 90 s at most
   0.1 s  long (job 1) starts at once
   1.0 s  short (job 2) is submitted: 2 nodes, 20 s at most
   3.0 s  short (job 2) need not wait: long makes room on n1 and n2
   3.1 s  long (job 1) has 2 cores of n1 and n2 now
   3.2 s  short (job 2) starts after 2.2 s in the queue
  13.2 s  short (job 2) has failed after 10.0 s (node n1: it is on fire)
  13.3 s  long (job 1) has all 4 cores of n1 again
  14.0 s  short (job 2): requeued (node n1 went down)"""


def test_what_happens_is_told_in_its_order() -> None:
    """What several nodes do at once is one line."""
    teller = story.Narrator(1000.0, 4)
    teller.jobs |= {1: LONG, 2: SHORT}

    assert "\n".join(teller.hear(ENTRIES)) == LINES


def test_what_happens_is_told_once() -> None:
    """However often somebody looks."""
    teller = story.Narrator(1000.0, 4)
    teller.jobs |= {1: LONG, 2: SHORT}

    lines = [line for seen in range(len(ENTRIES)) for line in teller.hear(ENTRIES[: seen + 1])]

    assert len(lines) == len(LINES.splitlines()) + 1  # the two nodes of a resize, one after the other
    assert teller.hear(ENTRIES) == []


def test_entries_may_come_job_by_job() -> None:
    """As a scheduler gives them: what is new is between older entries, and told in the order of time."""
    teller = story.Narrator(1000.0, 4)
    teller.jobs |= {1: LONG, 2: SHORT}
    by_job = sorted(ENTRIES, key=lambda one: one["job"])

    early = teller.hear([one for one in by_job if one["at"] <= 1003.2])
    late = teller.hear(by_job)
    assert "\n".join([*early, *late]) == LINES


def test_how_far_ranks_have_come_is_that_of_the_last_one() -> None:
    """A job of which a rank is not there any more has come to its end."""
    before = {(1, "n1", 7): 10, (1, "n2", 7): 8, (2, "n1", 9): 5}
    after = {(1, "n1", 7): 20, (1, "n2", 7): 19}

    assert story.progress_between(before, after, NAMES) == ["long from step 8 to 19", "short to its end"]


def test_a_core_that_two_hold_is_named() -> None:
    """One core, of however many."""
    assert story.double([{"held": "0-1"}, {"held": "2,3"}, {"held": ""}]) == ""
    assert story.double([{"held": "0-1"}, {"held": "1-3"}]) == "CPU 1 is held by 2 tasks at once."


def job(**more: Any) -> dict[str, Any]:
    """Return a job that has ended as it should."""
    about = {"job": 1, "state": "completed", "status": 0, "attempt": 1, "reason": "", "shares": {"n1": 4, "n2": 4}}
    return about | more


GOOD = "ring: rank 0 of 2 was on n1\nring: rank 1 of 2 was on n2\nring: 2 ranks, 40 steps ok\n"
WRONG: tuple[tuple[dict[str, Any], str, list[str]], ...] = (
    (job(), GOOD, []),
    (job(attempt=2), GOOD, ["long (job 1) was started 2 times."]),
    (
        job(),
        GOOD.replace("ok", "WRONG"),
        ["long (job 1) did not find its answer right: ['ring: 2 ranks, 40 steps WRONG']."],
    ),
    (
        job(),
        GOOD.replace("n2", "n3"),
        ["the ranks of long (job 1) were on {'n1': 1, 'n3': 1}, not on {'n1': 1, 'n2': 1}."],
    ),
    (job(state="timeout", status=-15), "", ["long (job 1) is timeout with status -15: no reason given."]),
)


@pytest.mark.parametrize(("about", "output", "problems"), WRONG)
def test_a_job_is_judged_by_its_end_and_by_what_its_ranks_say(
    about: dict[str, Any], output: str, problems: list[str]
) -> None:
    """Once, on its nodes, with the right answer."""
    assert story.judge(LONG, about, output) == problems


def test_the_chart_shows_who_had_which_core() -> None:
    """A line for each core, a letter for each job; a guest is above its mate."""
    told = {"nodes": ["n1", "n2"], "cores": 2, "time": 1010.0, "entries": [
        entry(0, 1, "placed", shares={"n1": 2, "n2": 2}),
        entry(2, 2, "placed", shares={"n1": 1}, mates=[1]),
        entry(2, 1, "ordered", node="n1", cores=1),
        entry(2, 1, "resized", node="n1", cores=1),
    ]}  # fmt: skip
    about = {"state": "completed", "requested": 60, "class": "malleable", "limit": 60, "user": "ann"}
    told["jobs"] = [
        about | {"job": 1, "nodes": 2, "shares": {"n1": 2, "n2": 2}, "submitted": 1000, "started": 1000, "ended": 1010},
        about | {"job": 2, "nodes": 1, "shares": {"n1": 1}, "submitted": 1001, "started": 1002, "ended": 1006},
    ]

    lines = story.chart(accounting.schedule_of(told), ["long", "short"], ["n1", "n2"], 40)

    assert lines == [
        "n1  AAAAAAAAAA",
        "    AABBBBAAAA",
        "n2  AAAAAAAAAA",
        "    AAAAAAAAAA",
        "    A long  B short",
        "    a column is 1 s, a line a core, a dot idle",
    ]


def test_its_jobs_can_run_on_its_nodes() -> None:
    """They come in order, and ask for more time than they need, also as guests of half the cores."""
    assert [job.at for job in MIX] == sorted(job.at for job in MIX)
    assert all(job.seconds < job.limit and job.work * job.tasks == job.seconds * CORES for job in MIX)
    assert np.unique([job.name for job in MIX]).size == len(MIX)


def test_the_demo_takes_roots_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others get one sentence, and nothing is made."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert run(tmp_path / "out", as_json=False) == 1

    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "",
        "drom: a cluster of namespaces takes root's rights: run it as root, as with sudo.\n",
    )
    assert not (tmp_path / "out").exists()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Debian's package."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "ip" else tool)

    assert namespaces.why_not() == "a cluster of namespaces needs iproute2: apt-get install them."


def test_why_a_machine_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the words of who could not."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda tool: tool)
    refused = subprocess.CompletedProcess([], 1, "", "unshare: unshare failed: Operation not permitted\n")
    monkeypatch.setattr(namespaces, "_run", lambda _: refused)

    assert namespaces.why_not().startswith("this machine does not let root make namespaces (unshare: unshare failed:")
