# SPDX-License-Identifier: Apache-2.0
"""Gap filling on real nodes: the figures of a history, and a run with fillers that save themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.execution.protocol import PROGRAM
from drom.scheduler.reproduction.gap_filling import live
from drom.scheduler.reproduction.gap_filling.live import (
    NODES,
    SLOT,
    TICK,
    LiveResult,
    LiveRow,
    RegularJob,
    Stay,
    jobs_of,
)
from drom.scheduler.reproduction.gap_filling.live_table import lines, to_json

if TYPE_CHECKING:
    from pathlib import Path

REGULAR = [("placed", 10.0, {"shares": {"n1": 1}}), ("started", 12.5, {}), ("completed", 20.0, {})]
FILLER = [
    ("placed", 0.0, {"shares": {"n1": 1}}),
    ("started", 1.0, {}),
    ("saving", 10.0, {}),
    ("saved", 12.0, {"node": "n1", "seconds": 2.0, "bytes": 7}),
    ("requeued", 12.0, {}),
    ("placed", 13.0, {"shares": {"n2": 1}}),
    ("started", 16.0, {}),
]
HISTORY = {
    "jobs": [
        {"job": 1, "saving": "", "submitted": 9.0, "ended": 20.0},
        {"job": 2, "saving": "container", "submitted": 0.0, "ended": None},
    ],
    "entries": [
        {"job": number, "at": at, "what": what, "detail": detail}
        for number, events in ((1, REGULAR), (2, FILLER))
        for what, at, detail in events
    ],
}


def test_the_figures_of_a_run_are_those_of_its_history() -> None:
    """Regular jobs have their nodes from their start on, fillers from the decision until they have left."""
    row = live._row("B", HISTORY, HISTORY, (0.0, 30.0), 100)

    whole = NODES * 30.0
    assert row.regular == 7.5 / whole
    assert row.load == (7.5 + 12.0 + 17.0) / whole
    assert row.gain == 100 * TICK / whole
    assert row.filled == 0
    assert (row.responses, row.delayed, row.delay) == ((11.0,), 1, 2.5)
    assert (row.saves, row.moves, row.save_s, row.restore_s) == (1, 1, 2.0, 3.0)


def test_slots_count_that_no_regular_job_has() -> None:
    """A regular job has a slot to its end: what fillers have of its rest is not counted, nor what is no whole slot."""
    regular = [Stay("n1", 2 * SLOT, 2.5 * SLOT)]
    fillers = [Stay("n2", 1.1 * SLOT, 2.9 * SLOT), Stay("n1", 2.6 * SLOT, 2.9 * SLOT), Stay("n1", 3 * SLOT, math.inf)]
    window = (1.5 * SLOT, 4.5 * SLOT)

    assert live._filled(regular, fillers, window) == pytest.approx((0.9 + 1.0) / (2 * NODES - 1))
    assert live._filled([Stay(f"n{one}", 0, math.inf) for one in range(NODES)], [], window) == 0


def test_the_same_seed_gives_the_same_jobs() -> None:
    """They fit on the nodes, end before their limits, and come about as fast as they are to."""
    jobs = jobs_of(7, 3000)

    assert jobs == jobs_of(7, 3000)
    assert jobs != jobs_of(8, 3000)
    assert all(1 <= job.nodes <= NODES and job.run_time < job.requested for job in jobs)
    offered = sum(job.run_time * job.nodes for job in jobs) / (NODES * 3000)
    assert offered == pytest.approx(live.LOAD, rel=0.25)


def test_the_bound_of_the_paper_is_beside_the_gain() -> None:
    """With the measured times and the measured efficiency."""
    rows = [LiveRow(name, 0.8, 0.9, 0.7, 0.1, (5.0, 7.0), 0, 0.5, 3, 1, 6.0, 3.0) for name in live.RUNS]
    rows[1] = rows[1]._replace(responses=(6.0, 8.0))
    found = LiveResult(rows, "container", 0.9)

    text = "\n".join(lines(found, 240))
    assert "the paper's bound, idle (1 - t) c: 0.153" in text
    assert "the gain that was measured: 0.100" in text
    assert "longer responses under B, job by job: +1.00 s ± 0.00 s" in text
    assert "longer responses under A, job by job: +0.00 s ± 0.00 s" in text
    told = to_json(found, 1, 240)
    assert [run["name"] for run in told["runs"]] == ["none", "B", "slots", "A"]


@pytest.mark.system
@pytest.mark.timeout(600)
def test_fillers_give_way_to_a_regular_job_on_real_nodes(tmp_path: Path) -> None:
    """All nodes are at work before and after, and the fillers that had to go have been saved."""
    jobs: list[Any] = [RegularJob(3.0, 2.0, 60, NODES), RegularJob(9.0, 1.0, 60, 1)]
    row = live._run(tmp_path, "B", (), jobs, PROGRAM)

    assert row.saves >= 1
    assert row.gain > 0
    assert row.regular > 0
