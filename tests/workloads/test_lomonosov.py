# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.distributions import DAY, HOUR
from drom.workloads.errors import WorkloadError
from drom.workloads.lomonosov import MINUTE, MINUTES, ROUND_S, SLOTS, LogNormal, lomonosov, requests

from tests.support.job_logs import same

MANY = 400_000
RUNS = np.array([50, 60, 61, 9 * HOUR, 12 * DAY, 15 * DAY])


def generator() -> np.random.Generator:
    """Return a generator with a fixed seed."""
    return np.random.default_rng(20180910)


@pytest.mark.parametrize(("model", "mean", "deviation"), [(SLOTS, 7.5, 16.7), (MINUTES, 255, 1204)])
def test_moments_are_the_published_ones(model: LogNormal, mean: float, deviation: float) -> None:
    """Mean and standard deviation of the truncated distributions exactly; of what is drawn within 2 and 3 %."""
    drawn = model.draw(MANY, model.most, generator())

    assert model.moments() == pytest.approx((mean, deviation), rel=1e-6)
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert drawn.std() == pytest.approx(deviation, rel=0.03)
    assert (drawn.min(), drawn.max() <= model.most) == (1, True)


def test_twenty_round_values() -> None:
    """Those of the paper: six of minutes, six of hours, eight of days."""
    days = [value / DAY for value in ROUND_S[12:]]

    assert [value // MINUTE for value in ROUND_S[:6]] == [1, 2, 5, 10, 20, 30]
    assert [value // HOUR for value in ROUND_S[6:12]] == [1, 2, 3, 6, 8, 12]
    assert days == [1, 1.5, 2, 3, 5, 7, 10, 15]


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 0.5, 1.0])
def test_requests(accuracy: float) -> None:
    """The run time with p, the next round value with p(1 - p), the one after it with (1 - p)^2."""
    run = 61
    asked = requests(np.full(MANY, run), accuracy, generator())
    shares = [float((asked == value).mean()) for value in (run, 2 * MINUTE, 5 * MINUTE)]

    assert shares == pytest.approx([accuracy, accuracy * (1 - accuracy), (1 - accuracy) ** 2], abs=0.003)
    assert sum(shares) == pytest.approx(1)


def test_round_values_from_the_run_time_on() -> None:
    """A round run time is its own next round value; nobody asks for more than 15 days."""
    assert requests(RUNS, 0, generator()).tolist() == [120, 120, 300, DAY, 15 * DAY, 15 * DAY]
    assert requests(RUNS, 1, generator()).tolist() == RUNS.tolist()


def test_a_log() -> None:
    """Whole minutes, jobs that fit a small machine, requests of at least the run time, the load within 3 %."""
    log = lomonosov(20_000, 100, 1, load=0.7)

    assert (log.submit % MINUTE).sum() == (log.run_time % MINUTE).sum() == 0
    assert 1 <= log.allocated.min() <= log.allocated.max() <= 100
    assert (log.requested_time >= log.run_time).all()
    assert float((log.allocated * log.run_time).sum() / np.ptp(log.submit) / 100) == pytest.approx(0.7, rel=0.03)
    assert same(log, lomonosov(20_000, 100, 1, load=0.7))


@pytest.mark.parametrize(
    ("jobs", "nodes", "accuracy", "load"),
    [(0, 4, 0.5, 1), (4, 0, 0.5, 1), (4, 4, 1.1, 1), (4, 4, -0.1, 1), (4, 4, 1, 0)],
)
def test_impossible_logs(jobs: int, nodes: int, accuracy: float, load: float) -> None:
    """One sentence with what is needed."""
    with pytest.raises(WorkloadError, match="needs a job, a node, a positive load, an accuracy from 0 to 1"):
        lomonosov(jobs, nodes, 1, accuracy, load)
