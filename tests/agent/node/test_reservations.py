# SPDX-License-Identifier: Apache-2.0
"""Jobs of a scheduler on a node, in the cases that the machine of `test_node_machine` has found."""

from __future__ import annotations

import pytest
from drom.agent.errors import Refused
from drom.agent.model.jobs import Arrival, Reservation
from drom.agent.model.layouts import ANY, Layout
from drom.agent.node.invariants import violations

from tests.support.nodes import make_node

EIGHT = [1 << core for core in range(8)]
ANN = 1000
JOB = "drom-1"
PAIRS = Layout("per_socket", 2)


def test_its_memory_does_not_grow_with_its_tasks() -> None:
    """A launch of more tasks than were reserved divides what the job declared, as it divides the cores."""
    node = make_node(EIGHT, memory=100)
    node.reservations.reserve(Reservation(JOB, ANN, 4, 8, tasks=1, memory=60), 0.0)

    node.arrive(Arrival(10, 1, ANN, JOB, "malleable", 10, rank=0, size=4), 0.0)

    assert (node.jobs[JOB].declared, len(node.jobs[JOB].ranks)) == (60, 4)


def test_an_order_below_its_tasks_survives_the_agent() -> None:
    """Another agent takes the job up again, although it has fewer cores than it was to have tasks."""
    wanted = Reservation(JOB, ANN, 4, 8, tasks=3, memory=60)
    node = make_node(EIGHT, memory=100)
    node.reservations.reserve(wanted, 0.0)
    node.reservations.order(JOB, 1, 1.0)

    other = make_node(EIGHT, memory=100)
    other.adopt([], {}, node.plan.arrivals, 2.0, [Reservation(JOB, ANN, 1, 8, tasks=3, memory=60)])

    assert (other.jobs[JOB].cores, node.jobs[JOB].cores) == (1, 1)
    assert (other.jobs[JOB].declared, node.jobs[JOB].declared) == (60, 60)


@pytest.mark.parametrize("layout", [ANY, Layout("compact"), Layout("spread"), PAIRS])
def test_a_launch_and_an_order_on_cpus_that_are_to_be_left_alone(layout: Layout) -> None:
    """A scheduler's job stays on cores that others keep busy: its next launch has the very cores that it has."""
    node = make_node(EIGHT, layout=layout)
    node.reservations.reserve(Reservation(JOB, ANN, 8, 8), 0.0)
    first, _ = node.arrive(Arrival(10, 1, ANN, JOB, session=1), 0.0)
    node.set_usable_cpus(0xFC, 1.0, busy=0b11)

    second = [node.arrive(Arrival(20 + rank, 1, ANN, JOB, session=2, rank=rank, size=2), 2.0)[0] for rank in (0, 1)]
    targets = [node.plan.target(task) for task in (first, *second)]
    assert (sum(targets), [mask.bit_count() for mask in targets]) == (0xFF, [3, 3, 2])
    assert not violations(node)

    node.ended(second[1].slot, 3.0)
    node.reservations.order(JOB, 2, 4.0)
    assert [node.plan.target(task).bit_count() for task in (first, second[0])] == [1, 1]


def test_cpus_that_are_not_there_are_no_place_for_a_pin() -> None:
    """A core of which one CPU has gone is still handed out, and that CPU is not."""
    node = make_node([0b11, 0b1100])
    node.arrive(Arrival(10, 1, ANN, "a", "malleable", 0), 0.0)
    (task,) = node.tasks.values()
    node.set_usable_cpus(0b1111, 1.0, gone=0b1000)

    with pytest.raises(Refused, match=r"^CPU 3 is not there now: choose others\.$"):
        node.pin(task.slot, 0b1100, 2.0)
    node.pin(task.slot, 0b0111, 2.0)
    assert node.plan.target(task) == 0b0111
