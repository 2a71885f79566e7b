# SPDX-License-Identifier: Apache-2.0
"""Jobs that the kernel confines to some CPUs of a node: they share these, and nothing with jobs on others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import Refused
from drom.agent.model.jobs import Arrival
from drom.agent.node.areas import areas
from drom.agent.node.invariants import violations
from hypothesis import given
from hypothesis import strategies as st

from tests.support.nodes import make_node

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

EIGHT = [1 << cpu for cpu in range(8)]
LEFT, RIGHT = 0x0F, 0xF0


def enter(node: Node, pid: int, cpuset: int = 0, **asks: Any) -> Task:
    """Let a program of job `jPID` arrive, and all programs apply what they are granted."""
    task, _ = node.arrive(Arrival(pid, 1, asks.pop("uid", 1), f"j{pid}", cpuset=cpuset, **asks), 0.0)
    settle(node)
    return task


def settle(node: Node) -> None:
    """Let programs apply their grants until nothing is new."""
    while news := [(task.slot, task.epoch) for task in node.tasks.values() if len(task.grants) > 1]:
        for slot, epoch in news:
            node.grants.applied(slot, epoch, 0.0)
    assert violations(node) == []


def granted(node: Node) -> dict[str, int]:
    """Return the CPUs of each job."""
    return {task.job: task.granted for task in node.tasks.values()}


def test_jobs_on_disjoint_cpus_each_have_all_of_theirs() -> None:
    """Neither gives anything up, nobody waits, and each is alone in its area."""
    node = make_node([1, 2])
    enter(node, 1, 0b01)
    enter(node, 2, 0b10)

    assert granted(node) == {"j1": 1, "j2": 2}
    assert sorted(area.mask for area in areas(node.plan)) == [1, 2]


def test_jobs_on_the_same_cpus_share_them() -> None:
    """The first has all back when the second has ended; a job elsewhere notices nothing."""
    node = make_node(EIGHT)
    enter(node, 1, LEFT)
    enter(node, 2, RIGHT)
    second = enter(node, 3, LEFT)
    now = granted(node)
    assert (now["j1"] | now["j3"], now["j1"] & now["j3"], now["j2"]) == (LEFT, 0, RIGHT)
    assert now["j3"].bit_count() == 2

    node.ended(second.slot, 1.0)
    settle(node)

    assert granted(node) == {"j1": LEFT, "j2": RIGHT}


def test_a_guest_on_a_part_of_a_jobs_cpus_gets_some_of_these() -> None:
    """The job that has more CPUs keeps those that the guest may not have."""
    node = make_node(EIGHT)
    enter(node, 1)
    enter(node, 2, 0b11)

    now = granted(node)
    assert now["j2"] & ~0b11 == 0
    assert now["j2"]
    assert now["j1"] == 0xFF & ~now["j2"]


def test_a_rigid_job_waits_for_nobody_elsewhere() -> None:
    """Nor does anybody elsewhere wait behind it."""
    node = make_node(EIGHT)
    enter(node, 1, LEFT, job_class="rigid")
    waits = enter(node, 2, LEFT)
    third = enter(node, 3, RIGHT)

    assert not waits.started
    assert third.granted == RIGHT
    assert node.grants.why_waiting(waits).startswith("needs ")


def test_what_a_job_may_have_at_most_are_its_cpus() -> None:
    """An order for more, or for others, is refused in a sentence that says so; so is a launch that needs more."""
    node = make_node(EIGHT)
    task = enter(node, 1, LEFT)

    with pytest.raises(Refused, match=r"^job j1 can have 1 to 4 CPUs, not 5: "):
        node.resize("j1", 5, 0.0)
    with pytest.raises(Refused, match=r"^CPU 4 is outside those that the kernel lets job j1 use: choose others\.$"):
        node.pin(task.slot, 0b11000, 0.0)
    with pytest.raises(Refused, match=r"^it needs at least 5 CPUs, the kernel lets it use 4: ask for fewer\.$"):
        enter(node, 2, RIGHT, min_cpus=5)
    with pytest.raises(Refused, match="make up no core of this node"):
        enter(make_node([0b11, 0b1100]), 3, 0b110)


@given(
    st.lists(st.tuples(st.sampled_from([LEFT, RIGHT]), st.integers(0, 3), st.booleans(), st.integers(0, 9))),
)
def test_what_happens_on_other_cpus_changes_nothing(events: list[tuple[int, int, bool, int]]) -> None:
    """A node with jobs on both halves does on the left half what one does that has only those."""
    both, alone = make_node(EIGHT), make_node(EIGHT)
    running: dict[int, int] = {}
    for pid, (cpuset, least, ends, which) in enumerate(events, 1):
        mine = [old for old, where in running.items() if where == cpuset]
        for node in (both, alone) if cpuset == LEFT else (both,):
            if ends and mine:
                task = node.grants.find(mine[which % len(mine)], 1)
                assert task
                node.ended(task.slot, 0.0)
                settle(node)
            else:
                enter(node, pid, cpuset, min_cpus=least, uid=which % 2)
        if ends and mine:
            del running[mine[which % len(mine)]]
        else:
            running[pid] = cpuset

        left = {job: mask for job, mask in granted(both).items() if both.jobs[job].cpuset == LEFT}
        assert left == granted(alone)
