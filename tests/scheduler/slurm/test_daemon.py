# SPDX-License-Identifier: Apache-2.0
"""What the daemon of `drom slurm` does with the gate and the history where something fails."""

from __future__ import annotations

import io
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import SlurmError
from drom.agent.observe.log import Log
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.slurm import actor, daemon
from drom.scheduler.slurm.daemon import Daemon
from drom.scheduler.slurm.engine import Engine
from drom.scheduler.slurm.history import History
from drom.scheduler.slurm.reader import Reader
from drom.scheduler.slurm.records import Job, Node, Reading
from drom.scheduler.slurm.store import Store

from tests.scheduler.slurm.test_engine import JOB, NODE
from tests.scheduler.slurm.test_usage import ENDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from drom.scheduler.slurm.engine import Asked

RENEWAL, OPENED = "update reservationname=drom_gate endtime=now+2minutes", "delete reservationname=drom_gate"


class Slurm(Reader):
    """A Slurm of two nodes with some jobs, which records what it is asked to do.

    `stop` is set at its last look, and perhaps when the gate is opened.
    """

    def __init__(self, jobs: list[Job], looks: int, *, stops_when_opened: bool = True) -> None:
        super().__init__({})
        self.asked: list[str] = []
        self.stop = threading.Event()
        self._jobs, self._looks, self._stops_when_opened = jobs, looks, stops_when_opened

    def jobs(self) -> Reading[Job]:
        """Return the jobs."""
        self._looks -= 1
        if self._looks == 0:
            self.stop.set()
        return Reading(tuple(self._jobs))

    def nodes(self) -> Reading[Node]:
        """Return the nodes."""
        return Reading((NODE, replace(NODE, name="n2")))

    def configuration(self) -> str:
        """Return a configuration."""
        return "PriorityType = priority/multifactor\n"

    def command(self, name: str, *words: str) -> str:
        """Record a command."""
        self.asked.append(" ".join(words) if name == "scontrol" else name)
        if self.asked[-1] == OPENED and self._stops_when_opened:
            self.stop.set()
        return ""


class FullStore(Store):
    """A store on a disk that has no room for a job."""

    def save(self, sent: Mapping[str, Asked]) -> None:
        """Fail."""
        if sent:
            raise SlurmError("slurm.sqlite: database or disk is full: free space.")


def run(folder: Path, slurm: Slurm, store: Store) -> str:
    """Run a daemon for the looks of a Slurm, and return its log."""
    log = io.StringIO()
    engine = Engine(load_policy("easy"), "main")
    Daemon(slurm, engine, store, History(folder), Log(log), interval=0.0).run(slurm.stop)
    return log.getvalue()


@pytest.fixture(autouse=True)
def always_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lease be due at each look."""
    monkeypatch.setattr(actor, "RENEW", 0.0)


def test_the_gate_stays_closed_while_the_daemon_decides(tmp_path: Path) -> None:
    """It is opened at the end."""
    slurm = Slurm([], looks=3)
    run(tmp_path, slurm, Store(tmp_path))

    assert slurm.asked == [RENEWAL] * 4 + [OPENED]


def test_the_gate_opens_where_nothing_can_be_stored(tmp_path: Path) -> None:
    """No job is released, as another daemon would not know of it: Slurm starts it."""
    slurm = Slurm([JOB], looks=100)
    log = run(tmp_path, slurm, FullStore(tmp_path))

    assert slurm.asked == [RENEWAL, OPENED, OPENED]
    assert 'event=slurm_failed reason="slurm.sqlite: database or disk is full: free space."' in log


def test_the_gate_is_closed_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If something can be stored by then."""
    monkeypatch.setattr(daemon, "OPEN", 0.0)
    slurm = Slurm([JOB], looks=2, stops_when_opened=False)
    run(tmp_path, slurm, FullStore(tmp_path))

    assert slurm.asked == [RENEWAL, OPENED, RENEWAL, OPENED]


def test_ended_jobs_are_stored_once(tmp_path: Path) -> None:
    """Each look reports them again for some minutes."""
    run(tmp_path, Slurm([ENDS], looks=3), Store(tmp_path))
    history = History(tmp_path)

    assert [use.job for use in history.read(0)] == ["2"]
    history.close()
