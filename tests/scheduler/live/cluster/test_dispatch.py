# SPDX-License-Identifier: Apache-2.0
"""When what the policy wants is ordered, and what an answer is taken to confirm."""

from __future__ import annotations

from drom.scheduler.live.cluster.dispatch import Dispatch, Resize, Start


def test_an_answer_is_to_one_order_only() -> None:
    """A size is not ordered anew while an order of it is under way: answers do not say to which they are."""
    dispatch = Dispatch(4)
    dispatch.holds(0, 1, 4)
    dispatch.place(2, {0: 2})
    dispatch.want(0, {1: 2, 2: 2})
    assert dispatch.orders(0.0) == [Resize(0, 1, 2)]
    dispatch.unplace(2)
    dispatch.want(0, {1: 4})
    assert dispatch.orders(0.0) == [Resize(0, 1, 4)]
    dispatch.place(3, {0: 2})
    dispatch.want(0, {1: 2, 3: 2})
    assert dispatch.orders(0.0) == []

    dispatch.applied(0, 1, 2)
    assert dispatch.orders(0.0) == [Resize(0, 1, 2)]
    dispatch.applied(0, 1, 4)
    assert (dispatch.held(0), dispatch.orders(0.0)) == (4, [])
    dispatch.applied(0, 1, 2)
    assert dispatch.orders(0.0) == [Start(3, {0: 2})]


def test_an_answer_to_a_later_order_is_one_to_all_before() -> None:
    """A newer order takes the place of one that is not answered yet."""
    dispatch = Dispatch(4)
    dispatch.holds(0, 1, 4)
    for cores in (2, 3):
        dispatch.want(0, {1: cores})
        assert dispatch.orders(0.0) == [Resize(0, 1, cores)]

    dispatch.applied(0, 1, 3)

    share = dispatch.share(0, 1)
    assert share
    assert (share.confirmed, share.ordered) == (3, [])
    dispatch.want(0, {1: 2})
    assert dispatch.orders(0.0) == [Resize(0, 1, 2)]
