# SPDX-License-Identifier: Apache-2.0
"""What an agent measures of its jobs: rates by size, from what programs say, and from nothing else."""

from __future__ import annotations

import pytest
from drom.agent.ipc.mailboxes import MailboxState
from drom.agent.model.jobs import Arrival, Reservation
from drom.agent.observe.job_rates import ENOUGH, MEMORY, MOST_SIZES, Count, RateMonitor, Rates, RateSample, counted
from hypothesis import given
from hypothesis import strategies as st

from dromlib import layout
from tests.support.nodes import MACHINES, make_node

LIBOMP, LIBGOMP, MPI, PINNED = (
    1 << layout.ENUMS["POINTS"].index(name) for name in ("libomp", "libgomp", "mpi", "pinned")
)


class TestRates:
    """What an agent keeps of a job."""

    def test_a_rate_is_known_after_some_measurements(self) -> None:
        """Work over seconds, by size, in rising order."""
        rates = Rates()
        for cores, work in ((4, 10), (4, 30), (2, 5)):
            rates.add(cores, 2.0, work)
        assert rates.known() == {}
        rates.add(4, 2.0, 20)
        for _ in range(ENOUGH - 1):
            rates.add(2, 1.0, 5)

        assert rates.known() == {2: 15 / 4, 4: 10.0}
        assert list(rates.known()) == [2, 4]

    @given(st.floats(0.1, 100.0), st.floats(0.1, 100.0))
    def test_what_is_long_ago_counts_less(self, before: float, after: float) -> None:
        """After some minutes at another speed that is the rate."""
        rates = Rates()
        for speed in (before, after):
            for _ in range(int(10 * MEMORY)):
                rates.add(1, 1.0, speed)
        assert rates.known()[1] == pytest.approx(after, abs=0.01 * abs(before - after) + 1e-9)

    def test_sizes_are_bounded(self) -> None:
        """Those measured last are kept."""
        rates = Rates()
        for cores in range(1, 3 * MOST_SIZES):
            for _ in range(ENOUGH):
                rates.add(cores, 1.0, 1)
        assert list(rates.known()) == list(range(2 * MOST_SIZES, 3 * MOST_SIZES))


@pytest.mark.parametrize(
    ("mail", "count"),
    [
        (None, None),
        (MailboxState(1, 5, 7), Count("progress", 7)),
        (MailboxState(1, 5, 7, points=MPI), Count("progress", 7)),
        (MailboxState(1, 5, 0), None),
        (MailboxState(1, 5, 0, points=LIBOMP), Count("regions", 5)),
        (MailboxState(1, 5, 0, points=LIBGOMP | PINNED), Count("regions", 5)),
        (MailboxState(1, 5, 0, points=LIBGOMP | MPI), None),
        (MailboxState(1, 0, 0, points=LIBGOMP), None),
    ],
)
def test_what_tells_how_far_a_program_is(mail: MailboxState | None, count: Count | None) -> None:
    """Its own progress, else the regions of OpenMP; points that a program passes as often as it likes do not."""
    assert counted(mail) == count


class Stage:
    """A node of four cores with a scheduler's job on it, whose program says what the test wants."""

    def __init__(self) -> None:
        self.node = make_node(MACHINES[1])
        self.now = 100.0
        self.mail = MailboxState(0, 0, 0)
        self.node.reservations.reserve(Reservation("drom-1", 1, 4, 4, 1, "malleable", 0), self.now)
        self.node.arrive(Arrival(100, 1, 1, "drom-1", "malleable", 1), self.now)
        (self.task,) = self.node.tasks.values()
        self.node.grants.set_responder(self.task.slot, 100, 1)
        self.settle()
        self.rate_monitor = RateMonitor(self.node, lambda _: self.mail)

    def settle(self) -> None:
        """Let the program apply what it was granted."""
        self.node.grants.in_force({self.task.slot: self.task.epoch}, "applied", self.now)

    def order(self, cores: int) -> None:
        """Have another size ordered."""
        self.node.reservations.order("drom-1", cores, self.now)

    def look(self, progress: int) -> list[RateSample]:
        """Look a second later, when the program is so far."""
        self.now += 1.0
        self.mail = MailboxState(1, 0, progress)
        return self.rate_monitor.look(self.now)


class TestPacing:
    """From mailboxes to rates."""

    def test_rates_by_size_as_a_job_is_resized(self) -> None:
        """Each size has its own; work while CPUs change hands is nobody's."""
        stage = Stage()
        work = iter(range(0, 100_000, 100))
        assert [stage.look(next(work)) for _ in range(3)] == [[], [], []]
        assert [stage.look(next(work)) for _ in range(4)] == [[RateSample("drom-1", 4, 1.0, 100)]] * 4

        stage.order(2)
        assert stage.look(next(work)) == []
        stage.settle()
        for step in range(60, 100):
            stage.look(next(work) + 10_000 * step)

        rates = stage.rate_monitor.rates("drom-1")
        assert list(rates) == [2, 4]
        assert rates[4] == pytest.approx(100.0)
        assert rates[2] == pytest.approx(10_100.0)

    def test_a_program_that_tells_seldom(self) -> None:
        """The clock runs from one step to a later one, so the rate is right however long they take."""
        stage = Stage()
        found = [sample for second in range(1, 60) for sample in stage.look(1 + second // 7)]

        assert {(sample.seconds, sample.work) for sample in found} == {(7.0, 1)}
        assert stage.rate_monitor.rates("drom-1") == {4: pytest.approx(1 / 7)}

    def test_a_program_that_begins_anew(self) -> None:
        """Progress that has fallen is that of another beginning: it counts from there."""
        stage = Stage()
        for progress in (10, 20, 30, 40, 1, 2):
            assert all(sample.work == 10 for sample in stage.look(progress))
        assert stage.look(3) == [RateSample("drom-1", 4, 1.0, 1)]

    def test_looks_are_a_second_apart(self) -> None:
        """However often it is called."""
        stage = Stage()
        for progress in (1, 2, 3):
            stage.look(progress)
        stage.mail = MailboxState(1, 0, 10)
        assert stage.rate_monitor.look(stage.now + 0.5) == []

    def test_a_job_that_is_over_is_forgotten(self) -> None:
        """Its series end with it."""
        stage = Stage()
        for progress in range(1, 10):
            stage.look(progress)
        assert stage.rate_monitor.rates("drom-1")
        stage.node.ended(stage.task.slot, stage.now)
        stage.node.reservations.cancel("drom-1", stage.now)
        stage.look(20)
        assert stage.rate_monitor.rates("drom-1") == {}
