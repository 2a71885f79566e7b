# SPDX-License-Identifier: Apache-2.0
"""Adaptive jobs on a node: ranks rest when there are too few cores for all, and return."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.model.jobs import Bind, Demand, Publish
from drom.agent.node.explain import explain

from tests.agent.node.test_node import Stage

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task

MAY_REST = Demand(min_tasks=2)


@pytest.fixture
def stage() -> Stage:
    """Return an empty node of two sockets of four cores."""
    return Stage()


def launch(stage: Stage, ranks: int = 8, demand: Demand = MAY_REST) -> list[Task]:
    """Start a job `a` of ranks that may rest, a core each."""
    tasks = [stage.arrive("a", session=9, rank=rank, size=ranks) for rank in range(ranks)]
    stage.settle()
    stage.take(stage.node.demands_reported({task.slot: demand for task in tasks}, stage.now))
    return tasks


def resting(stage: Stage) -> list[int]:
    """Return the ranks of job `a` that rest."""
    return [task.rank for task in stage.node.jobs["a"].present if stage.node.grants.state(task) == "resting"]


def sentences(stage: Stage) -> str:
    """Return what `drom explain a` says."""
    return " ".join(text for _, text in explain(stage.node, "a", stage.now))


class TestArrival:
    """Jobs that arrive beside an adaptive one."""

    def test_an_arrival_takes_the_cores_of_the_last_ranks(self, stage: Stage) -> None:
        """The job runs on fewer ranks than it has; the first ones keep their cores, and the others get them back."""
        launch(stage)
        before = stage.masks
        other = stage.arrive("b", min_cpus=3, max_cpus=3, uid=2)
        stage.settle()

        assert stage.counts == {"a": 5, "b": 3}
        assert resting(stage) == [5, 6, 7]
        assert {key: mask for key, mask in stage.masks.items() if mask} == {
            **{key: mask for key, mask in before.items() if key in ("a", "a/1", "a/2", "a/3", "a/4")},
            "b": other.granted,
        }

        stage.end(other)
        assert resting(stage) == []
        assert stage.counts == {"a": 8}

    def test_the_reported_minimum_is_kept(self, stage: Stage) -> None:
        """Arrivals that need more than the ranks that may rest can give wait."""
        launch(stage)
        stage.arrive("b", min_cpus=7, max_cpus=7, uid=2)

        assert stage.counts == {"a": 8, "b": 0}
        assert stage.node.jobs["b"].waits_for.startswith("needs at least 7 CPUs")

    def test_a_job_of_which_one_rank_may_not_rest_keeps_a_core_for_each(self, stage: Stage) -> None:
        """A job is adaptive only if all its programs accept that."""
        tasks = launch(stage)
        stage.take(stage.node.demands_reported({tasks[3].slot: Demand()}, stage.now + 2))
        stage.arrive("b", min_cpus=1, max_cpus=1, uid=2)

        assert stage.counts == {"a": 8, "b": 0}

    def test_a_core_is_passed_on_only_after_the_rank_has_left_it(self, stage: Stage) -> None:
        """An empty grant is published first; the arrival starts at its acknowledgement."""
        tasks = launch(stage)
        other = stage.arrive("b", min_cpus=1, max_cpus=1, uid=2)
        (publish,) = [action for action in stage.actions if isinstance(action, Publish)]

        assert (publish.task, publish.mask) == (tasks[7], 0)
        assert stage.node.grants.state(tasks[7]) == "shrinking"
        assert not other.started

        stage.ack(tasks[7])
        assert other.started
        assert stage.node.grants.state(tasks[7]) == "resting"


class TestOrders:
    """Orders for an adaptive job."""

    def test_orders_reach_from_the_minimum_to_all_ranks(self, stage: Stage) -> None:
        """Each number of cores puts as many ranks at rest as it must."""
        launch(stage)
        for cpus, at_rest in ((2, [2, 3, 4, 5, 6, 7]), (5, [5, 6, 7]), (8, [])):
            stage.resize("a", cpus)
            assert resting(stage) == at_rest

    def test_ranks_of_several_cores_rest_only_below_their_minimum(self, stage: Stage) -> None:
        """Two ranks of at least two cores: with seven or four cores both run, with three the second rests."""
        tasks = [stage.arrive("a", session=9, rank=rank, size=2, min_cpus=2) for rank in range(2)]
        stage.settle()
        stage.take(stage.node.demands_reported({task.slot: Demand(min_tasks=1) for task in tasks}, 0.0))
        for cpus, at_rest in ((7, []), (4, []), (3, [1])):
            stage.resize("a", cpus)
            assert resting(stage) == at_rest


class TestFaults:
    """Ranks that do not leave, and programs that end."""

    def test_a_rank_that_does_not_leave_is_bound_after_the_grace_time(self, stage: Stage) -> None:
        """The action has no CPUs: the agent binds the rank to those of its job."""
        tasks = launch(stage)
        stage.arrive("b", min_cpus=1, max_cpus=1, uid=2)
        (bind,) = [action for action in stage.tick(1.5) if isinstance(action, Bind)]

        assert (bind.task, bind.mask) == (tasks[7], 0)
        stage.take(stage.node.grants.bound(tasks[7].slot, bind.epoch, stage.now))
        assert stage.node.grants.allowed(tasks[7]) == stage.node.jobs["a"].granted != 0

    def test_ranks_that_no_longer_may_rest_stay_so_until_cores_are_free(self, stage: Stage) -> None:
        """Programs that end leave the agent one by one: no rank that runs loses its core by that."""
        tasks = launch(stage)
        other = stage.arrive("b", min_cpus=4, max_cpus=4, uid=2)
        stage.settle()
        stage.tick(2.0)
        for task in tasks:
            stage.take(stage.node.responder_left(task.slot, stage.now))

        assert resting(stage) == [4, 5, 6, 7]
        stage.end(other)
        assert resting(stage) == []

    def test_the_end_of_the_last_rank_with_a_core_wakes_another(self, stage: Stage) -> None:
        """A job never has only ranks that rest while cores are free."""
        tasks = launch(stage, 3, Demand(min_tasks=1))
        stage.resize("a", 1)
        stage.end(tasks[0])

        assert len(resting(stage)) < 2
        assert stage.counts["a"] > 0


class TestExplanation:
    """What users are told."""

    def test_ranks_that_rest_are_named(self, stage: Stage) -> None:
        """`drom explain` says which tasks rest, and why they may."""
        launch(stage, 3)
        stage.resize("a", 2)
        said = sentences(stage)

        assert "; task 2 rests." in said
        assert (
            "It says that it can run on 2 of its tasks: the others rest while there are too few CPUs for all." in said
        )
