# SPDX-License-Identifier: Apache-2.0
"""The run of workload 5: its jobs."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduler.reproduction.real.making import make, speeds
from scheduler.reproduction.real.settings import LARGEST, LOAD, LONGEST_REQUEST, NODES, ROLES, SEEDS, SMALL_NODES, TIMES
from workloads.mix import TABLE_2


@pytest.mark.parametrize("seed", SEEDS)
def test_the_jobs_are_of_table_2(seed: int) -> None:
    """Shares of applications within a few points, times and sizes within the spans of their words, load as set."""
    jobs = make(NODES, seed)
    counts = Counter(job.application for job in jobs)
    words = {row.name: row for row in TABLE_2}

    assert jobs == make(NODES, seed)
    assert len(jobs) == NODES.jobs
    assert all(100 * counts[row.name] / len(jobs) == pytest.approx(row.share, abs=3) for row in TABLE_2)
    for job in jobs:
        low, high = TIMES[words[job.application].time]
        assert low <= job.run_time <= high
        assert 1 <= job.nodes <= (SMALL_NODES if words[job.application].nodes == "small" else LARGEST)
        assert job.run_time <= job.requested <= LONGEST_REQUEST
    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    work = sum(job.nodes * job.run_time for job in jobs) / NODES.nodes
    assert jobs[-1].submit * LOAD == pytest.approx(work, rel=0.25)
    assert work == pytest.approx(159_313, rel=0.25)


def test_speeds_rise_to_one() -> None:
    """Every application has all of its speed with all cores, and at least its share with fewer."""
    for application in ROLES:
        mixed, ideal = speeds(application, "mixed"), speeds(application, "ideal")
        assert mixed == sorted(mixed)
        assert mixed[-1] == ideal[-1] == 1
        assert all(some >= plain for some, plain in zip(mixed, ideal, strict=True))
    assert speeds("STREAM", "mixed")[23] == 0.75
