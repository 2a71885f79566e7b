# SPDX-License-Identifier: Apache-2.0
"""The measurement of an agent with very many tasks, with few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.bench import node, scale

if TYPE_CHECKING:
    import pytest


def test_jobs_arrive_leave_and_are_scraped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure of jobs of one task is measured, and has a row."""
    monkeypatch.setattr(scale, "IDLE_SECONDS", 0.1)
    found = scale.jobs(tasks=5, changes=3)

    assert found.keys() == {key for key in node.FIGURES if key.startswith("many_")}
    assert all(value >= 0 for value in found.values())
    assert found["many_p50"] <= found["many_p99"]


def test_ranks_arrive_as_jobs() -> None:
    """As many programs as a job has ranks are one job, the next ones another."""
    with scale.emulating_agent() as (agent, _), scale.crowd(agent) as programs:
        for slot in range(6):
            programs.arrive(slot, slot % 3, 3)
        jobs = [agent.read(slot, "arrival") for slot in range(6)]

    assert jobs == [1, 1, 1, 2, 2, 2]
    assert scale.ranks(tasks=4, size=2).keys() == {"ranks_p50", "ranks_p99"}
