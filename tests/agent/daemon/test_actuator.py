# SPDX-License-Identifier: Apache-2.0
"""Carrying out what the node asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from drom.agent.daemon.actuator import Actuator
from drom.agent.model.jobs import Arrival

from tests.agent.ipc.test_registry import job_of, task_of
from tests.support.node_model import CAPACITY, World
from tests.support.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from pathlib import Path


def test_those_that_shrink_are_saved_first() -> None:
    """A core that changes hands leaves one record and cpuset before it enters another: none ever shows it twice."""
    grows, shrinks = task_of(0, (2, 0b1111)), task_of(1, (2, 0b0001))
    file = {0: 0b0001, 1: 0b1111}
    saved: list[object] = []
    registry = SimpleNamespace(held=file.get, save=lambda task, *_, **__: saved.append(task.slot))
    plan = SimpleNamespace(target=lambda _: 0, owned=lambda _: 0)
    grants = SimpleNamespace(take_unsaved=lambda: [grows, shrinks], allowed=lambda task: task.held)
    node = SimpleNamespace(grants=grants, jobs={"a": job_of(grows)}, plan=plan)

    cpusets = SimpleNamespace(update=lambda task, _mask, _pids: saved.append(("cpuset", task.slot)))
    watcher = SimpleNamespace(processes_of=lambda _: None)
    actuator = SimpleNamespace(registry=registry, node=node, cpusets=cpusets, watcher=watcher)

    Actuator.save(cast("Actuator", actuator))

    assert saved == [1, ("cpuset", 1), 0, ("cpuset", 0)]


def test_who_starts_only_to_be_found_gone_leaves_a_slot_for_others(tmp_path: Path) -> None:
    """Of two such, the second has a second grant planned before it is told of the first."""
    world = World(tmp_path, make_node(MACHINES[1], capacity=CAPACITY))

    def arrive(pid: int, least: int) -> int:
        task = world.arrive(Arrival(pid, 1, pid, "j", "malleable", 0, min_cpus=least), 0.0)
        assert task
        return task.slot

    whole = arrive(1, 4)
    world.leaving |= {2, 3}
    left = [arrive(pid, 2) for pid in world.leaving]
    world.ended(whole, 1.0)
    assert not world.node.tasks

    again = [arrive(pid, 1) for pid in (4, 5, 6)]

    assert again == [whole, *left]
    assert all(world.node.tasks[slot].started for slot in again)
    world.close()
