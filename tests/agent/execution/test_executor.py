# SPDX-License-Identifier: Apache-2.0
"""Orders of a scheduler on a node, as far as no process is needed."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.execution import executor, protocol, spool
from drom.agent.execution.executor import JobExecutor
from drom.agent.execution.spool import Folder
from drom.agent.execution.supervisor import Attempt
from drom.agent.system.proc import Stat

from tests.support.fake_scheduler import start

if TYPE_CHECKING:
    from pathlib import Path


def test_a_signal_waits_for_a_job_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keeper is not watched for want of descriptors; once it is, the job gets what it was sent, once, in order."""
    sent: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(executor, "send_signal", lambda number, pids, _: sent.append((number, pids)))
    found = JobExecutor.__new__(JobExecutor)
    attempt = Attempt(start(1, "true"), Folder(tmp_path), 1, "running")
    found._restless = set()
    found._scan = dict
    found._supervisor = SimpleNamespace(  # type: ignore[assignment]
        look=lambda _: spool.BEGINNING, processes_of=lambda ones, _: {12} if ones[0].pidfd >= 0 else set()
    )
    found._remote = SimpleNamespace(steps=SimpleNamespace(attempts=lambda _: []))  # type: ignore[assignment]
    found._node = SimpleNamespace(jobs={})  # type: ignore[assignment]
    for number in (signal.SIGUSR1, signal.SIGTERM):
        found._signal(attempt, protocol.Signal(1, 1, number), 0.0)
    for now in (0.0, 0.1):
        found._advance(attempt, now)
    reached = [(number, pids) for number, pids in sent if pids]
    attempt.pidfd = 99

    for now in (0.2, 0.3):
        found._advance(attempt, now)

    assert reached == []
    assert [(number, pids) for number, pids in sent if pids] == [(signal.SIGUSR1, {12}), (signal.SIGTERM, {12})]
    assert found._restless == set()


def signalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> tuple[JobExecutor, Attempt, list[Any]]:
    """Return an executor with an attempt, and the signals that it sends with their pids.

    Its first process is 12, below which 13 and 14 are; 14 is a task.
    """
    sent: list[Any] = []
    monkeypatch.setattr(executor, "send_signal", lambda number, pids, _: sent.append((number, pids)))
    found = JobExecutor.__new__(JobExecutor)
    attempt = Attempt(replace(start(1, "true"), script=script), Folder(tmp_path), 1, "running", pid=12, pidfd=99)
    task = SimpleNamespace(arrival=SimpleNamespace(pid=14))
    found._restless = set()
    found._scan = lambda: {12: Stat(11, "S", 1), 13: Stat(12, "S", 1), 14: Stat(13, "S", 1)}
    found._node = SimpleNamespace(jobs={"drom-1": SimpleNamespace(present=[task], reserved=True)})  # type: ignore[assignment]
    monkeypatch.setattr(found, "_processes_of", lambda *_: {12, 13, 14})
    return found, attempt, sent


@pytest.mark.parametrize(
    ("to", "script", "pids"),
    [
        ("all", "#!", {12, 13, 14}),
        ("tasks", "", {14}),
        ("tasks", "#!", {13}),
        ("first", "", {12}),
        ("first", "#!", {12}),
    ],
)
def test_a_signal_goes_to_its_receivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, script: str, pids: set[int]
) -> None:
    """Tasks get it themselves; of a script its commands do, and its shell does not."""
    found, attempt, sent = signalled(tmp_path, monkeypatch, script)

    for number in (signal.SIGUSR1, signal.SIGKILL):
        found._signal(attempt, protocol.Signal(1, 1, number, to=to), 0.0)
    found._advance(attempt, 0.0)

    assert sent == [(signal.SIGUSR1, pids), (signal.SIGKILL, pids)]


def test_a_signal_before_the_limit_is_sent_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another agent knows that it was sent; other signals are sent as often as they come."""
    once = protocol.Signal(1, 1, signal.SIGUSR1, to="tasks", once=True)
    again = protocol.Signal(1, 1, signal.SIGUSR2, to="tasks")
    for numbers in ([signal.SIGUSR1, signal.SIGUSR2], [signal.SIGUSR2]):
        found, attempt, sent = signalled(tmp_path, monkeypatch, "")
        for wanted in (once, once, again):
            found._signal(attempt, wanted, 0.0)
        found._advance(attempt, 0.0)
        assert ([number for number, _ in sent], attempt.unsent) == (numbers, [])


def test_a_killed_process_without_an_environment_still_belongs_to_its_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes away its memory first: the attempt has ended when the process has."""
    monkeypatch.setattr(executor, "send_signal", lambda *_: None)
    dying, reused = Stat(1, "R", 50), Stat(1, "R", 60)
    scans = iter([{12: dying}, {12: dying}, {12: reused}])
    orphans = iter([{12}, set(), set()])
    found = JobExecutor.__new__(JobExecutor)
    attempt = Attempt(start(1, "true"), Folder(tmp_path), 1, "ending")
    found._restless = {attempt}
    found._scan = lambda: next(scans)
    found._supervisor = SimpleNamespace(  # type: ignore[assignment]
        processes_of=lambda *_: set(), orphans_of=lambda *_: next(orphans)
    )
    steps = SimpleNamespace(attempts=lambda _: [], any_live=lambda _: False, forget=lambda _: None)
    found._remote = SimpleNamespace(steps=steps)  # type: ignore[assignment]
    found._node = SimpleNamespace(jobs={})  # type: ignore[assignment]
    monkeypatch.setattr(found, "_log", lambda *_, **__: None, raising=False)
    monkeypatch.setattr(found, "_tell", lambda _: None)
    states = []
    for now in (0.0, 0.1, 0.2):
        found._advance(attempt, now)
        states.append(attempt.state)

    assert states == ["ending", "ending", "ended"]


def test_each_scheduler_learns_the_range_of_an_adaptive_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent reports once how many cores the ranks of a job can use, and again when it joins a scheduler."""
    found = JobExecutor.__new__(JobExecutor)
    attempt = Attempt(start(1, "true"), Folder(tmp_path), 1, "running")
    found.attempts = {attempt.key: attempt}
    task = SimpleNamespace(wish=SimpleNamespace(min_tasks=1, max_tasks=4))
    found._node = SimpleNamespace(jobs={"drom-1": SimpleNamespace(present=[task])})  # type: ignore[assignment]
    reports: list[object] = []
    monkeypatch.setattr(found, "_log_reason", reports.append)
    schedulers: Any = SimpleNamespace(welcomed=lambda *_: True)
    for _ in range(2):
        found._receive(schedulers, None, protocol.Welcome("drom", 1.0), 0.0)  # type: ignore[arg-type]
        for _ in range(2):
            found._report_range(attempt)

    assert reports == [protocol.Wants(1, 1, 1, 4)] * 2
