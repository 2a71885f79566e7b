"""A real agent beside a program that nobody manages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.agent.system.test_unmanaged_load import spinning
from tests.support.agents import Programs, start_agent, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]


def test_a_core_is_left_to_a_busy_program_and_taken_back(tmp_path: Path, start: Programs, program: Path) -> None:
    """The running job leaves it, ps says so, and it comes back when that program has ended."""
    options = ("--topology", "pack:2 core:1", "--avoid-load", "0.2", "--avoid-after", "0")
    with start_agent(tmp_path, *options) as agent:
        start.start(*agent.run("--job", "a", "--", program)).await_out("attached .* responder")
        agent.await_tasks(a="0-1")
        # What other tests keep busy comes between: all of it holds at the same time once they let it.
        with spinning(1):
            wait_until(
                lambda: agent.order("ps")["avoided"] == "1" and agent.tasks()["a"]["held"] == "0", lambda: agent.log
            )
            wait_until(lambda: "CPU 1 is left to unmanaged programs" in agent.cli("ps").stdout, lambda: agent.log)
        agent.await_tasks(a="0-1")
        wait_until(lambda: agent.order("ps")["avoided"] == "", lambda: agent.log)
        agent.assert_clean()
