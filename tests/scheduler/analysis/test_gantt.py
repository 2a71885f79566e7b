# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.analysis.gantt import (
    GAP,
    GPU_HEIGHT,
    GPUS,
    GUEST,
    ON_CORES,
    SHRUNK,
    WHOLE,
    WITH_GPUS,
    GanttBox,
    Residency,
    Stay,
    bands,
    boxes,
    core_rows,
    parts,
    ranges,
    shared_boxes,
    window_of,
)
from drom.scheduler.analysis.schedule import SharedNode, schedule_of
from drom.scheduler.analysis.series import DAY, Span, span_of
from drom.scheduler.interface import RIGID
from drom.scheduler.simulator.simulation import Machine, Simulation
from hypothesis import given
from hypothesis import strategies as st

from tests.support.schedules import Row, simulation

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints


LEFT = ("interval=1", "max_slowdown=infinite", "stall=0", "memory=0")
"""SD-Policy with a pass at each event, where changes of nodes cost nothing."""


def test_jobs_alone() -> None:
    """A box per run of nodes, cut to the window; who waits has none, who runs has one up to now."""
    run = simulation([(0, 9, 9, 1), (0, 2, 2, 1), (0, 5, 9, 5), (3, 4, 9, 2), (3, 1, 1, 8)], "fcfs")
    run.run(until=5)
    schedule = schedule_of(run)

    assert sorted(boxes(schedule, Span(1, 4))) == [
        (0, 1, 4, 0, 1, WHOLE),
        (1, 1, 2, 1, 2, WHOLE),
        (2, 1, 4, 2, 7, WHOLE),
        (3, 3, 4, 1, 2, WHOLE),
        (3, 3, 4, 7, 8, WHOLE),
    ]
    assert max(box.end for box in boxes(schedule, span_of(schedule))) == 5


def test_a_guest_and_its_mate(sharing: str) -> None:
    """The mate is shrunk while the guest is there, on the node where that is, and whole again."""
    run = simulation([(0, 6000, 9000, 2), (1800, 1200, 1200, 1)], sharing, Machine(2, 48), "share=0.25")
    run.run()
    schedule = schedule_of(run)
    found = boxes(schedule, span_of(schedule))
    guest = next(box for box in found if box.job == 1)

    assert guest == GanttBox(1, 1800, 6600, guest.low, guest.low + 0.25, GUEST)
    assert [box for box in found if box.kind == SHRUNK] == [(0, 1800, 6600, guest.low - 0.75, guest.low, SHRUNK)]
    assert sum((box.end - box.begin) * (box.high - box.low) for box in found) == 2 * int(run.world.end.max())


def test_a_guest_that_became_owner() -> None:
    """Is an owner like any other: shrunk for the next guest, whole without one."""
    stays = [Residency(0, 10, 0, 8), Residency(5, 30, 1, 4), Residency(15, 20, 2, 2)]

    assert list(parts(stays, 8)) == [
        (0, 0, 5, 0, 8, WHOLE),
        (0, 5, 10, 0, 4, SHRUNK),
        (1, 5, 10, 4, 8, GUEST),
        (1, 10, 15, 0, 8, WHOLE),
        (1, 15, 20, 0, 6, SHRUNK),
        (2, 15, 20, 6, 8, GUEST),
        (1, 20, 30, 0, 8, WHOLE),
    ]


def test_parts_are_those_of_the_simulator(sharing: str) -> None:
    """At whatever time it stops: owners, guests, and guests that became owners."""
    random = np.random.default_rng(3)
    rows: list[Row] = []
    for _ in range(40):
        needed = int(random.integers(300, 4000))
        rows.append((int(random.integers(0, 9000)), needed, needed + 100, int(random.integers(1, 3))))
    rows.sort()
    run = simulation(rows, sharing, Machine(16, 48), "share=0.25")
    for until in range(500, 9000, 700):
        run.run(until)
        schedule = schedule_of(run)
        now = Span(run.now, run.now + 1)
        late = schedule._replace(until=run.now + 1)

        assert drawn(boxes(late, now), 16) == shares(run)
    assert run.world.jobs.lent.max() > 0


def drawn(found: list[GanttBox], nodes: int) -> list[dict[int, float]]:
    """Return the cores, of 48, that each job has of each node."""
    cores: list[dict[int, float]] = [{} for _ in range(nodes)]
    for box in found:
        for node in range(int(box.low), max(int(np.ceil(box.high - 1e-9)), int(box.low) + 1)):
            part = min(box.high, node + 1) - max(box.low, node)
            cores[node][box.job] = round(48 * part)
    return cores


def shares(run: Simulation) -> list[dict[int, float]]:
    """Return the same from the simulator."""
    residents: Ints = run.world.nodes.resident
    return [
        {int(job): int(share) for job, share in zip(row, run.world.nodes.share[node], strict=True) if job >= 0}
        for node, row in enumerate(residents)
    ]


def test_what_is_worth_a_chart() -> None:
    """All of a short schedule, the day with most waiting of a long one."""
    short = simulation([(0, 9, 9, 1)], "fcfs")
    short.run()
    rows = [(DAY * day + 600 * i, 500, 500, 8) for day in (0, 1, 3) for i in range(140 if day != 1 else 5)]
    rows += [(DAY + 3000, 40_000, 40_000, 8), *((DAY + 4000, 1, 1, 1) for _ in range(5000))]
    long = simulation(sorted(rows), "fcfs")
    long.run()

    assert window_of(schedule_of(short)) == (0, 9)
    assert window_of(schedule_of(long)) == (DAY, 2 * DAY)


STAYS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 5)).map(
        lambda drawn: Stay(drawn[0], drawn[0] + drawn[1], drawn[2])
    )
)


@given(STAYS, st.integers(0, 12))
def test_no_two_jobs_have_a_row_of_a_node_at_a_time(stays: list[Stay], cores: int) -> None:
    """Each job has as many rows as cores, and there are no more rows than cores of the node, or of jobs at once."""
    rows = [{row for low, high in found for row in range(low, high + 1)} for found in core_rows(stays, cores)]
    at_once = [sum(stay.cores for stay in stays if stay.begin <= at < stay.end) for at in range(61)]
    begun = [sum(stay.cores for stay in stays if stay.begin == at == stay.end) for at in range(61)]

    assert [len(found) for found in rows] == [stay.cores for stay in stays]
    assert all(max(found) < max(cores, *map(sum, zip(at_once, begun, strict=True))) for found in rows)
    for at in range(61):
        there = [row for found, stay in zip(rows, stays, strict=True) if stay.begin <= at < stay.end for row in found]
        assert len(there) == len(set(there))


def test_the_rows_of_a_job_are_adjacent_where_there_are_such() -> None:
    """A job that finds none has the first free ones; one that does not fit has rows after those of the node."""
    stays = [Stay(0, 9, 2), Stay(0, 5, 1), Stay(0, 9, 1), Stay(5, 7, 2), Stay(7, 8, 3), Stay(8, 9, 3)]

    assert core_rows(stays, 6) == [[(0, 1)], [(2, 2)], [(3, 3)], [(4, 5)], [(2, 2), (4, 5)], [(2, 2), (4, 5)]]
    assert core_rows([Stay(0, 9, 2), Stay(3, 4, 2)], 3) == [[(0, 1)], [(2, 3)]]


def test_ranges_of_numbers() -> None:
    """A gap ends a range."""
    assert ranges(np.array([], np.int64)) == []
    assert ranges(np.array([0, 1, 4, 6, 7], np.int64)) == [(0, 1), (4, 4), (6, 7)]


def test_gpus_are_below_the_cores_of_their_node() -> None:
    """A job with GPUs has a box on cores and one on its GPUs, each where its node is in the chart."""
    run = simulation([(0, 9, 9, 2), (0, 9, 9, 1)], "fcfs")
    run.run()
    nodes = (SharedNode("old", 1, 0), SharedNode("gpu", 2, 2))
    runs = np.array([(1, 2), (4, 4), (0, 0)])
    schedule = schedule_of(run)._replace(nodes=3, cores=1, first=np.array([0, 2, 3]), runs=runs, shared=nodes)
    top = 1 + GAP

    assert bands(nodes) == [
        (0, 1, 0, 1),
        (1, 2, top, 1),
        (3, 0, 1, GPU_HEIGHT),
        (3, 2, top + 2, GPU_HEIGHT),
    ]
    assert shared_boxes(schedule, Span(0, 9)) == [
        (0, 0, 9, top, top + 2, WITH_GPUS),
        (0, 0, 9, top + 2 + GPU_HEIGHT, top + 2 + 2 * GPU_HEIGHT, GPUS),
        (1, 0, 9, 0, 1, ON_CORES),
    ]


def test_a_guest_on_nodes_that_its_mate_left() -> None:
    """The guest has the whole height of these nodes, and the mate no box there until it is back."""
    run = simulation([(0, 100, 100, 8), (10, 20, 20, 4)], "sd", Machine(8, 4), *LEFT, least=[4, 4])
    run.world.jobs.cls[1] = RIGID
    run.run()
    schedule = schedule_of(run)
    found = boxes(schedule, span_of(schedule))

    assert sorted(box for box in found if box.job == 1) == [(1, 10, 30, node, node + 1, WHOLE) for node in range(4, 8)]
    assert sorted((box.begin, box.end) for box in found if box.job == 0 and box.low == 4) == [(0, 10), (30, 110)]
    assert sum((box.end - box.begin) * (box.high - box.low) for box in found) == 8 * 110
