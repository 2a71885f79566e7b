# SPDX-License-Identifier: Apache-2.0
"""Orders of a scheduler on a node, as far as no process is needed."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING

from drom.agent.execution import executor, protocol, spool
from drom.agent.execution.executor import JobExecutor
from drom.agent.execution.spool import Folder
from drom.agent.execution.supervisor import Attempt
from drom.agent.system.proc import Stat

from tests.support.fake_scheduler import start

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
