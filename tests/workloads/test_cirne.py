# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math

import numpy as np
import pytest
from drom.workloads.cirne import FITS, cirne_like, weekly_weights
from drom.workloads.errors import WorkloadError

from tests.support.job_logs import same

LOGS = {name: cirne_like(50_000, 1024, 3, fit=name, largest=128) for name in FITS}


@pytest.mark.parametrize("name", FITS)
def test_sizes_are_as_fitted(name: str) -> None:
    """Serial jobs and powers of two have the log's shares within 0.01; log2 of the size is about uniform."""
    fit, size = FITS[name], LOGS[name].processors
    parallel = size[size > 1]

    assert float((size == 1).mean()) == pytest.approx(fit.serial, abs=0.01)
    assert float(((parallel & (parallel - 1)) == 0).mean()) == pytest.approx(fit.pow2, abs=0.01)
    assert size.max() == 128
    powers = np.bincount(np.log2(parallel[(parallel & (parallel - 1)) == 0]).astype(np.int64))[1:]
    assert powers / powers.sum() == pytest.approx(np.full(7, 1 / 7), abs=0.01)


@pytest.mark.parametrize("name", FITS)
def test_requests_are_log_uniform(name: str) -> None:
    """The fitted line is the distribution function, but for rounding up to minutes (KS distance below 0.01)."""
    fit, request = FITS[name], LOGS[name].requested_time
    probes = np.arange(1800, fit.request_limits()[1], 600)
    found = np.searchsorted(np.sort(request), probes, side="right") / len(request)

    assert (request % 60 == 0).all()
    assert float(np.abs(found - (fit.slope * np.log2(probes) + fit.intercept)).max()) < 0.01


@pytest.mark.parametrize("name", FITS)
def test_accuracy_is_as_fitted(name: str) -> None:
    """Its mean is the log's within 0.01, as is the share of jobs that use all they asked for."""
    fit, log = FITS[name], LOGS[name]
    accuracy = log.run_time / log.requested_time

    assert float(accuracy.mean()) == pytest.approx(fit.accuracy, abs=0.01)
    assert float((accuracy >= 0.99).mean()) == pytest.approx(fit.full, abs=0.01)
    assert accuracy.max() <= 1


@pytest.mark.parametrize("name", FITS)
def test_accuracy_goes_with_run_time_and_not_with_the_request(name: str) -> None:
    """The finding that the structure rests on: correlations are above 0.4 and below 0.05."""
    log = LOGS[name]
    accuracy = log.run_time / log.requested_time

    assert float(np.corrcoef(accuracy, np.log(log.run_time))[0, 1]) > 0.4
    assert abs(float(np.corrcoef(accuracy, np.log(log.requested_time))[0, 1])) < 0.05


@pytest.mark.parametrize("name", FITS)
def test_arrivals_follow_the_day_and_the_week(name: str) -> None:
    """By hour within 0.5 of the log's weekdays (the curve is smooth, the log is not); weekends have its volume."""
    fit, log = FITS[name], LOGS[name]
    weekday = log.submit // 86400 % 7 < 5
    by_hour = np.bincount(log.submit[weekday] // 3600 % 24, minlength=24) / weekday.sum() * 24
    whole_weeks = log.submit < log.submit[-1] // 604800 * 604800

    assert float(np.abs(by_hour - np.array(fit.hours) / np.mean(fit.hours)).max()) < 0.5
    ratio = (whole_weeks & ~weekday).sum() / 2 / ((whole_weeks & weekday).sum() / 5)
    assert float(ratio) == pytest.approx(fit.weekend, abs=0.05)
    assert weekly_weights(fit).min() >= 0


def test_the_load_is_what_was_asked_for() -> None:
    """Node-seconds over what the machine has from the first to the last arrival, within 3 %."""
    log = cirne_like(20_000, 256, 1, load=0.6)

    assert float((log.processors * log.run_time).sum() / (log.submit[-1] * 256)) == pytest.approx(0.6, rel=0.03)


def test_the_sample_of_the_original_generator_is_alike() -> None:
    """Its 200 jobs of up to 8 nodes have 36 % serial jobs and powers of two only; the fits have a third and more."""
    log = cirne_like(50_000, 10, 1, fit="kth", largest=8)

    assert set(log.processors.tolist()) == set(range(1, 9))
    assert float((log.processors == 1).mean()) == pytest.approx(73 / 200, abs=0.05)


@pytest.mark.parametrize("largest", [1, 2, 3])
def test_small_machines(largest: int) -> None:
    """All sizes that fit occur, and no other."""
    log = cirne_like(2000, 3, 1, largest=largest)

    assert set(log.processors.tolist()) == set(range(1, largest + 1))


def test_the_seed_decides() -> None:
    """The same seed gives the same log."""
    assert same(cirne_like(100, 64, 7), cirne_like(100, 64, 7))
    assert not np.array_equal(cirne_like(100, 64, 7).run_time, cirne_like(100, 64, 8).run_time)


@pytest.mark.parametrize(
    "change", [{"jobs": 0}, {"nodes": 0}, {"largest": 9}, {"load": 0}, {"load": math.nan}, {"fit": "anl"}]
)
def test_impossible_logs(change: dict[str, object]) -> None:
    """One sentence with the fits there are."""
    with pytest.raises(WorkloadError, match="one of the fits ctc, sdsc-sp2, kth"):
        cirne_like(**{"jobs": 5, "nodes": 8, "seed": 1} | change)  # type: ignore[arg-type] # what is wrong is the test
