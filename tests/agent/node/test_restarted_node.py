# SPDX-License-Identifier: Apache-2.0
"""What a node makes of what an agent before it has left in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.model.jobs import Arrival, Reservation
from drom.agent.policy.site_rules import SiteRules

from tests.support.node_model import CAPACITY, World
from tests.support.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from pathlib import Path

    from drom.agent.model.jobs import Task

EIGHT, THREADS = MACHINES[2], MACHINES[3]
NOW = 1.0


def arrive(world: World, pid: int, job_class: str = "malleable", name: str = "j") -> Task:
    """Let a program of user 1 arrive."""
    task = world.arrive(Arrival(pid, 1, 1, name, job_class, 0), NOW)
    assert task
    return task


def test_a_lower_cap_is_kept_to(tmp_path: Path) -> None:
    """As when a site says it anew while the agent runs; jobs under orders are the administrator's business."""
    world = World(tmp_path, make_node(EIGHT, capacity=CAPACITY))
    arrive(world, 1)
    second = arrive(world, 2)
    assert [job.cores for job in world.node.jobs.values()] == [4, 4]

    world.restart(NOW, SiteRules(max_cpus_per_user=4))

    assert [job.cores for job in world.node.jobs.values()] == [2, 2]
    world.do(world.node.resize(second.job, 5, NOW), NOW)
    world.restart(NOW, SiteRules(max_cpus_per_user=4))
    assert world.node.jobs[second.job].cores == 5
    world.close()


def test_what_is_left_of_a_core_is_all_of_it_once_the_rest_is_back(tmp_path: Path) -> None:
    """An agent that dies as it gives the rest of the core back leaves a job that keeps its cores on one thread."""
    world = World(tmp_path, make_node(THREADS, capacity=CAPACITY))
    task = arrive(world, 1, "moldable")
    gone = 0b0111_1111
    world.do(world.node.set_usable_cpus(world.node.cores.all & ~gone, NOW, gone), NOW)
    assert task.granted == 0b1000_0000

    world.book.fuse = 0
    assert not world.do(world.node.set_usable_cpus(world.node.cores.all, NOW, 0), NOW)

    (adopted,) = world.node.tasks.values()
    assert world.node.plan.target(adopted) == 0b1100_0000
    world.close()


def test_who_has_no_cores_is_not_held_at_a_number(tmp_path: Path) -> None:
    """A scheduler's job whose cores are to be left alone before its first task has them waits as others do."""
    world = World(tmp_path, make_node(EIGHT, capacity=CAPACITY))
    wanted = Reservation("drom-1", 1, 1, 1, 1, "malleable", 0)
    world.reserved[wanted.name] = wanted
    world.do(world.node.reservations.reserve(wanted, NOW), NOW)
    world.node.freeze(NOW)
    world.node.set_usable_cpus(0, NOW, 0, world.node.cores.all)
    task = arrive(world, 1, name=wanted.name)
    assert world.node.jobs[task.job].reserved

    world.restart(NOW, SiteRules(), act=False)

    assert (world.node.jobs[wanted.name].cores, world.node.jobs[wanted.name].hold) == (0, None)
    world.close()


def test_memory_is_that_of_the_job_however_many_tasks_it_has_got(tmp_path: Path) -> None:
    """A second program of a scheduler's job does not take the memory of another one, which has no program yet."""
    world = World(tmp_path, make_node(EIGHT, capacity=CAPACITY, memory=10))
    for wanted in (Reservation("drom-1", 1, 1, 1, memory=6), Reservation("drom-2", 1, 2, 2, memory=4)):
        world.reserved[wanted.name] = wanted
        world.do(world.node.reservations.reserve(wanted, NOW), NOW)
    for pid in (1, 2):
        arrive(world, pid, name="drom-2")

    world.restart(NOW, SiteRules())

    assert {name: (job.declared, len(job.ranks)) for name, job in world.node.jobs.items()} == {
        "drom-1": (6, 1),
        "drom-2": (4, 2),
    }
    world.close()
