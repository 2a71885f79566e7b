# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.observe import cpu_seconds
from drom.agent.observe.cpu_seconds import TICK, Allocated, Busy, Job

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def times(*looks: dict[int, tuple[int, int]]) -> Callable[[], dict[int, tuple[int, int]]]:
    """Return a clock that shows these busy and total ticks one after the other."""
    left = list(looks)
    return lambda: left.pop(0)


class TestBusy:
    """Seconds that CPUs were busy or idle."""

    def test_a_reader_takes_nothing_from_another(self) -> None:
        """Counters only grow: the difference of any two readings is what happened in between."""
        busy = Busy(times({0: (10, 100)}, {0: (60, 200)}, {0: (60, 200)}, {0: (100, 300)}))
        readings = [busy.read({0: 0b1})[0] for _ in range(3)]

        assert readings == [(50 * TICK, 50 * TICK), (50 * TICK, 50 * TICK), (90 * TICK, 110 * TICK)]

    def test_cpus_count_under_their_key(self) -> None:
        """CPUs that no key has, or that are not there, do not count."""
        busy = Busy(times(dict.fromkeys(range(3), (0, 0)), {0: (5, 10), 1: (10, 10), 2: (10, 10)}))

        assert busy.read({0: 0b11, 7: 0b1000}) == {0: (15 * TICK, 5 * TICK), 7: (0.0, 0.0)}

    def test_a_counter_does_not_fall_when_a_cpu_goes(self) -> None:
        """Prometheus takes a fall for a restart; ticks that run backwards, or of a new CPU, add nothing."""
        looks = [
            {0: (50, 100), 1: (50, 100)},
            {0: (60, 120), 1: (60, 120)},
            {0: (59, 130)},
            {0: (69, 150), 1: (99, 999)},
        ]
        busy = Busy(times(*looks))
        readings = [busy.read({0: 0b11})[0] for _ in range(3)]

        assert readings[0] == (20 * TICK, 20 * TICK)
        assert readings[1] == (20 * TICK, 31 * TICK)
        assert readings[2] == (30 * TICK, 41 * TICK)

    def test_the_kernel_is_read(self) -> None:
        """On this machine time passes on CPU 0, busy or idle."""
        busy = Busy()
        first = last = busy.read({0: 1})[0]
        while sum(last) == sum(first):
            last = busy.read({0: 1})[0]

        assert all(now >= before for now, before in zip(last, first, strict=True))


class TestAllocated:
    """CPU seconds of users and jobs."""

    def test_cpus_count_for_as_long_as_they_are_had(self) -> None:
        """Two tasks of a job count together, and each change from when it is."""
        allocated = Allocated()
        allocated.has(0, "a", 7, 2, 100.0)
        allocated.has(1, "a", 7, 1, 110.0)
        allocated.has(0, "a", 7, 4, 120.0)

        assert allocated.jobs(130.0) == {"a": Job(7, 20 * 2 + 10 * 4 + 20 * 1)}
        assert allocated.users(130.0) == {7: 100.0}

    def test_a_job_goes_and_its_user_stays(self) -> None:
        """What a job had is its user's for good; one of the same name begins anew."""
        allocated = Allocated()
        allocated.has(0, "a", 7, 2, 0.0)
        allocated.has(1, "a", 7, 1, 0.0)
        allocated.has(0, "a", 7, 0, 10.0)
        assert allocated.jobs(10.0) == {"a": Job(7, 30.0)}
        allocated.has(1, "a", 7, 0, 10.0)
        assert allocated.jobs(20.0) == {}

        allocated.has(5, "a", 8, 1, 20.0)
        assert allocated.jobs(21.0) == {"a": Job(8, 1.0)}
        assert allocated.users(21.0) == {7: 30.0, 8: 1.0}

    def test_users_without_end_are_counted_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A user who has thousands of user ids cannot fill the memory of agent or Prometheus."""
        monkeypatch.setattr(cpu_seconds, "MOST_USERS", 2)
        allocated = Allocated()
        for uid in range(5):
            allocated.has(uid, f"job{uid}", uid, 1, 0.0)
        allocated.has(1, "job1", 1, 0, 10.0)
        allocated.has(4, "job4", 4, 0, 10.0)

        assert allocated.users(20.0) == {0: 20.0, 1: 10.0, None: 50.0}
