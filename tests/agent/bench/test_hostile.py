# SPDX-License-Identifier: Apache-2.0
"""What `drom bench hostile` measures, with few tasks and orders."""

from __future__ import annotations

from drom.agent.bench import agent as bench_agent
from drom.agent.bench import hostile, scale


def test_orders_are_answered_beside_hostile_users() -> None:
    """Each figure is there, and the agent keeps little of what it is sent."""
    with bench_agent.running_agent("--emulate", "core:4") as agent, scale.crowd(agent) as programs:
        agent.folder.parent.chmod(0o711)
        for slot in range(3):
            programs.arrive(slot)
        found = hostile.situations(agent, 8)

    assert found.keys() == hostile.FIGURES.keys()
    assert all(found[key] > 0 for key in found if key != "memory")
    assert found["memory"] < 2 * hostile.FIGURES["memory"].reach  # type: ignore[operator]
