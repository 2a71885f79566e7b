# SPDX-License-Identifier: Apache-2.0
"""Several users on one node: what one does to the agent, and to the programs of another, as real users."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dromlib import layout
from tests.agents import (
    SECONDS,
    Agent,
    Program,
    Programs,
    affinity,
    environment,
    launch_agent,
    start_agent,
    start_time,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else"),
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
SCRIPT = Path(__file__).with_name("other_user.py")
ROOT = SCRIPT.parents[2]
TWO = ("--topology", "pack:2 core:1", "--grace", "0.2")
VICTIM, ATTACKER = 64901, 64902


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="drom-users-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    """Return an agent of two cores."""
    with start_agent(folder, *TWO) as agent:
        yield agent


def somebody(start: Programs, uid: int, agent: Agent, what: str, argument: object = None) -> Program:
    """Start what `other_user.py` has under a name, as a user; it is ready, and goes on until its stdin is closed."""
    command = [sys.executable, str(SCRIPT), str(uid), str(agent.dir), what, json.dumps(argument)]
    program = start.start(*command, PYTHONPATH=str(ROOT))
    program.await_out(r"\n")
    return program


def came_of(uid: int, agent: Agent, what: str, argument: object = None) -> Any:
    """Return what came of something that a user did."""
    command = [sys.executable, str(SCRIPT), str(uid), str(agent.dir), what, json.dumps(argument)]
    env = environment(PYTHONPATH=str(ROOT))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * 2, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def victim(agent: Agent, start: Programs) -> Program:
    """Return a running program that applies its grants."""
    program = somebody(start, VICTIM, agent, "follow")
    (row,) = agent.tasks().values()
    assert (row["uid"], row["granted"]) == (VICTIM, "0-1")
    return program


def assert_unharmed(agent: Agent, victim: Program) -> None:
    """The victim's task is as it was, and its program still follows its grants."""
    (job,) = agent.tasks()
    (row,) = agent.await_tasks(**{job: "0-1"}).values()
    assert (row["pid"], row["uid"]) == (victim.pid, VICTIM)
    agent.order("resize", job=job, cpus=1)
    agent.await_tasks(**{job: "0"})
    agent.order("resize", job=job, cpus=None)
    agent.await_tasks(**{job: "0-1"})
    assert affinity(victim.pid) == "0,1"


def test_files_of_the_agent_and_of_others_are_out_of_reach(agent: Agent, victim: Program) -> None:
    """A mailbox is its program's alone; registry, lock and sockets are the agent's to change."""
    (mailbox,) = (agent.dir / "mail").iterdir()
    found = came_of(ATTACKER, agent, "touch_files", int(mailbox.name))

    assert set(found.values()) == {"PermissionError"}, found
    assert_unharmed(agent, victim)


def test_nobody_passes_for_another_users_task(agent: Agent, victim: Program) -> None:
    """Who names another's task becomes a task of his own, with a registry that he cannot write."""
    found = came_of(ATTACKER, agent, "impersonate", [victim.pid, start_time(victim.pid)])

    assert found["writable"] == []
    assert found["attached"] in (0, found["we"])
    assert found["launched"] in (0, found["we"])
    agent.await_log(rf"event=ended .*pid={found['we']}")
    assert_unharmed(agent, victim)


def test_orders_about_anothers_job_are_refused(agent: Agent, victim: Program) -> None:
    """Neither by name nor by pid; each with the sentence that says who may."""
    (job,) = agent.tasks()
    asked = [
        ["resize", {"job": job, "cpus": 1}],
        ["resize", {"job": job, "cpus": None}],
        ["set", {"job": job, "cpus": "0"}],
        ["set", {"job": str(victim.pid), "cpus": "0"}],
        ["release", {"job": job}],
        ["release", {"job": str(victim.pid)}],
    ]
    refusal = f"job {job} is another user's: only root and the agent's own user may change it."
    assert came_of(ATTACKER, agent, "give_orders", asked) == [refusal] * len(asked)
    assert_unharmed(agent, victim)




def test_orders_neither_fill_the_log_nor_come_without_end(agent: Agent, victim: Program) -> None:
    """What an order does not mean is not told, and who gives hundreds of them is to wait; others need not."""
    (job,) = agent.tasks()
    asked = [["resize", {"job": job, "cpus": cpus, "pid": "A" * 200}] for cpus in (1, None)] * 150
    said = came_of(VICTIM, agent, "give_orders", asked)

    assert said[:100] == ["done"] * 100
    assert f"user {VICTIM} has given 100 orders in a moment: wait a second before the next one." in said
    assert "event=order name=resize" in agent.log
    assert "AAA" not in agent.log
    agent.order("resize", job=job, cpus=None)
    assert_unharmed(agent, victim)
