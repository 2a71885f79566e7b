# SPDX-License-Identifier: Apache-2.0
"""Free nodes over time, against counting second by second."""

from __future__ import annotations

import numpy as np
from drom.scheduler.interface import NEVER
from drom.scheduler.policies.profile import Profile, cut, earliest, take
from hypothesis import given, settings
from hypothesis import strategies as st

FAR = 40
HOLDS = st.lists(st.tuples(st.integers(-5, 30), st.integers(1, 15), st.integers(1, 3)), max_size=6)


def profile(free: int) -> Profile:
    """Return a profile from 0 on with nothing reserved."""
    made = Profile(np.zeros(40, np.int64), np.zeros(40, np.int64), np.ones(1, np.int64))
    made.free[0] = free
    return made


def level(made: Profile, time: int) -> int:
    """Return the free nodes at a time."""
    size = made.size[0]
    return int(made.free[:size][np.searchsorted(made.times[:size], time, side="right") - 1])


@settings(max_examples=200, deadline=None)
@given(HOLDS, st.integers(1, 8), st.integers(1, 12))
def test_the_earliest_time(holds: list[tuple[int, int, int]], need: int, length: int) -> None:
    """The first second from which all seconds have as many free nodes; reservations add up, also ones already begun."""
    made = profile(8)
    seconds = np.full(2 * FAR, 8)
    for begin, lasts, nodes in holds:
        take(made, begin, begin + lasts, nodes)
        seconds[max(begin, 0) : max(begin + lasts, 0)] -= nodes
    fitting = [time for time in range(FAR + 10) if (seconds[time : time + length] >= need).all()]

    assert [level(made, time) for time in range(FAR)] == seconds[:FAR].tolist()
    assert earliest(made, need, length) == fitting[0]
    assert (np.diff(made.times[: made.size[0]]) > 0).all()


def test_what_is_given_back_leaves_no_trace() -> None:
    """Only steps without a change of level."""
    made = profile(4)
    take(made, 3, 9, 2)
    take(made, 3, 9, -2)

    assert [level(made, time) for time in range(12)] == [4] * 12


def test_no_time_at_all() -> None:
    """For more nodes than there ever are."""
    assert earliest(profile(4), 5, 1) == NEVER


def test_a_step_that_is_there_is_not_made_twice() -> None:
    """A cut at the same time returns the same place."""
    made = profile(4)

    assert (cut(made, 5), cut(made, 5), cut(made, 0), made.size[0]) == (1, 1, 0, 2)
