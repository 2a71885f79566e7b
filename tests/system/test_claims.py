"""Real agents that want the same CPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support.agents import launch_agent, start_agent

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="needs CPUs 0 and 1"),
]
TWO = ("--topology", "pack:2 core:1")


def test_one_agent_per_cpu(tmp_path: Path) -> None:
    """A second agent is refused with the name of the first; others for other CPUs, or for none, may run beside it."""
    claims = tmp_path / "run.claims"
    with start_agent(tmp_path, *TWO, "--reserved", "1", forked=False) as first:
        second = launch_agent(tmp_path / "second", *TWO, ready=False, claims_dir=claims)
        try:
            assert second.process.wait(60) == 1
        finally:
            second.discard()
        assert second.log.splitlines()[-1] == (
            f"drom: CPU 0 is managed by the agent with pid {first.pid} in {first.dir}: "
            "stop it, or leave this one to it with --reserved."
        )
        for number, options in enumerate(([*TWO, "--reserved", "0"], [*TWO, "--observe"], ["--emulate", "core:2"])):
            launch_agent(tmp_path / f"beside{number}", *options, claims_dir=claims).stop()
    launch_agent(tmp_path / "again", *TWO, claims_dir=claims).stop()
