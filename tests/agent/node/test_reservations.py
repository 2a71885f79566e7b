# SPDX-License-Identifier: Apache-2.0
"""Jobs of a scheduler on a node, in the cases that the machine of `test_node_machine` has found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.agent.errors import Refused
from drom.agent.model.jobs import Arrival, Bind, Reservation
from drom.agent.model.layouts import ANY, Layout
from drom.agent.node.explain import explain
from drom.agent.node.invariants import violations

from tests.support.nodes import make_node

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

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


class TestRanksAtRest:
    """Parts of adaptive jobs of a scheduler: the minimum counts over all nodes, and here it may be none."""

    def reserved(self, cores: int, ranks: int = 4) -> tuple[Node, list[Task]]:
        """Return a node with a part of such a job, all ranks of which have arrived."""
        node = make_node(EIGHT)
        node.reservations.reserve(Reservation(JOB, ANN, cores, ranks, tasks=ranks, rests=True), 0.0)
        return node, [
            node.arrive(Arrival(10 + rank, 1, ANN, JOB, session=1, rank=rank, size=ranks), 0.0)[0]
            for rank in range(ranks)
        ]

    def test_ranks_beyond_the_cores_begin_at_rest(self) -> None:
        """They start with an empty grant, on the CPUs of those that have some."""
        node, tasks = self.reserved(2)

        assert [task.granted.bit_count() for task in tasks] == [1, 1, 0, 0]
        assert [task.started for task in tasks] == [True] * 4
        assert node.grants.state(tasks[3]) == "resting"
        assert node.grants.allowed(tasks[3]) == tasks[0].granted | tasks[1].granted
        assert not violations(node)

    def test_the_agent_binds_a_rank_that_begins_at_rest(self) -> None:
        """A launcher binds itself to the CPUs of its first grant alone; it may come from a node with others."""
        node = make_node(EIGHT)
        node.reservations.reserve(Reservation(JOB, ANN, 1, 2, tasks=2, rests=True), 0.0)
        arrivals = [Arrival(10 + rank, 1, ANN, JOB, session=1, rank=rank, size=2) for rank in (0, 1)]
        (_, runs), (rests, begins) = [node.arrive(arrival, 0.0) for arrival in arrivals]

        assert [action for action in runs if isinstance(action, Bind)] == []
        assert [action for action in begins if isinstance(action, Bind)] == [Bind(rests, rests.epoch, 0)]

    def test_a_part_without_cores_neither_waits_nor_gets_any(self) -> None:
        """Other jobs have all cores of the node, on which its ranks may sleep."""
        node, tasks = self.reserved(0)
        other, _ = node.arrive(Arrival(50, 1, ANN, "b"), 1.0)

        assert [task.granted for task in tasks] == [0] * 4
        assert other.granted == 0xFF
        assert node.grants.allowed(tasks[0]) == 0xFF
        assert (node.jobs[JOB].waits, node.reservations.has_settled(JOB)) == (False, True)
        assert not violations(node)
        said = explain(node, JOB, 2.0)
        assert [text for kind, text in said if kind in ("has", "waits")] == ["It has no CPUs here: all its tasks rest."]

    def test_cores_come_and_go(self) -> None:
        """Ranks that are told to rest keep their cores until they acknowledge: no deadline takes these from them."""
        node, tasks = self.reserved(4)
        for task in tasks:
            node.grants.set_responder(task.slot, task.arrival.pid, 1)
        node.reservations.order(JOB, 0, 1.0)

        assert [task.granted for task in tasks] == [0] * 4
        assert (node.next_deadline(), node.reservations.cores_held(JOB)) == (None, 4)
        assert node.tick(100.0) == []
        node.grants.applied(tasks[0].slot, tasks[0].epoch, 2.0)
        assert node.reservations.cores_held(JOB) == 3

        node.reservations.order(JOB, 3, 3.0)
        assert [task.granted.bit_count() for task in tasks] == [0, 1, 1, 1]
        for task in tasks[1:]:
            node.grants.applied(task.slot, task.epoch, 4.0)
        assert node.reservations.has_settled(JOB)
        node.reservations.order(JOB, 4, 5.0)
        assert tasks[0].granted.bit_count() == 1
        assert not violations(node)

    def test_the_next_agent_leaves_them_at_rest(self) -> None:
        """The job is reserved again with no cores before others are given what is free."""
        node, tasks = self.reserved(4)
        node.reservations.order(JOB, 0, 1.0)
        for task in tasks:
            node.grants.applied(task.slot, task.epoch, 2.0)

        other = make_node(EIGHT)
        described = replace(node.jobs[JOB], ranks={}, targets={}, cores=0, hold=None, rests=False)
        wanted = Reservation(JOB, ANN, 0, 4, tasks=4, rests=True)
        other.adopt([(task, described) for task in tasks], {}, node.plan.arrivals, 3.0, [wanted])

        assert [task.granted for task in tasks] == [0] * 4
        assert (other.jobs[JOB].waits, other.jobs[JOB].hold) == (False, 0)
        assert not violations(other)

    def test_a_rank_that_had_not_begun_rests_under_the_next_agent(self) -> None:
        """It stays in its job: the agent died before its first grant. Now others keep all CPUs busy."""
        node, tasks = self.reserved(2)
        tasks[3].grants.clear()

        other = make_node(EIGHT)
        other.set_usable_cpus(0, 2.0, busy=0xFF)
        described = replace(node.jobs[JOB], ranks={}, targets={}, cores=0, rests=False)
        wanted = Reservation(JOB, ANN, 2, 4, tasks=4, rests=True)
        other.adopt([(task, described) for task in tasks], {}, node.plan.arrivals, 3.0, [wanted])

        assert list(other.jobs) == [JOB]
        assert [task.started for task in tasks] == [True] * 4
        assert other.grants.state(tasks[3]) == "resting"
        assert not violations(other)

    @pytest.mark.parametrize("cores", [-1, 5])
    def test_orders_are_within_its_ranks(self, cores: int) -> None:
        """It has no more cores than it was reserved for, and no fewer than none."""
        node, _ = self.reserved(2)

        with pytest.raises(Refused, match=rf"^job {JOB} can have 0 to 4 cores, not {cores}\.$"):
            node.reservations.order(JOB, cores, 1.0)
