# SPDX-License-Identifier: Apache-2.0
"""Simulated hours of a node, every event looked at, and the book-keeping of such a day."""

from __future__ import annotations

import random
from typing import Any

import pytest
from drom.agent.bench.simulated_day import Accounts, Day, Outcome, Program, first_come, programs
from drom.agent.model.cores import Cores
from drom.agent.node.node import Node
from drom.agent.policy.site_rules import SiteRules

MEMORY = 1 << 30


def program(number: int = 0, at: float = 0.0, **fields: Any) -> Program:
    """Return a program that needs forty core-seconds and can use four cores."""
    asked = {"user": 1, "job_class": "malleable", "tasks": 1, "cores": 4, "least": 1, "work": 40.0, **fields}
    return Program(number, at, **asked)


def sixteen(**options: Any) -> Node:
    """Return a node of two sockets of eight cores."""
    return Node(Cores.of([(n // 8, n // 8, 1 << n) for n in range(16)]), lambda _: None, **options)


RULES = [
    SiteRules(),
    SiteRules(residence=20.0, margin=0.2),
    SiteRules(sharing_factor=1.0, residence=5.0, max_cpus_per_user=9, max_min=6, max_rigid=6),
]


class TestDay:
    """Programs come and go."""

    @pytest.mark.parametrize("rules", RULES, ids=["plain", "rest", "caps"])
    @pytest.mark.parametrize("seed", range(4))
    def test_every_invariant_holds_after_every_event_and_everybody_is_served(self, rules: SiteRules, seed: int) -> None:
        """Under orders, lost cores, deaths and a restart all programs end, all work is done, and the node is empty."""
        drawn = programs(random.Random(seed), 16, seconds=7200.0, memory=MEMORY)
        day = Day(sixteen(rules=rules, memory=MEMORY), drawn, random.Random(seed))
        outcomes = day.run()

        served = [outcome for outcome in outcomes if not outcome.refused]
        assert len(served) > len(drawn) // 2
        assert all(outcome.program.at <= outcome.started <= outcome.ended for outcome in served)
        assert day.book.worked == pytest.approx(sum(outcome.program.work for outcome in served), rel=1e-3)
        assert (day.node.tasks, day.node.jobs, day.node.grants.held) == ({}, {}, 0)

    def test_the_same_seed_is_the_same_day(self) -> None:
        """Nothing depends on anything but the seed."""
        days = [
            Day(sixteen(), programs(random.Random(3), 16, seconds=3600.0), random.Random(3)).run() for _ in range(2)
        ]

        assert days[0] == days[1]

    def test_work_is_conserved_when_cores_are_shared(self) -> None:
        """Two programs that can use all of four cores take as long together as one after the other."""
        node = Node([1, 2, 4, 8], lambda _: None)
        outcomes = Day(node, [program(0), program(1)], random.Random(1), troubled=False).run()

        assert [outcome.ended for outcome in outcomes] == pytest.approx([20.0, 20.0])

    def test_programs_that_obey_late_hold_up_others(self) -> None:
        """A guest starts when its mate has acknowledged, half a second after the order."""
        node = Node([1, 2, 4, 8], lambda _: None)
        drawn = [program(0, latency=0.5), program(1, at=1.0)]
        outcomes = Day(node, drawn, random.Random(1), troubled=False).run()

        assert outcomes[1].started == pytest.approx(1.5)


class TestFirstCome:
    """The baseline."""

    def test_programs_start_in_order_with_all_they_asked_for(self) -> None:
        """One that would fit waits behind one that does not."""
        drawn = [program(0), program(1, 1.0, cores=6), program(2, 2.0, cores=2)]
        outcomes, book = first_come(drawn, 8)

        assert [outcome.started for outcome in outcomes] == [0.0, 10.0, 10.0]
        assert book.worked == pytest.approx(120.0)

    def test_memory_is_waited_for(self) -> None:
        """Two programs that do not fit into memory together run one after the other."""
        outcomes, _ = first_come([program(0, memory=6), program(1, memory=6)], 8, 10)

        assert [outcome.started for outcome in outcomes] == [0.0, 10.0]


class TestBook:
    """What a day adds up to."""

    @pytest.mark.parametrize(("second", "index"), [(2.0, 1.0), (0.0, 0.5), (1.0, 0.9)])
    def test_fairness_is_jains_index(self, second: float, index: float) -> None:
        """Fairness is 1 when all users got the same part of their share, and 1/n when one of n users got all of it."""
        book = Accounts()
        book.enter(10.0, {0: 2.0, 1: second}, [program(0), program(1, user=2)], 4)

        assert book.fairness == pytest.approx(index)

    def test_slowdown_is_bounded(self) -> None:
        """Response over the time alone; below ten seconds counts as ten."""
        assert Outcome(program(work=400.0), 0.0, 150.0).slowdown == pytest.approx(1.5)
        assert Outcome(program(work=4.0), 0.0, 5.0).slowdown == 1.0


def test_a_day_is_as_busy_as_asked() -> None:
    """Over many seeds the work that arrives is the load asked for, and it arrives in order."""
    days = [programs(random.Random(seed), 32) for seed in range(12)]
    work = sum(p.work for drawn in days for p in drawn) / len(days)

    assert 0.4 < work / (32 * 86400.0) < 0.6
    assert all(drawn == sorted(drawn, key=lambda p: p.at) for drawn in days)
