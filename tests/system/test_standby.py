# SPDX-License-Identifier: Apache-2.0
"""Several schedulers on one etcd: one leads, and another takes over from one that was killed or paused; jobs go on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import ElsewhereError

from tests.support.agents import environment, lives, wait_until
from tests.support.clusters import UNCOMPILED
from tests.support.etcd import running
from tests.support.schedulers import Schedulers, hurt, survive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.system
TAKE_OVER = 5.0
"""Seconds within which another scheduler leads, with a lease of `LEASE`, on a machine with nothing else to do."""
BUSY = 4.0
"""How much longer anything may take here, where other tests run."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Schedulers]:
    """Return two schedulers on an etcd of three members."""
    with ExitStack() as stack:
        found = Schedulers(tmp_path, stack.enter_context(running(tmp_path, 3)))
        stack.callback(found.end)
        found.start()
        yield found


def took(step: Callable[[], object]) -> float:
    """Return the seconds of a step."""
    begin = time.monotonic()
    step()
    return time.monotonic() - begin


def test_a_standby_takes_over_from_a_killed_scheduler(here: Schedulers) -> None:
    """Jobs go on, waiting ones start, and users find the new one; the old one stands by once it is back."""
    first, second = here.all
    long, short = here.submit("sleep", "1000"), here.submit("true")
    here.await_state(long, "running")
    here.await_state(short, "completed")
    wait_until(lambda: any(agent.tasks() for agent in here.agents.values()), here.show)
    (pid,) = [task["pid"] for agent in here.agents.values() for task in agent.tasks().values()]
    first.kill()
    waits = here.submit("true")  # which waits until another one leads
    here.await_state(waits, "completed")
    assert lives(pid)
    assert here.state(long) == "running"
    first.start("standing_by")
    words = [sys.executable, "-m", "drom", "queue"]
    about = environment(DROM_QUEUE=f"{first.state},{second.state}", **UNCOMPILED)
    done = subprocess.run(words, env=about, capture_output=True, text=True, check=False)
    assert (done.returncode, f"{long} " in done.stdout) == (0, True), done.stderr
    with pytest.raises(ElsewhereError, match=r"^this scheduler stands by for the one on .*: ask that one\.$"):
        first.ask("queue")

    assert second.end() == 0
    assert took(lambda: here.await_state(long, "running")) < TAKE_OVER * BUSY
    here.ask("cancel", job=long)
    here.await_state(long, "cancelled")
    assert not lives(pid)


def test_a_paused_scheduler_changes_nothing(here: Schedulers) -> None:
    """It finds that another one has taken over, and its agents do not obey it; it stands by for that one.

    Commands ask the other one soon, though its socket still accepts connections.
    """
    first, second = here.all
    long = here.submit("sleep", "1000")
    here.await_state(long, "running")
    first.send(signal.SIGSTOP)
    begin = time.monotonic()
    other = here.submit("sleep", "1000")
    assert time.monotonic() - begin < TAKE_OVER * BUSY
    wait_until(lambda: second.job(other)["state"] == "running", here.show)
    first.send(signal.SIGCONT)
    wait_until(lambda: "event=standing_by" in first.log, here.show)
    assert [here.state(one) for one in (long, other)] == ["running", "running"]
    second.kill()
    assert [here.state(one) for one in (long, other)] == ["running", "running"]
    for one in (long, other):
        here.ask("cancel", job=one)
        here.await_state(one, "cancelled")
    assert "job_unknown" not in here.show()


def test_no_job_is_lost_or_run_twice(here: Schedulers) -> None:
    """Whatever is killed or paused: schedulers, and members of etcd. KILLS and SEED may be set."""
    survive(here, ("kill", "pause", "etcd"), partial(hurt, here))
