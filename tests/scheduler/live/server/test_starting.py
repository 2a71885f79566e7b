# SPDX-License-Identifier: Apache-2.0
"""A scheduler that starts: it tells users and agents so for as long as its policy is compiled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest
from drom.agent import errors
from drom.agent.errors import NotYetError

from tests.support.agents import SECONDS, environment, wait_until
from tests.support.clusters import UNCOMPILED, Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLOW = """
import os, time
from drom.scheduler.interface import NEVER, start

def decide(state, event, options, actions):
    while not os.path.exists({gate!r}):
        time.sleep(0.01)
    for job in state.queue:
        if state.jobs.nodes[job] <= state.free:
            start(actions, job)
            return state.now
    return NEVER
"""
"""A policy that is ready once a file is there, as one is that takes long to compile."""
SENTENCE = "the scheduler is starting and compiles its policy: try again in a minute."


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Cluster]:
    """Run a scheduler whose policy is not ready before the file `gate` is there, and an agent of it."""
    (tmp_path / "slow.py").write_text(SLOW.format(gate=str(tmp_path / "gate")), encoding="utf-8")
    here = Cluster(tmp_path)
    words = ["scheduler", "--state", str(here.state), "--policy", str(tmp_path / "slow.py"), "--metrics", "127.0.0.1:0"]
    with (tmp_path / "scheduler.log").open("wb") as log:
        here._process = subprocess.Popen(
            [sys.executable, "-m", "drom", *words], stderr=log, env=environment(**UNCOMPILED)
        )
    try:
        wait_until(lambda: (here.state / "agents").exists() and "event=metrics" in here.log, lambda: here.log)
        agent = here.join("n1")
        wait_until(lambda: "scheduler is starting" in agent.log, lambda: agent.log)
        yield here
    finally:
        for agent in here.agents.values():
            agent.discard()
        if here.runs:
            here.end(signal.SIGKILL)


def health(here: Cluster, name: str) -> int:
    """Return the HTTP status of one of the paths for supervisors."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{here.metrics_port}/-/{name}", timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_users_and_agents_are_told_that_the_scheduler_is_starting(starting: Cluster) -> None:
    """Commands fail for the time being; the agent says it once, and joins by itself when the policy is there."""
    for words in (("queue",), ("nodes", "--json"), ("cancel", "1"), ("submit", "--", "true")):
        done = starting.cli(*words)
        assert (done.returncode, done.stdout, done.stderr) == (os.EX_TEMPFAIL, "", f"drom: {SENTENCE}\n")
    with pytest.raises(NotYetError, match=SENTENCE):
        starting.ask("queue")
    assert (health(starting, "healthy"), health(starting, "ready")) == (200, 503)
    assert starting.agents["n1"].log.count("is starting") == 1

    (starting.folder / "gate").touch()
    wait_until(lambda: "event=ready" in starting.log, lambda: starting.log)
    wait_until(lambda: "event=cluster_joined" in starting.agents["n1"].log, lambda: starting.log)
    assert health(starting, "ready") == 200
    starting.await_state(starting.submit("--", "true"), "completed")
    assert starting.agents["n1"].log.count("is starting") == 1
    assert starting.end() == 0


def test_a_scheduler_that_is_starting_ends_at_once(starting: Cluster) -> None:
    """By SIGTERM, though a compilation cannot be stopped, and with its sockets gone."""
    assert starting.end() == 0
    assert not (starting.state / "control").exists()
    with pytest.raises(errors.ControlError, match=r"^no scheduler answers in "):
        starting.ask("queue")


def test_a_policy_that_cannot_be_asked_ends_the_scheduler_with_a_sentence(tmp_path: Path) -> None:
    """Also though users could connect before."""
    (tmp_path / "wrong.py").write_text("def decide(state, event, options, actions):\n    return nothing\n")
    words = ["scheduler", "--state", str(tmp_path / "state"), "--policy", str(tmp_path / "wrong.py")]
    done = subprocess.run(
        [sys.executable, "-m", "drom", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment(**UNCOMPILED),
    )
    assert done.returncode == 1
    assert "drom: Policy wrong, at 0 s: NameError: name 'nothing' is not defined (" in done.stderr
    assert not (tmp_path / "state" / "control").exists()
