# SPDX-License-Identifier: Apache-2.0
"""What `drom bench faults` measures, with few programs and threads."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import psutil
from drom.agent.bench import faults, scale
from drom.agent.bench.agent import running_agent

from tests.support.child_processes import needs_two_cpus

if TYPE_CHECKING:
    import pytest


@needs_two_cpus
def test_deaths_and_repairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores are granted before anybody runs on them; masks are repaired, of one process or of several."""
    monkeypatch.setattr(faults, "IDLE_SECONDS", 0.1)
    with running_agent("--topology", "pack:2 core:1") as agent:
        granted, running = faults.deaths(agent, 2)
        assert all(0 < one <= other for one, other in zip(granted, running, strict=True))
        (took,) = faults.repairs(agent, 2, 3, times=1)
        assert took > 0
        assert faults.idle_percent(agent, 2, 1) >= 0


def test_the_next_agent_disturbs_nobody() -> None:
    """Programs have the same grants under the agent that comes after the killed one."""
    took, disturbed = faults.adoption(3)
    assert took > 0
    assert disturbed == 0


def test_a_crowd_fits_few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent raises the limit that it was started with; ours is as it was."""
    monkeypatch.setattr(faults, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(faults, "SOFT_LIMIT", psutil.Process().num_fds() + 40)
    monkeypatch.setattr(scale, "TASKS", 40)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    idle, scrape = faults.crowded()
    assert idle >= 0
    assert scrape > 0
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
