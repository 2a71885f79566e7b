# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import time
from typing import Any

import pytest
from drom.agent.enforcement.affinity import Result
from drom.agent.model.jobs import Arrival, Grant, Publish, Settled, Task
from drom.agent.observe.log import Log
from drom.agent.observe.reporter import LINES_A_SECOND, LINES_AT_ONCE, REFUSALS_AT_ONCE, EventReporter


class Told:
    """A report with what it has written and signalled."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        self.signals: list[dict[str, Any]] = []
        self.report = EventReporter(Log(self.text), lambda slot, event: self.signals.append({"slot": slot, **event}))

    @property
    def line(self) -> str:
        """The last line of the log, without its time and level."""
        return self.text.getvalue().splitlines()[-1].split(" ", 2)[2]


@pytest.fixture
def told() -> Told:
    """Return a report that has told nothing."""
    return Told()


@pytest.fixture
def task() -> Task:
    """Return a task on CPUs 0-1."""
    return Task(3, "a", 1, Arrival(100, 1, 0, "a"), 2, [Grant(2, 0b11, 0.0)], reason="share")


def test_a_change_is_logged_counted_and_signalled(told: Told, task: Task) -> None:
    """A grant in force is one line, one count, one duration and one signal with the grant's own epoch."""
    told.report.done(Settled(task, 1, 0b1111, 0b11, "shrink", "applied", 1.0, 1.25))

    assert told.line == (
        "event=applied job=a task=1 pid=100 old=0-3 new=0-1 reason=share action=shrink took_seconds=0.25"
    )
    assert told.report.counters.changes["shrink", "applied"] == 1
    assert told.report.counters.changing.sum == 0.25
    (signal,) = told.signals
    assert {k: signal[k] for k in ("slot", "event", "job", "task", "pid", "epoch", "old", "new", "action")} == {
        "slot": 3, "event": "applied", "job": "a", "task": 1, "pid": 100, "epoch": 1,
        "old": "0-3", "new": "0-1", "action": "shrink",
    }  # fmt: skip


def test_a_grant_is_signalled_before_it_is_in_force(told: Told, task: Task) -> None:
    """A published grant is signalled with its reason and not counted yet."""
    told.report.granted(Publish(task, 3, 0b1, "order"))

    assert [(s["event"], s["epoch"], s["new"], s["reason"]) for s in told.signals] == [("granted", 3, "0", "order")]
    assert told.report.counters.changes.total() == 0


def test_an_end_is_told_with_its_reason(told: Told, task: Task) -> None:
    """The CPUs of a task that ended go to nobody in its signal."""
    told.report.ended(task, "exited")

    assert told.line == 'event=task_ended job=a task=1 pid=100 old=0-1 new="" reason=exited'
    assert told.report.counters.reaped["exited"] == 1
    assert [(s["event"], s["old"], s["new"]) for s in told.signals] == [("ended", "0-1", "")]


def test_first_cpus_and_those_of_an_earlier_agent_are_changes_too(told: Told, task: Task) -> None:
    """Whoever replays a log knows every task's CPUs: from its first grant, or from its adoption on."""
    told.report.started(task)
    assert told.line == 'event=task_started job=a task=1 pid=100 old="" new=0-1 reason=share'
    told.report.adopted([task, task], 1)
    assert "event=adopted tasks=1 dead=1" in told.text.getvalue()
    assert told.line == "event=kept job=a task=1 pid=100 old=0-1 new=0-1 reason=share"


def test_what_the_agent_had_to_force_is_counted(told: Told, task: Task) -> None:
    """Enforcements and moved threads count alike; a failed binding counts as a failure."""
    told.report.enforced()
    told.report.confined(task, 3)
    told.report.bind_failed(task, Result(0, 0, 2, 0, 1, settled=True))

    assert told.report.counters.enforcements == 2
    assert told.report.counters.changes["keep", "failed"] == 1
    assert told.line == "event=bind_failed job=a task=1 pid=100 denied=2 invalid=0 settled=True"


def test_refusals_are_counted(told: Told) -> None:
    """A refusal is one line with its sentence."""
    told.report.refused("no room.")

    assert (told.report.counters.refusals, told.line) == (1, 'event=request_refused reason="no room."')


def test_refusals_do_not_fill_the_log(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are so many lines at once and so many in each second; all are counted, and the next line says how many."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(REFUSALS_AT_ONCE + 3):
        told.report.refused("no room.")
    assert told.text.getvalue().count("\n") == REFUSALS_AT_ONCE
    now += 1.5 / LINES_A_SECOND
    told.report.refused("no room.")

    assert told.line == 'event=request_refused reason="no room." unsaid=3'
    assert told.report.counters.refusals == REFUSALS_AT_ONCE + 4


def test_who_comes_and_goes_all_the_time_does_not_fill_the_log(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each user has a number of lines at once and some in each second; the next one says how many there were not."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(LINES_AT_ONCE + 7):
        told.report.user_event(1, "responder_set", job="a")
    assert told.text.getvalue().count("\n") == LINES_AT_ONCE
    told.report.user_event(2, "arrived", job="b", uid=2)
    assert told.line == "event=arrived job=b uid=2"
    now += 1.5 / LINES_A_SECOND
    for _ in range(3):
        told.report.user_event(1, "responder_set", job="a")
    assert told.line == "event=responder_set job=a unsaid=7"
    assert told.text.getvalue().count("\n") == LINES_AT_ONCE + 2
