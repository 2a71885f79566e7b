# SPDX-License-Identifier: Apache-2.0
"""What an order would change, told from a copy of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.model.jobs import Arrival
from drom.agent.node.dry_run import PlannedChange, changes

from tests.support.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from drom.agent.node.node import Node


@pytest.fixture
def node() -> Node:
    """Return four cores: a and b have two each, b's are a's."""
    node = make_node(MACHINES[1])
    node.arrive(Arrival(100, 1, 1, "a"), 0.0)
    node.arrive(Arrival(200, 1, 2, "b", restore=0b1111), 1.0)
    node.grants.bound(0, node.tasks[0].epoch, 1.0)
    return node


def test_an_order_and_whom_it_concerns(node: Node) -> None:
    """The job of the order comes first, then who makes room for it."""
    after = node.copy()
    after.resize("b", 3, 2.0, by=0)

    assert changes(node, after, "b") == [
        PlannedChange("b", 0, 200, "grow", 0b1100, 0b1110, "the order"),
        PlannedChange("a", 0, 100, "shrink", 0b0011, 0b0001, "makes room for b"),
    ]


def test_what_comes_free_goes_to_others(node: Node) -> None:
    """Who grows because the order leaves cores is told so."""
    after = node.copy()
    after.resize("b", 1, 2.0, by=0)
    first, second = changes(node, after, "b")

    assert (first.job, first.action, first.why) == ("b", "shrink", "the order")
    assert (second.job, second.action, second.why) == ("a", "grow", "takes back what it owns")


def test_a_release(node: Node) -> None:
    """The released goes where it came from, its cores to their owner."""
    after = node.copy()
    after.release(1, 2.0, 0)

    assert changes(node, after, "b") == [
        PlannedChange("b", 0, 200, "release", 0b1100, 0b1111, "is managed no longer"),
        PlannedChange("a", 0, 100, "grow", 0b0011, 0b1111, "takes back what it owns"),
    ]


def test_an_arrival_that_would_wait(node: Node) -> None:
    """Who would wait is told for what, and stays where it is."""
    after = node.copy()
    after.arrive(Arrival(300, 1, 3, "c", job_class="rigid", max_cpus=4, restore=0b11, attached=True), 2.0)

    assert changes(node, after, "c") == [
        PlannedChange("c", 0, 300, "wait", 0b11, 0, "needs at least 4 CPUs: 0 free, running jobs may lend 2.")
    ]


def test_nothing(node: Node) -> None:
    """Where nothing would change there is nothing to tell."""
    after = node.copy()
    after.resize("a", 2, 2.0, by=0)

    assert changes(node, after, "a") == []
    assert node.jobs["a"].hold is None


def test_a_copy_shares_nothing_that_changes(node: Node) -> None:
    """Whatever happens to a copy, tasks, jobs and plan stay as they were; values that never change are the same."""
    before = repr((node.tasks, node.jobs, vars(node.plan)))
    after = node.copy()
    assert repr((after.tasks, after.jobs)) == repr((node.tasks, node.jobs))
    assert after.jobs["a"].ranks[0] is after.tasks[0]
    assert after.tasks[0].arrival is node.tasks[0].arrival
    after.resize("b", 1, 2.0, by=0)
    after.arrive(Arrival(300, 1, 3, "c"), 3.0)
    after.release(0, 4.0, 0)

    assert repr((node.tasks, node.jobs, vars(node.plan))).replace(repr(after.plan.ledger), "") == before


def test_as_json() -> None:
    """CPU sets are lists."""
    assert PlannedChange("a", 0, 100, "move", 0b11, 0b110, "the order").to_json() == {
        "job": "a", "task": 0, "pid": 100, "action": "move", "from": "0-1", "to": "1-2", "why": "the order",
    }  # fmt: skip
