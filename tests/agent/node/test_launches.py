# SPDX-License-Identifier: Apache-2.0
"""Launches of one job of a batch system: they are ranks of one job on the node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.model.jobs import Arrival, Reservation
from drom.agent.node.invariants import violations

from tests.support.nodes import make_node

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

EIGHT = [1 << cpu for cpu in range(8)]
LEFT, RIGHT, ALL = 0x0F, 0xF0, 0xFF


def launch(node: Node, pid: int, job: str = "slurm-1", *, cpuset: int = 0, batch_cpuset: int = 0, **asks: Any) -> Task:
    """Let a task of a job of Slurm arrive, and all programs apply what they are granted."""
    about: dict[str, Any] = {
        "job": job,
        "batch_job": job,
        "cpuset": cpuset,
        "batch_cpuset": batch_cpuset or cpuset,
    } | asks
    task, _ = node.arrive(Arrival(pid, 1, about.pop("uid", 1), **about), 0.0)
    settle(node)
    return task


def settle(node: Node) -> None:
    """Let programs apply their grants until nothing is new."""
    while news := [(task.slot, task.epoch) for task in node.tasks.values() if len(task.grants) > 1]:
        for slot, epoch in news:
            node.grants.applied(slot, epoch, 0.0)
    assert violations(node) == []


def sizes(node: Node) -> dict[str, list[int]]:
    """Return the number of CPUs of each task of each job, by rank."""
    return {
        job.name: [task.granted.bit_count() for _, task in sorted(job.ranks.items()) if task]
        for job in node.jobs.values()
    }


@pytest.fixture
def node() -> Node:
    """Return a node of eight CPUs."""
    return make_node(EIGHT)


def test_two_steps_are_two_ranks_of_one_job(node: Node) -> None:
    """They share the CPUs of the job, which the one that stays has again when the other has ended."""
    first = launch(node, 1, session=10)
    launch(node, 2, session=11)
    assert sizes(node) == {"slurm-1": [4, 4]}

    node.ended(first.slot, 1.0)
    settle(node)
    assert sizes(node) == {"slurm-1": [8]}


def test_a_job_of_many_steps_has_no_larger_share_than_one_of_a_single_step(node: Node) -> None:
    """Jobs of one user share equally, whatever is launched in them."""
    launch(node, 1, "slurm-1")
    launch(node, 2, "slurm-2")
    for pid in (3, 4, 5):
        launch(node, pid, "slurm-1")

    assert sizes(node) == {"slurm-1": [1, 1, 1, 1], "slurm-2": [4]}


def test_a_launch_for_which_its_job_has_no_cpu_competes_for_one(node: Node) -> None:
    """A job that has less than its equal share gets more before a launch has to join another."""
    launch(node, 1, "slurm-1", cpuset=LEFT)
    launch(node, 2, "slurm-2", cpuset=ALL, batch_cpuset=ALL)
    for pid in (3, 4, 5, 6):
        launch(node, pid, "slurm-1", cpuset=LEFT)

    assert sizes(node) == {"slurm-1": [1, 1, 1, 1], "slurm-2": [4]}
    assert node.jobs["slurm-1"].planned == LEFT


def test_a_launch_without_room_in_its_job_joins_a_task_of_it(node: Node) -> None:
    """Slurm starts as many programs on a CPU as it was asked to: none waits for another one of its job."""
    first = launch(node, 1, cpuset=1, batch_cpuset=1)
    second = launch(node, 2, cpuset=1, batch_cpuset=1)

    assert second is first
    assert list(node.jobs) == ["slurm-1"]


def test_a_step_keeps_to_its_own_cpus(node: Node) -> None:
    """Steps of a job may have some of its CPUs each, and a program of the script all of them."""
    first = launch(node, 1, cpuset=0b0001, batch_cpuset=LEFT)
    second = launch(node, 2, cpuset=0b0110, batch_cpuset=LEFT)
    script = launch(node, 3, cpuset=LEFT, batch_cpuset=LEFT)

    assert (first.granted, first.job) == (0b0001, "slurm-1")
    assert second.granted | script.granted == 0b1110
    assert not second.granted & ~0b0110
    assert list(node.jobs) == ["slurm-1"]


def test_a_join_is_only_with_a_task_on_cpus_of_the_step(node: Node) -> None:
    """A step is never bound to CPUs that Slurm did not give it."""
    launch(node, 1, cpuset=0b0001, batch_cpuset=0b0011)
    second = launch(node, 2, cpuset=0b0010, batch_cpuset=0b0011)
    third = launch(node, 3, cpuset=0b0010, batch_cpuset=0b0011)

    assert third is second


def test_steps_of_several_ranks_beside_each_other(node: Node) -> None:
    """Each launch has ranks from 0 on, which are further ranks of the job."""
    tasks = [launch(node, pid, session=10, rank=pid - 1, size=2) for pid in (1, 2)]
    tasks += [launch(node, pid, session=11, rank=pid - 3, size=3) for pid in (3, 4, 5)]

    assert [task.rank for task in tasks] == [0, 1, 2, 3, 4]
    assert sizes(node) == {"slurm-1": [2, 2, 2, 1, 1]}


def test_ranks_that_do_not_come_are_dropped(node: Node) -> None:
    """Their CPUs go to those that have come."""
    launch(node, 1, session=10)
    launch(node, 2, session=11, rank=0, size=3)
    assert sizes(node) == {"slurm-1": [2, 2]}
    node.tick(node.complete_within)
    settle(node)

    assert sizes(node) == {"slurm-1": [4, 4]}


@pytest.mark.parametrize(
    "asks", [{"max_cpus": 2}, {"job_class": "rigid", "max_cpus": 1}, {"job": "mine"}, {"memory": 1}]
)
def test_a_launch_with_options_of_its_own_is_a_job_of_its_own(node: Node, asks: dict[str, Any]) -> None:
    """What its user asked for holds for it alone."""
    launch(node, 1)
    launch(node, 2, **{"batch_job": "slurm-1"} | asks)

    assert [len(job.ranks) for job in node.jobs.values()] == [1, 1]


@pytest.mark.parametrize(("uid", "batch_job"), [(2, "slurm-1"), (1, "slurm-2"), (1, "")])
def test_others_are_never_part_of_a_job(node: Node, uid: int, batch_job: str) -> None:
    """Of other users, of other jobs of Slurm with the same name, and of none."""
    launch(node, 1)
    launch(node, 2, uid=uid, batch_job=batch_job)

    assert [len(job.ranks) for job in node.jobs.values()] == [1, 1]


def test_a_held_job_shares_its_cpus_among_its_launches(node: Node) -> None:
    """An order for its size stays in force; a launch for which it has no CPU is a job of its own."""
    launch(node, 1)
    node.resize("slurm-1", 2, 0.0)
    settle(node)
    launch(node, 2)
    assert sizes(node) == {"slurm-1": [1, 1]}
    launch(node, 3)
    assert sizes(node) == {"slurm-1": [1, 1], "slurm-1.2": [6]}


def test_a_further_launch_waits_with_its_job(node: Node) -> None:
    """The ranks of a waiting job start together."""
    node.reservations.reserve(Reservation("drom-1", 7, 8, 8), 0.0)
    tasks = [launch(node, 1), launch(node, 2)]
    assert [task.started for task in tasks] == [False, False]
    node.reservations.cancel("drom-1", 0.0)
    settle(node)

    assert sizes(node) == {"slurm-1": [4, 4]}


def test_a_rigid_job_gives_nothing_to_a_further_launch(node: Node) -> None:
    """The launch is part of the task that runs."""
    first = launch(node, 1, job_class="rigid", max_cpus=8)
    second = launch(node, 2, job_class="rigid", max_cpus=8)

    assert second is first
    assert sizes(node) == {"slurm-1": [8]}
