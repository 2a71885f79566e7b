# SPDX-License-Identifier: Apache-2.0
"""The demonstration of unlike nodes: in a short form, when it fails, and what it tells and checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import ControlError
from drom.scheduler.demo import mixed
from drom.scheduler.demo.mixed import NODES
from drom.scheduler.demo.mixed_acts import ACTS
from drom.scheduler.demo.mixed_story import Narrator, Size, at_most, judge, overcommitted
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster.spec import Spec

if TYPE_CHECKING:
    from drom.scheduler.demo.mixed_acts import Stage

GIB = 1 << 30
LONG = 7654.25
"""Seconds that no other program sleeps."""


def sleeping() -> list[str]:
    """Return the command lines of programs that sleep so long."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_text().split("\0")
        except OSError:
            continue
        found += [" ".join(words)] if f"{LONG:g}" in words else []
    return found


def test_jobs_get_parts_of_unlike_nodes_and_all_end_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All claims hold, also where jobs take a fifth of their time; there are results and a picture."""
    pytest.importorskip("ortools", reason="needs OR-tools")
    pytest.importorskip("matplotlib", reason="needs matplotlib")

    assert mixed.run(tmp_path / "out", as_json=True, pace=0.2) == 0
    value = json.loads(capsys.readouterr().out)

    assert (value["problems"], value["looks"] > len(ACTS)) == ([], True)
    assert value["summary"]["jobs"] == {"future": 0, "waiting": 0, "running": 0, "ended": 19}
    assert sorted(name for name, *_ in value["summary"]["shared_nodes"]) == sorted(NODES)
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out.png"}


def wrong(stage: Stage) -> None:
    """Claim what does not hold."""
    stage.until_running(stage.submit("short", 0.1))
    stage.expect(False, "the claim does not hold.")


def broken(stage: Stage) -> None:
    """Fail while a job runs."""
    stage.until_running(stage.submit("long", LONG))
    assert sleeping()
    raise ControlError("it is broken.")


@pytest.mark.parametrize(("act", "sentence"), [(wrong, "the claim does not hold."), (broken, "it is broken.")])
def test_a_demonstration_that_fails_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], act: Any, sentence: str
) -> None:
    """The exit status is 1, and no job runs on."""
    pytest.importorskip("ortools", reason="needs OR-tools")
    monkeypatch.setattr(mixed, "ACTS", {"An act": act})
    monkeypatch.setattr(mixed, "NODES", {"n1": Size(2, 8 * GIB)})

    assert mixed.run(tmp_path / "out", as_json=False) == 1
    said = capsys.readouterr()
    assert said.err == f"drom: {sentence}\n"
    assert "Nothing is left behind" not in said.out
    assert sleeping() == []


def test_without_or_tools_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is started, and no folder is made."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SchedulerError, match="needs OR-tools"):
        mixed._run(tmp_path / "out", 1.0, as_json=True)
    assert not list(tmp_path.iterdir())


def job(number: int, **more: Any) -> dict[str, Any]:
    """Return a job that has ended as it should."""
    about = {"job": number, "name": "train", "array": 0, "index": 0, "state": "completed", "reason": "", "attempt": 1}
    times = {"submitted": 1000.0, "started": 1001.5, "ended": 1011.5}
    return about | times | {"shares": {"gpu1": 2}, "devices": {}} | more


def entry(number: int, at: float, what: str, **detail: Any) -> dict[str, Any]:
    """Return an entry of a job's history."""
    return {"job": number, "at": 1000 + at, "what": what, "detail": detail}


def test_what_happens_is_told_once_and_in_the_order_of_time() -> None:
    """A history has the entries job by job; of an array the submission of the first job is told."""
    train = job(1, devices={"gpu1": {"gpu": [0, 1]}})
    sweep = [job(2 + i, name="sweep", array=2, index=i, shares={"old1": 1}, started=1000.2) for i in (0, 1)]
    tasks = job(4, name="ocean", state="cancelled", started=None)
    entries = [
        entry(1, 0.0, "submitted"),
        entry(1, 1.5, "placed"),
        entry(1, 1.5, "started"),
        entry(1, 11.5, "completed"),
        entry(2, 0.1, "submitted"),
        entry(2, 0.2, "started"),
        entry(3, 0.1, "submitted"),
        entry(3, 5.0, "requeued", reason="node old1 went down"),
        entry(4, 0.3, "submitted"),
        entry(4, 0.4, "updated", changed="--cpus-per-task 2"),
        entry(4, 0.5, "cancelled"),
    ]
    narrator = Narrator(1000.0)
    narrator.asked |= {
        1: Spec(threads=2, resources={"gpu": 2}),
        2: Spec(threads=1, array="0-1%1"),
        4: Spec(ranks=3, threads=2),
    }
    jobs = [train, *sweep, tasks]
    early = [one for one in entries if one["at"] < 1002]
    lines = [*narrator.hear({"jobs": jobs, "entries": early}), *narrator.hear({"jobs": jobs, "entries": entries})]

    assert (
        "\n".join(lines)
        == """\
   0.0 s  train (job 1) asks for 2 cores and gpu=2
   0.1 s  sweep (job 2_0) is the first of the array 0-1, of which 1 may run at once: 1 core each
   0.2 s  sweep (job 2_0) starts at once on old1 (1 core)
   0.3 s  ocean (job 4) asks for 3 tasks on any nodes, 2 cores each
   0.4 s  ocean (job 4) is changed: --cpus-per-task 2
   0.5 s  ocean (job 4) was cancelled
   1.5 s  train (job 1) starts after 1.5 s on gpu1 (2 cores, GPUs 0 and 1)
   5.0 s  sweep (job 2_1) waits again: node old1 went down
  11.5 s  train (job 1) has ended after 10.0 s"""
    )


NODE = {"gpu1": Size(4, 8 * GIB, 2)}
GPU0, GPU1 = {"gpu1": {"gpu": [0]}}, {"gpu1": {"gpu": [1]}}
BOTH = "train (job 1), train (job 2)"


@pytest.mark.parametrize(
    ("other", "sentences"),
    [
        ({"shares": {"gpu1": 2}, "devices": GPU1}, []),
        ({"shares": {"gpu1": 3}}, [f"gpu1 has 4 cores, and 5 were in use by {BOTH}."]),
        ({"shares": {"gpu1": 3}, "started": 1011.5, "ended": None}, []),
        ({"devices": GPU0}, [f"GPU 0 of gpu1 was given to 2 jobs of {BOTH}, and there are 2."]),
        ({"devices": {"gpu1": {"gpu": [2]}}}, [f"GPU 2 of gpu1 was given to 1 jobs of {BOTH}, and there are 2."]),
    ],
)
def test_what_is_given_twice_is_named(other: dict[str, Any], sentences: list[str]) -> None:
    """Cores and GPUs of jobs that run at the same time are counted on each node."""
    assert overcommitted([job(1, devices=GPU0), job(2, **other)], {1: Spec(), 2: Spec()}, NODE) == sentences


def test_memory_that_a_node_does_not_have_is_named() -> None:
    """The memory of a job in an array is that of the array; what waits counts nothing."""
    asked = {1: Spec(memory=6 * GIB), 2: Spec(memory=3 * GIB)}
    jobs = [job(1), job(3, array=2, index=1), job(4, array=2, index=2, started=None, shares={})]

    assert overcommitted(jobs, asked, NODE) == [
        "gpu1 has 8 GiB of memory, and 9 GiB were in use by train (job 1), train (job 2_1)."
    ]


def test_how_many_jobs_ran_at_once() -> None:
    """A job that ends when another one starts does not run beside it."""
    jobs = [job(1), job(2, started=1011.5, ended=1012.0), job(3), job(4, started=None)]

    assert at_most(jobs, 2)
    assert not at_most(jobs, 1)


@pytest.mark.parametrize(
    ("about", "asked", "output", "sentences"),
    [
        ({"devices": GPU1}, Spec(resources={"gpu": 1}), "1\n", []),
        ({}, Spec(), "-1\n", []),
        ({"shares": {"old1": 1}}, Spec(), "none\n", []),
        ({}, Spec(), "0\n", ["train (job 1) was to see the GPUs -1 of gpu1 and printed '0\\n'."]),
        ({}, Spec(resources={"gpu": 1}), "-1\n", ["train (job 1) asked for gpu=1 and was given 0."]),
        ({"attempt": 2}, Spec(), "-1\n", ["train (job 1) was started 2 times."]),
        ({"state": "timeout"}, Spec(), "-1\n", ["train (job 1) is timeout: no reason given."]),
    ],
)
def test_a_job_is_judged_by_its_end_and_by_the_gpus_that_it_saw(
    about: dict[str, Any], asked: Spec, output: str, sentences: list[str]
) -> None:
    """A job without GPUs on a node that has some sees none."""
    nodes = NODE | {"old1": Size(1, GIB)}
    assert judge(job(1, **about), asked, nodes, cancelled=False, output=output) == sentences


def test_a_job_that_was_to_be_cancelled_must_be() -> None:
    """Its end is no error."""
    assert judge(job(1, state="cancelled"), Spec(), NODE, cancelled=True, output="-1\n") == []
    assert judge(job(1), Spec(), NODE, cancelled=True, output="-1\n") == [
        "train (job 1) is completed: no reason given."
    ]
