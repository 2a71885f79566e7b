# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from drom.workloads.distributions import gamma_cdf
from drom.workloads.errors import WorkloadError
from drom.workloads.lublin import (
    BATCH,
    INTERACTIVE,
    STREAMS,
    UNTYPED,
    Stream,
    arrivals,
    daily_weights,
    gaps,
    lublin,
    run_times,
    sizes,
)

from tests.support.job_logs import same

NODES = 128
MANY = 100_000


def generator() -> np.random.Generator:
    """Return a generator with a fixed seed."""
    return np.random.default_rng(20030901)


@pytest.mark.parametrize("stream", [UNTYPED, BATCH, INTERACTIVE])
def test_serial_jobs_and_powers_of_two(stream: Stream) -> None:
    """Their shares are the published ones, within 0.005; other sizes are powers of two only by chance."""
    size = sizes(stream, MANY, NODES, generator())
    serial = float((size == 1).mean())
    powers = float(((size & (size - 1)) == 0).mean())

    assert serial == pytest.approx(stream.p_serial, abs=0.02 if stream is UNTYPED else 0.005)
    assert powers > stream.p_serial + stream.p_pow2 - 0.005
    assert 1 <= size.min() <= size.max() <= NODES


def test_sizes_are_two_stage_uniform() -> None:
    """Of the jobs of no chosen kind the share below 2^med is p, and each stage is uniform (KS distance below 0.01)."""
    free = Stream(**{field: getattr(UNTYPED, field) for field in UNTYPED.__slots__} | {"p_serial": 0.0, "p_pow2": 0.0})
    log2 = np.log2(sizes(free, MANY, 2**20, generator()))
    low, med, hi = free.sizes_for(2**20)
    probes = np.linspace(8, hi, 50)
    expected = np.where(
        probes < med, free.p * (probes - low) / (med - low), free.p + (1 - free.p) * (probes - med) / (hi - med)
    )
    found = np.searchsorted(np.sort(log2), probes, side="right") / MANY

    assert float(np.abs(found - expected).max()) < 0.01


def test_sizes_follow_the_machine() -> None:
    """The largest size is the machine, and the stages keep their distance from it."""
    assert UNTYPED.sizes_for(128) == (0.8, 4.5, 7)
    assert UNTYPED.sizes_for(1024) == (0.8, 7.5, 10)
    assert UNTYPED.sizes_for(1) == (0, 0, 0)
    assert set(sizes(UNTYPED, 1000, 1, generator()).tolist()) == {1}


@pytest.mark.parametrize(("stream", "size"), [(UNTYPED, 1), (UNTYPED, 100), (BATCH, 64), (INTERACTIVE, 8)])
def test_run_times_are_hyper_gamma(stream: Stream, size: int) -> None:
    """The distribution of the logarithm is the published mixture for the size, cut at 12 (KS distance below 0.008)."""
    seconds = run_times(stream, np.full(MANY, size), generator())
    q = min(1.0, max(0.0, stream.pa * size + stream.pb))

    def below(x: float) -> float:
        return q * gamma_cdf(stream.a1, stream.b1, x) + (1 - q) * gamma_cdf(stream.a2, stream.b2, x)

    distances = []
    for probe in range(20, 150_000, 500):
        expected = below(math.log(probe + 0.5)) / below(12)
        distances.append(abs(float((seconds <= probe).mean()) - expected))

    assert max(distances) < 0.008
    assert seconds.min() >= 1
    assert seconds.max() <= math.exp(12) + 1


def test_larger_jobs_run_longer() -> None:
    """The share of short jobs falls with the size."""
    medians = [float(np.median(run_times(UNTYPED, np.full(MANY, size), generator()))) for size in (1, 32, 128)]

    assert all(a < b for a, b in pairwise(medians))


def test_the_daily_cycle() -> None:
    """Half-hours have the published gamma weights: fewest before 5 in the morning, most after noon."""
    weights = daily_weights(UNTYPED)

    assert weights.mean() == pytest.approx(1)
    assert int(weights.argmax()) == 27
    assert 0 <= int(weights.argmin()) <= 10


@pytest.mark.parametrize("stream", [UNTYPED, BATCH, INTERACTIVE])
def test_arrivals_follow_the_cycle(stream: Stream) -> None:
    """The half-hours of the day correlate with the weights above 0.98; the mean gap is right within 10 %.

    Gaps vary so much that arrivals come in bursts, hence no closer bounds; the next test is exact.
    """
    times = arrivals(stream, gaps(stream, MANY, generator()))
    found = np.bincount(times // 1800 % 48, minlength=48) / MANY * 48
    # E[e^g] of a gamma variable cut at 13, by the density e^x x^(a-1) e^(-x/b), itself a gamma density.
    shape, scale = stream.aarr * stream.arar, stream.barr
    whole = (1 - scale) ** -shape * gamma_cdf(shape, scale / (1 - scale), 13) / gamma_cdf(shape, scale, 13)

    assert float(np.corrcoef(found, daily_weights(stream))[0, 1]) > 0.98
    assert float(times[-1] / MANY) == pytest.approx(whole, rel=0.1)
    assert (np.diff(times) >= 0).all()


def test_the_published_algorithm_gives_the_same_arrivals() -> None:
    """Walking half-hour by half-hour, as the authors' program does, agrees with the inverse to the second."""
    random = generator()
    weights = daily_weights(UNTYPED)
    drawn = random.gamma(UNTYPED.aarr * UNTYPED.arar, UNTYPED.barr, 2000)
    assert drawn.max() < 13
    walked, slot, credit = [], 0, 0.0
    for gap in drawn:
        credit += math.exp(gap) / 1800
        while credit >= weights[slot % 48]:
            credit -= weights[slot % 48]
            slot += 1
        walked.append(slot * 1800 + credit / weights[slot % 48] * 1800)

    times = arrivals(UNTYPED, gaps(UNTYPED, 2000, generator()))
    assert np.abs(times - np.array(walked)).max() <= 1


@pytest.mark.parametrize("kind", STREAMS)
def test_a_load_keeps_the_day(kind: str) -> None:
    """The load is met within 3 %, and there are still at least twice as many arrivals by day as by night."""
    log = lublin(20_000, NODES, 1, kind, load=0.7)
    hour = log.submit // 3600 % 24

    assert float((log.allocated * log.run_time).sum() / np.ptp(log.submit) / NODES) == pytest.approx(0.7, rel=0.03)
    assert ((hour >= 9) & (hour < 17)).sum() > 2 * (hour < 8).sum()


def test_the_seed_decides() -> None:
    """The same seed gives the same log, another one another."""
    assert same(lublin(300, 64, 7), lublin(300, 64, 7))
    assert not np.array_equal(lublin(300, 64, 7).run_time, lublin(300, 64, 8).run_time)


@pytest.mark.parametrize("kind", STREAMS)
def test_a_log_of_each_kind(kind: str) -> None:
    """As many jobs as asked for, in order; the two streams have a queue each."""
    log = lublin(500, 64, 1, kind)

    assert len(log) == 500
    assert (np.diff(log.submit) >= 0).all()
    assert set(log.queue.tolist()) == ({0, 1} if kind == "both" else {-1})
    assert log.header_number("MaxProcs") == 64


@pytest.mark.parametrize(("jobs", "nodes", "kind"), [(0, 4, "both"), (4, 0, "both"), (4, 4, "steady")])
def test_impossible_logs(jobs: int, nodes: int, kind: str) -> None:
    """One sentence with the kinds there are."""
    with pytest.raises(WorkloadError, match="one of the kinds untyped, batch, interactive, both"):
        lublin(jobs, nodes, 1, kind)
