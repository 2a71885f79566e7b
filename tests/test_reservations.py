# SPDX-License-Identifier: Apache-2.0
"""Jobs of a scheduler on a node, in the cases that the machine of `test_node_machine` has found."""

from __future__ import annotations

import pytest

from agent.jobs import Arrival, Refused, Reservation
from tests.nodes import make_node

EIGHT = [1 << core for core in range(8)]
ANN = 1000
JOB = "drom-1"


def test_its_memory_does_not_grow_with_its_tasks() -> None:
    """A launch of more tasks than were reserved divides what the job declared, as it divides the cores."""
    node = make_node(EIGHT, memory=100)
    node.reserve(Reservation(JOB, ANN, 4, 8, tasks=1, memory=60), 0.0)

    node.arrive(Arrival(10, 1, ANN, JOB, "malleable", 10, rank=0, size=4), 0.0)

    assert (node.jobs[JOB].declared, len(node.jobs[JOB].ranks)) == (60, 4)


def test_an_order_below_its_tasks_survives_the_agent() -> None:
    """Another agent takes the job up again, although it has fewer cores than it was to have tasks."""
    wanted = Reservation(JOB, ANN, 4, 8, tasks=3, memory=60)
    node = make_node(EIGHT, memory=100)
    node.reserve(wanted, 0.0)
    node.order(JOB, 1, 1.0)

    other = make_node(EIGHT, memory=100)
    other.adopt([], {}, node.arrivals, 2.0, [Reservation(JOB, ANN, 1, 8, tasks=3, memory=60)])

    assert (other.jobs[JOB].cores, node.jobs[JOB].cores) == (1, 1)
    assert (other.jobs[JOB].declared, node.jobs[JOB].declared) == (60, 60)


def test_cpus_that_are_not_there_are_no_place_for_a_pin() -> None:
    """A core of which one CPU has gone is still handed out, and that CPU is not."""
    node = make_node([0b11, 0b1100])
    node.arrive(Arrival(10, 1, ANN, "a", "malleable", 0), 0.0)
    (task,) = node.tasks.values()
    node.use(0b1111, 1.0, gone=0b1000)

    with pytest.raises(Refused, match=r"^CPU 3 is not there now: choose others\.$"):
        node.pin(task.slot, 0b1100, 2.0)
    node.pin(task.slot, 0b0111, 2.0)
    assert node.plan.target(task) == 0b0111
