# SPDX-License-Identifier: Apache-2.0
"""The order of a queue by shares: what decays, and who is next."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from drom.scheduler.live.cluster.fair_share import Usage, order, usage_of
from hypothesis import given
from hypothesis import strategies as st

DAY = 86400.0


def test_what_was_used_counts_half_after_each_half_life() -> None:
    """Also while it is used: a core that is always busy counts for half-life / ln 2."""
    usage = Usage(7 * DAY, 1.0)
    usage.advance(1.0 + 1e-3 * DAY, [(1, 10)])
    assert usage.of(1) == pytest.approx(10 * 1e-3 * DAY, rel=1e-4)
    usage.advance(1.0 + 7.001 * DAY, [])
    assert usage.of(1) == pytest.approx(5 * 1e-3 * DAY, rel=1e-4)
    for moment in range(8, 400):
        usage.advance(moment * DAY, [(2, 1), (2, 2)])
    assert usage.of(2) == pytest.approx(3 * 7 * DAY / math.log(2))
    assert usage.of(1) == 0.0
    assert usage.total == usage.of(2)


def test_usage_is_read_as_it_was_written() -> None:
    """And what nobody wrote so counts as none."""
    usage = Usage(DAY, 5.0, {7: 100.0})
    assert usage_of(DAY, usage.to_json()).to_json() == usage.to_json()
    for values in ({}, {"at": "x", "used": {}}, {"at": 1.0, "used": 3}, {"at": 1.0, "used": {"a": 1}}):
        assert usage_of(DAY, values).total == 0.0


def one_by_one(priority: list[int], users: list[int], charge: list[int], used: list[int]) -> list[int]:
    """Return the order by its definition: the first of the user who has the least, again and again."""
    has = dict(zip(users, used, strict=True))
    left, found = list(range(len(users))), []
    by_user: dict[int, list[int]] = {}
    for job in sorted(left, key=lambda job: (-priority[job], job)):
        by_user.setdefault(users[job], []).append(job)
    while left:
        heads = [(-priority[jobs[0]], has[user], jobs[0], user) for user, jobs in by_user.items() if jobs]
        *_, job, user = min(heads)
        by_user[user].pop(0)
        has[user] += charge[job]
        found.append(job)
        left.remove(job)
    return found


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 4), st.integers(1, 50)), max_size=40), st.data())
def test_the_order_is_that_of_its_definition(jobs: list[tuple[int, int, int]], data: Any) -> None:
    """Whoever has the least goes first, and has what they ask for from then on."""
    has = data.draw(st.lists(st.integers(0, 100), min_size=5, max_size=5))
    priority, users, charge = ([job[n] for job in jobs] for n in range(3))
    used = [has[user] for user in users]
    found = order(
        np.array(priority, np.int64), np.array(users, np.int64), np.array(charge, float), np.array(used, float)
    )
    assert found.tolist() == one_by_one(priority, users, charge, used)


def test_one_job_of_another_user_does_not_wait_for_ten_thousand() -> None:
    """The job of the other user comes second, or first if that user has used less."""
    users = np.array([1] * 10_000 + [2])
    zeros = np.zeros(len(users))
    found = order(zeros.astype(np.int64), users, zeros + 60.0, zeros)
    assert found[:3].tolist() == [0, 10_000, 1]
    used = np.where(users == 1, 1.0, 0.0)
    assert order(zeros.astype(np.int64), users, zeros + 60.0, used)[0] == 10_000
