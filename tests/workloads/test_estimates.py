# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from drom.workloads.errors import WorkloadError
from drom.workloads.estimates import HOUR, distinct, estimates, maximum_for, tsafrir
from drom.workloads.lublin import lublin
from drom.workloads.swf import read_swf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.job_logs import real_log

RUNS = lublin(20_000, 128, 1).run_time


def popularity(requests: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> list[tuple[int, float]]:
    """Return the different requests and their shares, the most popular first."""
    values, counts = np.unique(requests, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(values[i]), float(counts[i] / counts.sum())) for i in order]


def test_twenty_values_are_most_of_the_requests() -> None:
    """They cover 89 % within 0.2 %; their shares fall as published, the first has 21.7 %, the second 10.3 %."""
    found = popularity(tsafrir(RUNS, 48 * HOUR, 1))
    curve = [14.0491 * np.exp(-0.177531 * rank) + 0.462513 for rank in range(2, 21)]

    assert sum(share for _, share in found[:20]) == pytest.approx(0.89, abs=0.002)
    assert found[0][0] == 48 * HOUR
    assert found[0][1] == pytest.approx((89 - sum(curve)) / 100, abs=0.001)
    assert [share for _, share in found[1:20]] == pytest.approx([percent / 100 for percent in curve], abs=0.0005)


@pytest.mark.parametrize(("jobs", "number"), [(20, 10), (200, 20), (1000, 35), (10_000, 90), (40_000, 215)])
def test_the_number_of_different_requests(jobs: int, number: int) -> None:
    """The published points, and a line between them."""
    assert distinct(jobs) == number


def test_round_values_are_popular() -> None:
    """Every request of the head is a multiple of five minutes."""
    head = [value for value, _ in popularity(tsafrir(RUNS, 48 * HOUR, 1))[:20]]

    assert all(value % 300 == 0 for value in head)
    assert {300, 900, 1800, 3600, 48 * HOUR} <= set(head)


def test_nobody_asks_for_less_than_he_uses() -> None:
    """And nobody for more than the maximum; what is asked for says little about what is used."""
    requests = tsafrir(RUNS, 48 * HOUR, 1)

    assert (requests >= RUNS).all()
    assert requests.max() == 48 * HOUR
    assert 0.05 < float((RUNS / requests).mean()) < 0.5


def test_each_job_draws_among_what_is_long_enough() -> None:
    """Two jobs of the same length have the same chance of each request."""
    firsts = [int(tsafrir(np.array([100, 100, 5000, 50]), 10 * HOUR, seed)[0]) for seed in range(400)]
    others = [int(tsafrir(np.array([100, 100, 5000, 50]), 10 * HOUR, seed)[1]) for seed in range(400)]

    assert np.mean(firsts) == pytest.approx(np.mean(others), rel=0.1)
    assert len(set(firsts)) > 1


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(0, 2**32), st.integers(HOUR, 10**6))
def test_any_short_jobs_get_requests(runs: list[int], seed: int, maximum: int) -> None:
    """Each at least its run time and at most the maximum."""
    requests = tsafrir(np.array(runs), maximum, seed)

    assert (requests >= runs).all()
    assert requests.max() <= maximum


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5000), st.integers(HOUR, 10**6), st.integers(0, 99))
def test_counts_add_up(jobs: int, maximum: int, seed: int) -> None:
    """Every job has one request, every request a job, and none is there twice."""
    values, counts = estimates(jobs, maximum, np.random.default_rng(seed))

    assert counts.sum() == jobs
    assert counts.min() >= 1
    assert len(set(values.tolist())) == len(values)
    assert 0 < values.min() <= values.max() == maximum


def test_a_maximum_in_use() -> None:
    """18 hours, or the next whole day."""
    assert [maximum_for(np.array([h * HOUR])) // HOUR for h in (1, 18, 19, 24, 25)] == [18, 18, 24, 24, 48]


def test_many_long_jobs() -> None:
    """Where the model has too few long requests, those that are too short become the next longer ones of its values."""
    runs = np.array([5 * HOUR] * 12 + [60] * 8)
    requests = tsafrir(runs, 18 * HOUR, 1)
    alike = tsafrir(np.full(20, 60), 18 * HOUR, 1)

    assert tsafrir(np.full(100, 7200), 7200, 1).tolist() == [7200] * 100
    assert (requests >= runs).all()
    assert set(requests.tolist()) <= set(alike.tolist())
    assert (np.sort(requests)[:8] == np.sort(alike)[:8]).all()


def test_requests_that_cannot_be() -> None:
    """A maximum that is too short."""
    with pytest.raises(WorkloadError, match=r"Estimates up to 60 s cannot be: choose at least an hour"):
        tsafrir(np.array([1]), 60, 1)
    with pytest.raises(WorkloadError, match="the longest run, 7201 s"):
        tsafrir(np.array([7201]), 7200, 1)


def test_the_model_resembles_a_log_it_was_made_from() -> None:
    """For the run times of CTC the median request is within a factor of two, as is the mean accuracy."""
    log = read_swf(real_log("CTC-SP2-1996-3.1-cln.swf.gz"))
    runs = np.minimum(log.run_time, 18 * HOUR)
    made = tsafrir(runs, 18 * HOUR, 1)
    known = log.requested_time > 0

    assert 0.5 < float(np.median(made) / np.median(log.requested_time[known])) < 2
    assert 0.5 < float((runs / made).mean() / (runs[known] / log.requested_time[known]).mean()) < 2
