# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.scheduler.analysis.metrics import slowdown
from drom.scheduler.analysis.schedule import UNKNOWN, schedule_of
from drom.scheduler.analysis.series import (
    DAY,
    HOUR,
    Span,
    busy_nodes,
    counts_per,
    grid_of,
    means_per,
    period,
    size_names,
    span_of,
    waiting,
)
from drom.scheduler.simulator.simulation import Machine

from tests.support.schedules import Row, simulation

ROWS: list[Row] = [(0, 10, 20, 4), (1, 5, 5, 8), (2, 3, 3, 4), (3, 9, 9, 2)]
"""Under EASY they start at 0, 14, 2 and 5."""


def test_levels_over_time() -> None:
    """Jobs in the queue and nodes at work, means of each interval."""
    run = simulation(ROWS, "easy")
    run.run()
    schedule = schedule_of(run)
    edges = np.array([0.0, 1, 2, 4, 5, 10, 14, 19])

    assert run.world.jobs.start.tolist() == [0, 14, 2, 5]
    assert span_of(schedule) == (0, 19)
    assert waiting(schedule, edges).tolist() == [0, 1, 1.5, 2, 1, 1, 0]
    assert busy_nodes(schedule, edges).tolist() == [4, 4, 8, 8, 6, 2, 8]


def test_levels_of_a_partial_schedule() -> None:
    """Who has not started waits until the end of what is known, who has not ended works until then."""
    run = simulation(ROWS, "easy")
    run.run(until=5)
    schedule = schedule_of(run)

    assert waiting(schedule, np.array([0.0, 3, 5])).tolist() == [2 / 3, 2]
    assert busy_nodes(schedule, np.array([0.0, 2, 5])).tolist() == [4, 8]


def test_shared_nodes_count_once(sharing: str) -> None:
    """A guest on half of both nodes, and the mate that it slows down, are together at work on two nodes."""
    run = simulation([(0, 6000, 9000, 2), (1800, 1200, 1200, 2)], sharing, Machine(2, 48))
    run.run()
    schedule = schedule_of(run)

    assert busy_nodes(schedule, np.array([0.0, 7200])).tolist() == [2]


def test_periods() -> None:
    """Days of a long span, hours of a short one; what has none is not a number."""
    span = Span(100, 100 + 5 * DAY)
    times = np.array([100, 99 + DAY, 100 + DAY, 100 + 3 * DAY])

    assert (period(span), period(Span(0, DAY))) == (DAY, HOUR)
    assert counts_per(DAY, span, times).tolist() == [2, 1, 0, 1, 0, 0]
    assert means_per(DAY, span, times, np.array([1.0, 2, 5, 7])).tolist()[:2] == [1.5, 5]
    assert np.isnan(means_per(DAY, span, times, np.ones(4))).tolist() == [False, False, True, False, True, True]


def test_means_by_size_and_run_time() -> None:
    """Sizes up to a power of two, run times up to a minute and so on; both ends belong to their class."""
    run = simulation([(0, 60, 60, 1), (0, 61, 61, 3), (0, 61, 61, 4), (0, 90_000, 90_000, 8)], "fcfs", Machine(16))
    run.run()
    schedule = schedule_of(run)
    grid = grid_of(schedule, np.array([1.0, 2, 4, 8]), schedule.table["end"] != UNKNOWN)
    known = {(int(row), int(column)): float(grid.means[row, column]) for row, column in np.argwhere(grid.jobs)}

    assert known == {(0, 0): 1.0, (2, 1): 3.0, (3, 6): 8.0}
    assert grid.sizes == ("1", "2", "3-4", "5-8")
    assert grid.times == ("1 min", "10 min", "1 h", "4 h", "12 h", "1 d", "over 1 d")
    assert np.isnan(grid.means).sum() == grid.means.size - 3
    assert slowdown(schedule.table).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("count", "names"), [(1, ("1",)), (2, ("1", "2")), (4, ("1", "2", "3-4", "5-8"))])
def test_names_of_sizes(count: int, names: tuple[str, ...]) -> None:
    """As many as there are."""
    assert size_names(count) == names
