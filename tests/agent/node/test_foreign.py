# SPDX-License-Identifier: Apache-2.0
"""The cores that are left to jobs of a batch system that run no program under drom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.model.jobs import Arrival
from drom.agent.node.explain import explain
from drom.agent.node.foreign import cores_of_foreign_jobs
from drom.agent.node.invariants import violations

from tests.support.nodes import make_node

if TYPE_CHECKING:
    from drom.agent.node.node import Node

EIGHT = [1 << cpu for cpu in range(8)]
LEFT, RIGHT, ALL = 0x0F, 0xF0, 0xFF


def launch(node: Node, pid: int, job: str, **about: Any) -> None:
    """Let a task arrive, and all programs apply what they are granted."""
    node.arrive(Arrival(pid, 1, 1, job, **about), 0.0)
    settle(node)


def leave(node: Node, **foreign: int) -> int:
    """Leave CPUs to foreign jobs, given the CPUs of each, and return them."""
    left = cores_of_foreign_jobs(node.plan, foreign)
    node.set_usable_cpus(node.cores.all & ~left, 1.0, foreign=left)
    settle(node)
    return left


def settle(node: Node) -> None:
    """Let programs apply their grants until nothing is new."""
    while news := [(task.slot, task.epoch) for task in node.tasks.values() if len(task.grants) > 1]:
        for slot, epoch in news:
            node.grants.applied(slot, epoch, 0.0)
    assert violations(node) == []


@pytest.fixture
def node() -> Node:
    """Return a node of eight CPUs."""
    return make_node(EIGHT)


def test_a_job_outside_the_batch_system_moves_off_the_cpus_of_a_foreign_job(node: Node) -> None:
    """It has all CPUs again after the end of the foreign job."""
    launch(node, 1, "a")
    leave(node, other=RIGHT)
    assert node.jobs["a"].planned == LEFT

    leave(node)
    assert node.jobs["a"].planned == ALL


def test_a_job_outside_the_batch_system_waits_while_foreign_jobs_have_all_cpus(node: Node) -> None:
    """The reason names them, and the job starts when they have ended."""
    leave(node, other=ALL)
    launch(node, 1, "a")
    assert not node.jobs["a"].planned
    texts = [sentence.text for sentence in explain(node, "a", 1.0)]
    assert "CPUs 0-7 are left to jobs of Slurm that run no program under drom." in texts

    leave(node)
    assert node.jobs["a"].planned == ALL


def test_a_job_of_slurm_shares_the_cpus_that_slurm_has_given_to_a_foreign_job_too(node: Node) -> None:
    """Each has an equal share, and the one that runs keeps its cores when the share is decided again."""
    leave(node, other=ALL)
    launch(node, 1, "slurm-7", batch_job="slurm-7")
    assert leave(node, other=ALL) == RIGHT
    assert node.jobs["slurm-7"].planned == LEFT
    assert leave(node, other=ALL) == RIGHT


def test_a_foreign_job_keeps_the_cores_that_slurm_has_given_to_it_alone(node: Node) -> None:
    """Of the others it keeps its share."""
    launch(node, 1, "slurm-7", batch_job="slurm-7", cpuset=0x3F, batch_cpuset=0x3F)

    assert leave(node, other=0xFC) == 0xF0
    assert node.jobs["slurm-7"].planned == LEFT


def test_a_job_of_slurm_has_its_minimum_beside_a_foreign_job(node: Node) -> None:
    """Slurm has decided that they share, and the programs of the foreign job cannot be moved."""
    launch(node, 1, "slurm-7", batch_job="slurm-7", min_cpus=6, max_cpus=8)

    assert leave(node, other=ALL) == 0xC0
    assert node.jobs["slurm-7"].cores == 6


def test_two_jobs_on_one_cpu_share_it(node: Node) -> None:
    """Slurm may give one core to two jobs."""
    launch(node, 1, "slurm-7", batch_job="slurm-7", cpuset=1, batch_cpuset=1)

    assert leave(node, other=1) == 0
    assert node.jobs["slurm-7"].planned == 1


def test_a_core_of_which_a_foreign_job_has_one_thread_is_left_to_it() -> None:
    """Cores are handed out whole."""
    node = make_node([0b0011, 0b1100])

    assert leave(node, other=0b0100) == 0b1100
