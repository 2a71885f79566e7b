# SPDX-License-Identifier: Apache-2.0
"""How far the node goes by what programs say that they can use, one rule each. Eight cores of one CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.bench.simulated_day import restarted
from drom.agent.model.jobs import NO_DEMAND, Demand
from drom.agent.policy.demand import PATIENCE

from tests.agent.node.test_policy_rules import arrive, node, waits
from tests.support.nodes import MACHINES

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task

    from tests.agent.node.test_node import Stage

HUGE = 2**32 - 1


def say(stage: Stage, task: Task, least: int = 0, most: int = 0) -> None:
    """Let a program say between how many and how many CPUs it can use, when it is its turn, and everybody follow."""
    stage.now = max(stage.now, task.heeds_from)
    stage.take(stage.node.demands_reported({task.slot: Demand(least, most)}, stage.now))
    stage.settle()


class TestTheMost:
    """A program that says how many CPUs it can use at most has no more."""

    def test_the_rest_is_freed_for_others(self) -> None:
        """What it gives up goes to a job that can use it, and the grants say why."""
        stage = node()
        a, b = arrive(stage, "a"), arrive(stage, "b")
        say(stage, a, most=1)

        assert stage.counts == {"a": 1, "b": 7}
        assert (a.reason, b.reason) == ("wish", "wish")

    def test_the_rest_is_freed_although_nobody_needs_it(self) -> None:
        """Cores are idle at once, and an arrival takes them from nobody."""
        stage = node(sharing_factor=0.25)
        a = arrive(stage, "a")
        say(stage, a, most=2)
        arrive(stage, "b", min_cpus=6)

        assert stage.counts == {"a": 2, "b": 6}

    def test_the_most_bounds_growth(self) -> None:
        """When others end it takes what it can use."""
        stage = node()
        a, b = arrive(stage, "a"), arrive(stage, "b")
        say(stage, a, most=6)
        stage.end(b)

        assert stage.counts == {"a": 6}

    def test_freed_cores_let_a_job_start_that_waits(self) -> None:
        """What it frees goes to who waits before anybody grows."""
        stage = node()
        a = arrive(stage, "a", min_cpus=3, max_cpus=6)
        arrive(stage, "b", min_cpus=2, max_cpus=2)
        arrive(stage, "c", min_cpus=3, max_cpus=3)
        assert waits(stage) == {}
        say(stage, a, most=3)
        arrive(stage, "d", min_cpus=2)

        assert "at least 2 CPUs" in waits(stage)["d"]

    def test_not_below_the_minimum_of_the_launch(self) -> None:
        """A job has what it was launched for."""
        stage = node()
        say(stage, arrive(stage, "a", min_cpus=4), most=1)

        assert stage.counts == {"a": 4}

    def test_whole_cores(self) -> None:
        """Three CPUs on cores of two are two cores, as with --cpus."""
        stage = node(MACHINES[3])
        say(stage, arrive(stage, "a"), most=3)

        assert stage.counts == {"a": 2}

    def test_of_several_tasks_the_largest_counts_for_each(self) -> None:
        """Tasks of a job have equal cores: none gets less than it says it can use, and one that says nothing all."""
        stage = node()
        tasks = [arrive(stage, "a", session=5, rank=rank, size=2) for rank in range(2)]
        say(stage, tasks[0], most=1)
        assert stage.counts == {"a": 8}
        say(stage, tasks[1], most=3)

        assert stage.counts == {"a": 6}


class TestTheLeast:
    """A program that says how many CPUs it needs keeps them when others arrive."""

    def test_arrivals_leave_it_that_many(self) -> None:
        """The program lends the CPUs above its minimum, although its share would be more."""
        stage = node(sharing_factor=1.0)
        say(stage, arrive(stage, "a"), least=6)
        arrive(stage, "b", uid=2)

        assert stage.counts == {"a": 6, "b": 2}

    def test_nobody_waits_for_a_wish(self) -> None:
        """Who cannot start otherwise gets its minimum, whatever others say that they need."""
        stage = node(sharing_factor=1.0)
        say(stage, arrive(stage, "a"), least=HUGE)
        arrive(stage, "b", uid=2)
        assert stage.counts == {"a": 7, "b": 1}
        arrive(stage, "c", uid=3, min_cpus=2)

        assert stage.counts == {"a": 5, "b": 1, "c": 2}

    def test_a_minimum_takes_nothing_from_others(self) -> None:
        """Who has less than it says it needs stays as it is until something comes free."""
        stage = node()
        arrive(stage, "a")
        b = arrive(stage, "b")
        say(stage, b, least=8)

        assert stage.counts == {"a": 4, "b": 4}

    def test_no_more_than_the_job_was_launched_for(self) -> None:
        """Beyond its maximum it can need nothing."""
        stage = node(sharing_factor=1.0)
        say(stage, arrive(stage, "a", max_cpus=3), least=HUGE)

        assert stage.node.plan.view(stage.node.jobs["a"]).keeps == 3

    def test_no_more_than_the_site_lets_a_job_insist_on(self) -> None:
        """What --min may not ask for a wish may not either."""
        stage = node(sharing_factor=1.0, max_min=2)
        say(stage, arrive(stage, "a"), least=8)
        arrive(stage, "b", uid=2)

        assert stage.counts == {"a": 4, "b": 4}

    def test_orders_and_lost_cpus_may_go_below(self) -> None:
        """Orders and lost CPUs override the minimum that a program requests."""
        stage = node()
        say(stage, arrive(stage, "a"), least=8)
        arrive(stage, "b")
        assert stage.counts == {"a": 7, "b": 1}
        stage.resize("a", 3)
        assert stage.counts == {"a": 3, "b": 5}
        stage.resize("a", None)
        stage.take(stage.node.set_usable_cpus(0b1111, stage.now))
        stage.settle()

        assert sum(stage.counts.values()) == 4


class TestAgainAndAgain:
    """Wishes that change."""

    def test_what_it_can_use_again_it_competes_for(self) -> None:
        """The job gets its equal share again, from jobs that have more than theirs."""
        stage = node()
        a, b = arrive(stage, "a"), arrive(stage, "b", uid=2)
        say(stage, a, most=1)
        say(stage, a)

        assert stage.counts == {"a": 4, "b": 4}
        assert b.wish == NO_DEMAND

    def test_a_thousand_a_second_are_one(self) -> None:
        """Between two that count passes a second; then the newest counts, once."""
        stage = node()
        a, b = arrive(stage, "a"), arrive(stage, "b")
        say(stage, a, most=1)
        epochs = (a.epoch, b.epoch)
        for most in [4, 1] * 500 + [3]:
            assert stage.take(stage.node.demands_reported({a.slot: Demand(0, most)}, stage.now)) == []
        assert ((a.epoch, b.epoch), stage.node.next_deadline()) == (epochs, a.heeds_from)
        stage.tick(PATIENCE)
        stage.settle()

        assert stage.counts == {"a": 3, "b": 5}
        assert (a.epoch, b.epoch) == (epochs[0] + 1, epochs[1] + 1)
        assert stage.node.next_deadline() is None

    def test_growth_rests_and_shrinking_does_not(self) -> None:
        """A job that was resized lately hears of a larger wish when it has rested."""
        stage = node(residence=10.0)
        a, b = arrive(stage, "a"), arrive(stage, "b", uid=2)
        stage.tick(20)
        stage.settle()
        say(stage, a, most=1)
        assert stage.counts == {"a": 1, "b": 7}
        stage.tick(5)
        say(stage, a)
        assert (stage.counts["a"], stage.node.next_deadline()) == (1, 30.0)
        stage.tick(5)
        stage.settle()

        assert stage.counts == {"a": 4, "b": 4}
        assert b.wish == NO_DEMAND

    def test_a_responder_that_leaves_takes_its_wish_along(self) -> None:
        """Nobody says any more what the task can use."""
        stage = node()
        a = arrive(stage, "a")
        say(stage, a, most=1)
        stage.tick(PATIENCE)
        stage.take(stage.node.responder_left(a.slot, stage.now))

        assert (a.wish, stage.counts) == (NO_DEMAND, {"a": 8})

    def test_a_new_agent_keeps_it(self) -> None:
        """What counted counts on, and what did not yet is heeded."""
        stage = node()
        a, b = arrive(stage, "a"), arrive(stage, "b")
        say(stage, a, most=2)
        stage.node.demands_reported({b.slot: Demand(0, 5)}, stage.now)
        stage.node, actions = restarted(stage.node, stage.now)
        stage.take(actions)
        stage.settle()

        assert stage.counts == {"a": 2, "b": 5}


class TestWithoutEffect:
    """Wishes that change nothing."""

    @pytest.mark.parametrize(("least", "most"), [(5, 2), (HUGE, 1), (0, HUGE), (0, 8), (1, 9), (HUGE, HUGE)])
    def test_what_cannot_be_or_says_nothing(self, least: int, most: int) -> None:
        """A wish that contradicts itself, and one for more than there is, leaves everything as it is."""
        stage = node()
        a = arrive(stage, "a")
        arrive(stage, "b")
        epoch = a.epoch
        say(stage, a, least, most)

        assert (stage.counts, a.epoch) == ({"a": 4, "b": 4}, epoch)

    @pytest.mark.parametrize("job_class", ["rigid", "moldable"])
    def test_of_a_job_that_does_not_change(self, job_class: str) -> None:
        """Rigid and moldable jobs keep what they have."""
        stage = node()
        say(stage, arrive(stage, "a", job_class=job_class), most=1)

        assert stage.counts == {"a": 8}

    def test_while_an_order_holds(self) -> None:
        """The order counts; the wish does when that is over."""
        stage = node()
        a = arrive(stage, "a")
        stage.resize("a", 5)
        say(stage, a, most=2)
        assert stage.counts == {"a": 5}
        stage.resize("a", None)

        assert stage.counts == {"a": 2}

    def test_on_a_frozen_node_until_it_thaws(self) -> None:
        """A change is planned, and nothing is published."""
        stage = node()
        a = arrive(stage, "a")
        stage.node.freeze(stage.now)
        say(stage, a, most=2)
        assert a.granted.bit_count() == 8
        stage.take(stage.node.thaw(stage.now))
        stage.settle()

        assert a.granted.bit_count() == 2
