# SPDX-License-Identifier: Apache-2.0
"""Launches from within a task, with a real agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import Programs, start_agent

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")


def test_a_launch_below_a_rigid_job_that_has_all_cores_is_part_of_it(tmp_path: Path, start: Programs) -> None:
    """The launch runs at once on the CPUs of its task, as the same task, and its end ends nothing else."""
    with start_agent(tmp_path, *TWO) as agent:
        inner = " ".join(agent.run("--job", "inner", "--", "sh", "-c", "'echo inner $DROM_TASK on $DROM_CPUS'"))
        script = f"echo outer $DROM_TASK on $DROM_CPUS; {inner}; echo still here; read nothing"
        outer = start.start(*agent.run("--job", "outer", "--class", "rigid", "--", "sh", "-c", script))

        said = outer.await_out(r"^outer (.*)$").group(1)
        assert outer.await_out(r"^inner (.*)$").group(1) == said
        outer.await_out("still here")
        assert list(agent.tasks()) == ["outer"]
        assert agent.log.count("event=joined") == 1
        agent.assert_clean()


def test_who_joined_leaves_nothing_in_the_slots(tmp_path: Path, start: Programs) -> None:
    """After launches that joined their task, the next jobs start, shrink and grow as ever."""
    with start_agent(tmp_path, *TWO) as agent:
        inner = " ".join(agent.run("--", "true"))
        outer = start.start(
            *agent.run("--job", "outer", "--class", "rigid", "--", "sh", "-c", f"{inner}; {inner}; echo done")
        )
        outer.await_out("done")
        outer.wait()
        first = start.start(*agent.run("--job", "first", "--", "sh", "-c", "echo up; read nothing"))
        first.await_out("up")
        second = start.start(*agent.run("--job", "second", "--", "sh", "-c", "echo up; read nothing"))
        second.await_out("up")
        assert sorted(agent.tasks()) == ["first", "second"]
        assert agent.log.count("event=joined") == 2
        agent.assert_clean()
