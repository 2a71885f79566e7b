# SPDX-License-Identifier: Apache-2.0
"""When what the policy wants is ordered, and what an answer is taken to confirm."""

from __future__ import annotations

import pytest
from drom.scheduler.live.cluster.dispatch import Dispatch, Resize, Start
from drom.scheduler.live.cluster.jobs import Job, Node, User
from drom.scheduler.live.cluster.placements import ASKED, Placements
from drom.scheduler.live.cluster.spec import Spec

NODE, CORES = Node("n0", 0, 4), 4


class Stage:
    """A node of four cores that job 1 holds."""

    def __init__(self) -> None:
        self.placements = Placements()
        self.dispatch = Dispatch(self.placements)
        mate = job(1)
        mate.shares = {NODE.name: CORES}
        self.placements.restore(mate, [NODE], ASKED)
        (self.mate,) = self.placements.of(1)

    def guest(self, number: int) -> Job:
        """Place a job that waits for two cores."""
        guest = job(number)
        self.placements.place(guest, [(NODE, 2)])
        return guest


def job(number: int) -> Job:
    """Return a job that waits."""
    return Job(number, Spec(("true",), folder="/"), User(0, 0, "root"), 0.0)


@pytest.fixture
def stage() -> Stage:
    """Return a node that a job holds."""
    return Stage()


def test_an_answer_is_to_one_order_only(stage: Stage) -> None:
    """A size is not ordered anew while an order of it is under way: answers do not say to which they are."""
    dispatch, mate = stage.dispatch, stage.mate
    guest = stage.guest(2)
    stage.placements.plan(0, {1: 2, 2: 2})
    assert dispatch.orders(0.0) == [Resize(mate, 2)]
    stage.placements.clear(guest)
    stage.placements.plan(0, {1: 4})
    assert dispatch.orders(0.0) == [Resize(mate, 4)]
    stage.guest(3)
    stage.placements.plan(0, {1: 2, 3: 2})
    assert dispatch.orders(0.0) == []

    stage.placements.resized(mate, 2)
    assert dispatch.orders(0.0) == [Resize(mate, 2)]
    stage.placements.resized(mate, 4)
    assert (stage.placements.held(0), dispatch.orders(0.0)) == (4, [])
    stage.placements.resized(mate, 2)
    assert dispatch.orders(0.0) == [Start(3)]
    assert [(part.state, part.held) for part in stage.placements.of(3)] == [(ASKED, 2)]


def test_an_answer_to_a_later_order_is_one_to_all_before(stage: Stage) -> None:
    """A newer order takes the place of one that is not answered yet."""
    dispatch, mate = stage.dispatch, stage.mate
    for cores in (2, 3):
        stage.placements.plan(0, {1: cores})
        assert dispatch.orders(0.0) == [Resize(mate, cores)]

    stage.placements.resized(mate, 3)

    assert (mate.confirmed, mate.ordered) == (3, [])
    stage.placements.plan(0, {1: 2})
    assert dispatch.orders(0.0) == [Resize(mate, 2)]
