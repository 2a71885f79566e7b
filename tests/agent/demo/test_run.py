# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.demo import run
from drom.agent.demo.run import Answer, ChangeRecord, Narrator, choose_machine
from drom.agent.testbed.stage import DemoError, Program, Stage
from drom.agent.topology.machine import split_sockets, usable_cores
from drom.agent.topology.synthetic import synthetic_topology
from drom.agent.topology.sysfs import read_topology

from dromlib import native
from dromlib.cpulist import parse_cpulist
from tests.support.agents import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

DROM = [sys.executable, "-m", "drom"]
PATIENCE = 600
"""Seconds: the first agent on a machine compiles its kernel."""

needs_two_cores = pytest.mark.skipif(len(usable_cores(read_topology())) < 2, reason="needs two cores")


# --- for real ---


@pytest.fixture
def temporary() -> Path:
    """Return an empty folder for everything temporary, with a short path for the sockets in it."""
    return Path(tempfile.mkdtemp(prefix="drom-test-", dir="/tmp"))


@pytest.fixture
def start(temporary: Path, tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts the demonstration; what it would leave behind fails the test."""
    started: list[subprocess.Popen[str]] = []

    def start_demo(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*DROM, "demo", "--out", str(tmp_path / "out"), *options],
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start_demo
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    left = list(temporary.iterdir())
    shutil.rmtree(temporary)
    assert left == []
    for process in started:
        await_end_of_session(process.pid)


def await_end_of_session(leader: int) -> None:
    """Wait until what was killed has got round to dying."""
    wait_until(lambda: not session_of(leader), lambda: session_of(leader))


def session_of(leader: int) -> set[int]:
    """Return the living processes of a session."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.add(int(folder.name))
    return found


@pytest.mark.system
@pytest.mark.timeout(PATIENCE)
@needs_two_cores
def test_tells_a_true_story(start: Any, tmp_path: Path) -> None:
    """The first program gives cores to the second and gets them back, by itself; both are right; the picture exists."""
    for seconds in ("5", "40"):
        output, complaints = start("--json", "--seconds", seconds).communicate(timeout=PATIENCE)
        value = json.loads(output)
        if not any(problem.endswith("on a busy machine give it more --seconds.") for problem in value["problems"]):
            break
    changes = value["changes"]
    jacobi = [row for row in changes if row["job"] == "jacobi"]
    primes = [row for row in changes if row["job"] == "primes"]

    assert (value["schema_version"], value["ok"], value["problems"]) == (1, True, []), complaints
    assert [(answer["job"], answer["right"]) for answer in value["answers"]] == [("jacobi", True), ("primes", True)]
    assert [row["action"] for row in jacobi] == ["start", "shrink", "grow", "end"]
    assert [row["action"] for row in primes] == ["start", "end"]
    assert [row["outcome"] for row in jacobi[1:3]] == ["applied", "applied"]
    assert [row["why"] for row in jacobi[1:3]] == ["primes arrived", "primes ended"]
    assert jacobi[0]["new"] == jacobi[2]["new"]
    assert parse_cpulist(jacobi[1]["new"]) | parse_cpulist(primes[0]["new"]) == parse_cpulist(jacobi[0]["new"])
    assert not parse_cpulist(jacobi[1]["new"]) & parse_cpulist(primes[0]["new"])
    assert jacobi[1]["time_s"] + jacobi[1]["took_s"] <= primes[0]["time_s"]
    assert primes[1]["time_s"] <= jacobi[2]["time_s"]
    assert {line.partition("{")[0] for line in value["metrics"]["samples"]} >= {"drom_job_cpus"}
    assert "B primes" in value["picture"]["text"]
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.system
@pytest.mark.timeout(PATIENCE)
@needs_two_cores
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_leaves_nothing_when_it_is_interrupted(start: Any, number: signal.Signals, status: int) -> None:
    """Ctrl-C and SIGTERM end agent and programs and remove the runtime directory."""
    process = start("--seconds", "600")
    for line in process.stdout:
        if " start " in line:
            break
    process.send_signal(number)

    assert process.wait(PATIENCE) == status
    assert "Traceback" not in process.stderr.read()


@pytest.mark.system
def test_one_core_is_too_few(start: Any) -> None:
    """On one core it says in a sentence that it needs two."""
    one = {min(os.sched_getaffinity(0))}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, one)
    try:
        process = start()
    finally:
        os.sched_setaffinity(0, before)

    assert process.communicate(timeout=PATIENCE) == (
        "",
        "drom: the demonstration needs two cores, and only one may be used here.\n",
    )
    assert process.returncode == 1


# --- one piece at a time ---


def test_missing_examples_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the compiled examples it says how to get them and starts nothing."""

    def missing(name: str) -> Path:
        raise FileNotFoundError(f"dromlib/examples/{name} is not built: install the package.")

    monkeypatch.setattr(native, "example_path", missing)
    monkeypatch.setattr(run, "read_topology", lambda: synthetic_topology("core:2"))

    assert run.run(tmp_path, 12.0, as_json=False) == 1
    assert capsys.readouterr() == ("", "drom: dromlib/examples/jacobi is not built: install the package.\n")


@pytest.mark.parametrize("seconds", [0.0, 2.9, 3601.0, float("nan")])
def test_refuses_a_length_that_shows_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seconds: float
) -> None:
    """A run too short to grow back in, or no number at all, is refused in a sentence."""
    assert run.run(tmp_path, seconds, as_json=True) == 1
    assert f"--seconds {seconds:g} is not between 3 and 3600" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("real", "words"),
    [("pack:1 core:2", "pack:2 core:1 pu:1"), ("core:64 pu:2", "pack:2 core:32 pu:2"), ("pack:2 core:4", None)],
)
def test_halves_of_one_socket_play_two(real: str, words: str | None) -> None:
    """One socket is shown as two of half its cores, which an agent is told in words; real sockets are left alone."""
    machine = synthetic_topology(real)

    assert choose_machine(machine) == (
        (synthetic_topology(words, machine.allowed), words) if words else (machine, None)
    )


@pytest.mark.parametrize("cpus", ["0,4,1,5", "0-2"])
def test_no_core_is_torn_for_the_show(cpus: str) -> None:
    """Where words would tear cores apart (siblings far apart) or leave one out (odd), the machine stays as it is."""
    machine = synthetic_topology("core:3")
    if cpus != "0-2":
        straight = synthetic_topology("core:2 pu:2")
        far = [0b10001, 0b100010]
        cores = tuple(type(core)(core.package, core.numa, mask) for core, mask in zip(straight.cores, far, strict=True))
        machine = type(straight)(straight.packages, straight.numa, cores, 0b110011, 0b110011)

    assert split_sockets(machine) is not None
    assert choose_machine(machine) == (machine, None)


def test_one_core_cannot_be_shared() -> None:
    """Two threads of one core are no two cores."""
    with pytest.raises(DemoError, match="needs two cores"):
        choose_machine(synthetic_topology("core:1 pu:2"))


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Return a stage with two programs that never ran, launched at 1000 s and 1003 s."""
    stage = Stage()
    sleeper = subprocess.Popen(["true"], text=True)
    sleeper.wait()
    for name, launched in (("jacobi", 1000.0), ("primes", 1003.0)):
        stage.programs[name] = Program(name, sleeper, launched, os.open(os.devnull, os.O_RDONLY))
    yield stage
    stage.close()


def signals(outcome: str = "applied") -> Iterator[dict[str, Any]]:
    """Return what the agent says of a run on two CPUs."""

    def event(kind: str, job: str, at: float, **more: object) -> dict[str, Any]:
        return {"event": kind, "job": job, "time": at, **more}

    yield event("granted", "jacobi", 1000.01, new="0-1", reason="arrival")
    yield event("granted", "jacobi", 1003.1, new="0", reason="share")
    yield event(outcome, "jacobi", 1003.104, old="0-1", new="0", action="shrink", seconds=0.004)
    yield event("granted", "primes", 1003.105, new="1", reason="arrival")
    yield event("ended", "primes", 1007.4)
    yield event("granted", "jacobi", 1007.4, new="0-1", reason="return")
    yield event(outcome, "jacobi", 1007.41, old="0", new="0-1", action="grow", seconds=0.01)
    yield event("ended", "jacobi", 1012.0)


def hear_all(stage: Stage, outcome: str = "applied") -> Narrator:
    """Return the story of these signals."""
    story = Narrator(stage, lambda _: None, begin=1000.0)
    for event in signals(outcome):
        story.hear(event)
    return story


def test_says_who_changed_when_and_why(stage: Stage) -> None:
    """Grants, their applications and ends become changes in words."""
    story = hear_all(stage)

    assert [(round(t.time_s, 3), t.job, t.action, t.effect(), t.why) for t in story.told] == [
        (0.01, "jacobi", "start", "runs after 10 ms", "alone: all cores"),
        (3.1, "jacobi", "shrink", "applied in 4.0 ms", "primes arrived"),
        (3.105, "primes", "start", "runs after 105 ms", "on what jacobi gave up"),
        (7.4, "primes", "end", "ran for 4.4 s", "its work is done"),
        (7.4, "jacobi", "grow", "applied in 10 ms", "primes ended"),
        (12.0, "jacobi", "end", "ran for 12.0 s", "its work is done"),
    ]
    assert [(told.change().cpus, told.change().action) for told in story.told if told.job == "primes"] == [
        (2, "start"),
        (0, "end"),
    ]


def judged(stage: Stage, outcome: str, *answers: Answer) -> list[str]:
    """Return what is wrong with a story of these outcomes and answers."""
    story = hear_all(stage, outcome)
    story.answers, story.samples = list(answers), ["drom_job_cpus 1.0"]
    return story._judgement()


def test_is_satisfied_with_applied_changes_and_right_answers(stage: Stage) -> None:
    """Nothing is wrong when both changes were applied by the program."""
    assert judged(stage, "applied", Answer("jacobi", "jacobi: ok", 0)) == []


def test_names_what_is_wrong(stage: Stage) -> None:
    """A wrong answer fails the demonstration, and so does a change that the agent had to enforce."""
    assert judged(stage, "enforced", Answer("primes", "primes: pi(9)=5 WRONG", 1)) == [
        "primes ended with status 1: primes: pi(9)=5 WRONG.",
        "jacobi did not shrink by itself: the agent had to bind it.",
        "jacobi did not grow by itself: the agent had to bind it.",
    ]


def test_a_story_without_changes_is_no_success(stage: Stage) -> None:
    """A run in which nothing moved says so."""
    story = Narrator(stage, lambda _: None)

    assert story._judgement() == [
        "jacobi never shrank: on a busy machine give it more --seconds.",
        "jacobi never grew back: on a busy machine give it more --seconds.",
        "no metrics could be read while both ran.",
    ]


def test_an_enforced_change_is_told_loudly() -> None:
    """A change that the program did not apply stands out."""
    assert ChangeRecord(1.0, "jacobi", "shrink", 3, 1, "enforced", 1.004).effect() == "ENFORCED in 1004 ms"


def test_a_line_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """On a machine of two CPUs no line is wider than 80 columns."""
    paper = run.ChangesConsole(silent=False)
    paper.head_changes(synthetic_topology("pack:2 core:1"))
    paper.change(ChangeRecord(11.9, "primes", "start", 0, 2, "started", 0.123, "on what jacobi gave up"))

    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_a_busy_start_is_explained_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Where stderr is no terminal a long compilation is one line."""
    patience = run.StartNotice()
    for seconds in (0.1, 1.2, 2.5, 30.0):
        patience(seconds)
    patience.done()

    assert capsys.readouterr() == ("", "drom: compiling the distribution kernel, once on this machine ...\n")


def test_a_wait_shows_what_was_seen_last(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that never comes ends with a sentence about the last state, not in a hang."""
    monkeypatch.setattr("drom.agent.testbed.stage.PATIENCE", 0.1)
    begin = time.monotonic()

    with pytest.raises(DemoError, match=r"gave up waiting for rain; last seen: no agent answers in .*"):
        stage.wait_until(lambda: False, "rain")
    assert time.monotonic() - begin < 60
