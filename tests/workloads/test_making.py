# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drom.workloads.cleaning import Machine, clean
from drom.workloads.errors import WorkloadError
from drom.workloads.making import MODELS, SAMPLE, Recipe, make

from tests.support.job_logs import same


@pytest.mark.parametrize("model", MODELS)
def test_what_is_made_is_clean(model: str) -> None:
    """Every job fits the machine and has all that a simulator needs; the same recipe gives the same jobs."""
    recipe = Recipe(model, jobs=300, nodes=32, cores=4, load=0.7)
    made = make(recipe)
    _, report = clean(made, machine=Machine(32, 4))

    assert (len(made), report.findings) == (300, ())
    assert same(made, make(recipe))


def test_jobs_have_whole_nodes() -> None:
    """With cores per node, sizes are multiples of it and the header counts cores."""
    nodes = make(Recipe(jobs=100, nodes=32))
    cores = make(Recipe(jobs=100, nodes=32, cores=48))

    assert (nodes.processors * 48).tolist() == cores.processors.tolist()
    assert (cores.header_number("MaxNodes"), cores.header_number("MaxProcs")) == (32, 1536)


@pytest.mark.parametrize("model", MODELS)
def test_estimates_can_be_exact(model: str) -> None:
    """As in the paper's second workload: the same jobs, the request is the run time."""
    made = make(Recipe(model, jobs=200, estimates="exact"))

    assert made.requested_time.tolist() == made.run_time.tolist() == make(Recipe(model, jobs=200)).run_time.tolist()


@pytest.mark.parametrize("kind", ["batch", "both"])
def test_a_few_long_jobs_have_requests(kind: str) -> None:
    """Whatever the seed: a model of thousands of requests has few long ones for twenty jobs."""
    for seed in range(20):
        made = make(Recipe(jobs=20, kind=kind, seed=seed))

        assert (made.requested_time >= made.run_time).all()


def test_the_sample_is_small_and_busy() -> None:
    """200 jobs, of which some must wait: the load is 0.9 within 5 %."""
    sample = make(SAMPLE)
    load = float((sample.processors * sample.run_time).sum() / np.ptp(sample.submit) / 64)

    assert len(sample) == 200
    assert load == pytest.approx(0.9, rel=0.05)


def test_a_mix_can_be_added() -> None:
    """Executables are the applications of the paper."""
    assert set(make(replace(SAMPLE, mix=True)).executable.tolist()) <= {1, 2, 3, 4, 5}
    assert set(make(SAMPLE).executable.tolist()) == {-1}


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        (Recipe(largest=4), "largest is for the model cirne-like: omit it with lublin."),
        (Recipe("lomonosov", fit="kth"), "fit is for the model cirne-like: omit it with lomonosov."),
        (Recipe("cirne-like", kind="batch"), "kind is for the model lublin: omit it with cirne-like."),
        (Recipe(accuracy=0.3), "accuracy is for the model lomonosov: omit it with lublin."),
    ],
)
def test_what_another_model_is_told(recipe: Recipe, sentence: str) -> None:
    """Refused, not passed over."""
    with pytest.raises(WorkloadError) as raised:
        make(recipe)

    assert str(raised.value) == sentence


@pytest.mark.parametrize("recipe", [Recipe("downey"), Recipe(estimates="none")])
def test_impossible_recipes(recipe: Recipe) -> None:
    """The sentence lists what there is."""
    with pytest.raises(
        WorkloadError, match="choose a model of lublin, cirne-like, lomonosov and estimates of model, e"
    ):
        make(recipe)
