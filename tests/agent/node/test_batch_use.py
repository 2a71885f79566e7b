# SPDX-License-Identifier: Apache-2.0
"""The cores that jobs of a batch system have, and the time that they lose to other jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.model.core_use import CoreUse
from drom.agent.model.jobs import Arrival, Demand
from drom.agent.node.batch_use import BatchUse, uses

from tests.support.nodes import make_node

if TYPE_CHECKING:
    from drom.agent.node.node import Node

LEFT = 0x0F


@pytest.fixture
def node() -> Node:
    """Return a node of eight CPUs."""
    return make_node([1 << cpu for cpu in range(8)])


def launch(node: Node, pid: int, number: int, **about: Any) -> int:
    """Let a task of a job of Slurm arrive, and all programs apply what they are granted; return its slot."""
    name = f"slurm-{number}"
    task, _ = node.arrive(Arrival(pid, 1, about.pop("uid", 1), name, batch_job=name, **about), 0.0)
    while news := [(task.slot, task.epoch) for task in node.tasks.values() if len(task.grants) > 1]:
        for slot, epoch in news:
            node.grants.applied(slot, epoch, 0.0)
    return task.slot


def losses(node: Node) -> dict[str, float]:
    """Return the part of its speed that each job loses now."""
    return {name: use.lost for name, use in uses(node.plan).items()}


def test_a_job_loses_as_much_of_its_speed_as_of_its_cores(node: Node) -> None:
    """A job alone loses nothing."""
    launch(node, 1, 1)
    assert losses(node) == {"slurm-1": 0}

    launch(node, 2, 2)
    assert losses(node) == {"slurm-1": 0.5, "slurm-2": 0.5}


def test_what_is_lost_adds_up_over_time(node: Node) -> None:
    """It remains after the last task of a job has ended."""
    use = BatchUse()
    launch(node, 1, 1)
    use.update(node.plan, 10.0)
    slot = launch(node, 2, 2)
    use.update(node.plan, 20.0)
    use.update(node.plan, 26.0)
    node.ended(slot, 26.0)
    use.update(node.plan, 30.0)
    use.update(node.plan, 40.0)

    assert {name: total.lost for name, total in use.total.items()} == {"slurm-1": 5.0, "slurm-2": 5.0}
    assert use.total["slurm-1"].cores == CoreUse(held=10 * 8 + 10 * 4 + 10 * 8, lent=10 * 4, borrowed=0)
    assert use.total["slurm-2"].cores == CoreUse(held=10 * 4, lent=0, borrowed=10 * 4)
    assert use.seconds == 30.0
    assert use.adopted == frozenset({"slurm-1"})


def test_jobs_use_what_they_hold_lend_and_borrow(node: Node) -> None:
    """The first job on a core owns it; the second one borrows it."""
    launch(node, 1, 1)
    assert uses(node.plan)["slurm-1"].cores == CoreUse(8, 0, 0)

    launch(node, 2, 2)
    assert {name: use.cores for name, use in uses(node.plan).items()} == {
        "slurm-1": CoreUse(4, 4, 0),
        "slurm-2": CoreUse(4, 0, 4),
    }


def test_a_job_that_waits_loses_all_time(node: Node) -> None:
    """The other one is rigid."""
    launch(node, 1, 1, job_class="rigid", max_cpus=8)
    launch(node, 2, 2)

    assert losses(node) == {"slurm-1": 0, "slurm-2": 1}


def test_cores_that_slurm_did_not_give_to_a_job_are_no_loss(node: Node) -> None:
    """Nor are those that its launch did not ask for."""
    launch(node, 1, 1, cpuset=LEFT, batch_cpuset=LEFT)
    launch(node, 2, 2, cpuset=LEFT ^ 0xFF, batch_cpuset=LEFT ^ 0xFF, max_cpus=1)
    launch(node, 3, 3, cpuset=LEFT ^ 0xFF, batch_cpuset=LEFT ^ 0xFF, max_cpus=3)

    assert losses(node) == {"slurm-1": 0, "slurm-2": 0, "slurm-3": 0}


def test_cores_that_a_job_has_given_up_are_no_loss(node: Node) -> None:
    """By an order of its user, or because its program cannot use them."""
    launch(node, 1, 1, uid=1, cpuset=LEFT, batch_cpuset=LEFT)
    slot = launch(node, 2, 2, uid=2, cpuset=LEFT ^ 0xFF, batch_cpuset=LEFT ^ 0xFF)
    node.resize("slurm-1", 1, 1.0, by=1)
    node.demands_reported({slot: Demand(1, 2)}, 1.0)
    node.tick(60.0)
    launch(node, 3, 3, cpuset=LEFT, batch_cpuset=LEFT)

    assert losses(node) == {"slurm-1": 0, "slurm-2": 0, "slurm-3": 0.25}


def test_launches_of_one_job_that_share_its_cores_lose_nothing(node: Node) -> None:
    """They are the same job."""
    launch(node, 1, 1)
    launch(node, 2, 1, min_cpus=2)

    assert len(node.jobs) == 2
    assert losses(node) == {"slurm-1": 0}


def test_cores_left_to_foreign_jobs_are_lost(node: Node) -> None:
    """Those jobs share them too."""
    launch(node, 1, 1)
    node.set_usable_cpus(LEFT, 1.0, foreign=LEFT ^ 0xFF)

    assert losses(node) == {"slurm-1": 0.5}
