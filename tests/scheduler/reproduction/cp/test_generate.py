# SPDX-License-Identifier: Apache-2.0
"""The jobs of the two tests: how they are distributed, and that they stay as they were committed."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import pytest
from drom.scheduler.cp.jobs import table_of
from drom.scheduler.cp.platform import load_platform, parse_platform
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.cp.generate import SEEDS, TESTS, jobs_of

EURORA = load_platform("eurora")


def test_distribution() -> None:
    """Shares of queues and accelerators, ranges of walltimes and units as they are written, over all seeds."""
    test = TESTS[1]
    jobs = [job for seed in SEEDS for job in jobs_of(test, EURORA, seed)]
    queues = Counter(job.queue for job in jobs)
    requests = np.array([job.chunks[0].request for job in jobs])

    assert len(jobs) == 700 * 30
    for number, kind in enumerate(test.kinds):
        walltimes = [job.walltime / 60 for job in jobs if job.queue == number]
        units = [job.chunks[0].units for job in jobs if job.queue == number]
        assert queues[number] / len(jobs) == pytest.approx(kind.share, abs=0.01)
        assert (min(walltimes), max(walltimes)) == (kind.shortest, kind.longest)
        assert np.mean(np.array(walltimes) == kind.longest) == pytest.approx(0.5, abs=0.03)
        assert (min(units), max(units)) == (1, kind.units)
    assert (requests[:, 2] > 0).mean() == pytest.approx(0.4, abs=0.01)
    assert (requests[:, 3] > 0).mean() == pytest.approx(0.2, abs=0.01)
    assert set(requests[:, 0]) == {1, 4, 8, 16}
    assert np.mean([job.run_time == job.walltime for job in jobs]) == pytest.approx(0.2, abs=0.01)
    assert max(job.submit for job in jobs) < test.hours * 3600


def test_jobs_stay_as_they_are() -> None:
    """The jobs of the first seed are those with which the results in the documentation were found."""
    digests = [hashlib.sha256(repr(jobs_of(test, EURORA, 1)).encode()).hexdigest()[:16] for test in TESTS]

    assert digests == ["14988695172fcff4", "32c774a69f249e32"]


def test_every_job_can_run() -> None:
    """All jobs fit on an empty Eurora."""
    for test in TESTS:
        assert len(table_of(jobs_of(test, EURORA, SEEDS[-1]), EURORA).submit) == test.jobs


def test_a_platform_without_the_queues() -> None:
    """They cannot be made for it, which is said."""
    text = 'resources = ["cores"]\n[[group]]\nname = "a"\nnodes = 1\ncores = 4\n'
    platform = parse_platform(text + '[[queue]]\nname = "q"\nexpected_wait_s = 1\nmaximum_wait_s = 1\n', "small.toml")

    with pytest.raises(SchedulerError, match="The jobs of test 1 are for a queue 'debug', which small does not have"):
        jobs_of(TESTS[0], platform, 1)
