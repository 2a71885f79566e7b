# SPDX-License-Identifier: Apache-2.0
"""Rules of docs/simulate.md, to the second, that no other test is named after."""

from __future__ import annotations

import pytest
from drom.scheduler.engine.state import EVENTS
from drom.scheduler.interface import MALLEABLE, NEVER, RIGID
from drom.scheduler.simulator.simulation import Machine

from tests.support.schedules import NODES, Row, simulation, starts

pytestmark = pytest.mark.timeout(600)
"""The policies take half a minute to compile, once."""


def sd_starts(rows: list[Row], *choices: str, classes: tuple[int, ...]) -> list[int]:
    """Return when each job starts under SD-Policy with a pass at every event."""
    run = simulation(rows, "sd", Machine(NODES, 4), "interval=1", "resolution=1", "max_slowdown=infinite", *choices)
    run.world.jobs.cls[:] = classes
    run.run()
    started: list[int] = run.world.jobs.start.tolist()
    return started


def test_passes_are_at_seconds_of_the_log() -> None:
    """A job that comes at the second of a pass is in it; the clock is the log's, not that of the first job."""
    rows = [(60, 5, 5, 8), (61, 5, 5, 8)]

    assert starts(rows, "slurm") == [60, 90]
    assert starts(rows, "slurm", None, "phase=1") == [61, 91]


def test_no_pass_without_an_event() -> None:
    """Calls of the policy: two submissions and two ends, and the pass after each that is not at one itself."""
    run = simulation([(0, 45, 45, 8), (10, 300, 300, 8)], "slurm")
    run.run()

    assert run.world.jobs.start.tolist() == [0, 60]
    assert run.world.scalars[EVENTS] == 6


def test_a_reservation_counts_its_nodes_from_the_rounded_second_on() -> None:
    """Also those that another job has until the real one: a job that would run past it finds none left in between."""
    rows = [(0, 120, 120, 5), (0, 60, 60, 6), (0, 600, 600, 1)]

    assert starts(rows, "slurm") == [0, 120, 0]
    assert starts(rows, "slurm", None, "phase=4") == [4, 124, 124]
    assert starts(rows, "slurm", None, "phase=4", "resolution=1") == [4, 124, 4]


def test_a_job_beyond_the_window_holds_no_nodes() -> None:
    """One that starts exactly at its end does."""
    rows = [(0, 100, 100, 5), (0, 9, 9, 8), (0, 200, 200, 3)]

    assert starts(rows, "slurm", None, "resolution=1", "window=100") == [0, 120, 150]
    assert starts(rows, "slurm", None, "resolution=1", "window=99") == [0, 210, 0]


def test_easy_plans_for_the_head_alone() -> None:
    """Jobs behind it have no predicted start: what they may do is told by the head's."""
    run = simulation([(0, 100, 100, 8), (1, 10, 10, 8), (2, 10, 10, 8)], "easy")
    run.run(2)

    assert run.world.jobs.planned.tolist() == [NEVER, 100, NEVER]


def test_later_jobs_of_a_pass_see_the_longer_stay_of_mates() -> None:
    """Its guest has 20 seconds to do, so the third job is planned at 120, and the last may run until then."""
    rows = [(0, 100, 100, 7), (1, 20, 20, 7), (1, 9, 9, 8)]
    classes = (MALLEABLE, MALLEABLE, RIGID, RIGID)

    assert sd_starts([*rows, (1, 119, 119, 1)], classes=classes) == [0, 1, 120, 1]
    assert sd_starts([*rows, (1, 120, 120, 1)], classes=classes) == [0, 1, 120, 129]


def test_a_shared_node_is_free_after_the_last_of_its_jobs() -> None:
    """Here that is the guest, until 81, which may outlast its mate if so chosen."""
    rows = [(0, 30, 30, 7), (1, 40, 40, 7), (1, 9, 9, 8)]
    choices, classes = ("inside=0", "test=0"), (MALLEABLE, MALLEABLE, RIGID, RIGID)

    assert sd_starts([*rows, (1, 80, 80, 1)], *choices, classes=classes)[3] == 1
    assert sd_starts([*rows, (1, 81, 81, 1)], *choices, classes=classes)[3] > 1


def test_jobs_start_on_the_free_nodes_with_the_lowest_numbers() -> None:
    """Guests on all nodes of their mates."""
    rows = [(0, 9, 9, 3), (0, 100, 100, 5), (10, 50, 50, 2), (11, 10, 10, 5)]
    run = simulation(rows, "sd", Machine(NODES, 4), "interval=1")
    run.run()
    first, place = run.world.nodes.first, run.world.nodes.place

    nodes = [place[first[job] : first[job + 1]].tolist() for job in range(4)]
    assert nodes == [[0, 1, 2], [3, 4, 5, 6, 7], [0, 1], [3, 4, 5, 6, 7]]
