# SPDX-License-Identifier: Apache-2.0
"""DynAVGSD and the passes of SD-Policy are as docs/simulate.md says: another implementation finds equal schedules."""

from __future__ import annotations

import numpy as np
import pytest
from drom.scheduler.simulator.simulation import Machine

from tests.support.reference_sharing import Sharing, simulate
from tests.support.schedules import NODES, Row, jobs_of, simulation

pytestmark = pytest.mark.timeout(600)
"""The policy takes half a minute to compile, once."""

LOGS = 40


def log(seed: int) -> list[Row]:
    """Return a crowded log of some dozens of jobs, many of which come together."""
    random = np.random.default_rng(seed)
    count = int(random.integers(20, 60))
    submit = np.sort(random.integers(0, 6 * count, count) // 4 * 4)
    run = random.integers(1, 60, count)
    requested = run + random.integers(0, 40, count)
    return list(
        zip(submit.tolist(), run.tolist(), requested.tolist(), random.integers(1, 6, count).tolist(), strict=True)
    )


def schedule(rows: list[Row], cores: int, model: str, *choices: str) -> tuple[list[int], list[int]]:
    """Return starts and ends under the simulator."""
    run = simulation(rows, "sd", Machine(NODES, cores, runtime_model=model), "interval=1", *choices)
    run.run()
    return run.world.jobs.start.tolist(), run.world.end.tolist()


@pytest.mark.parametrize("model", ["ideal", "worst"])
@pytest.mark.parametrize(("cores", "factor", "resolution"), [(4, 0.5, 60), (5, 0.4, 1), (4, 0.25, 1), (4, 0.75, 7)])
def test_schedules_are_those_of_the_written_rules(model: str, cores: int, factor: float, resolution: int) -> None:
    """With the mean of running jobs as cut-off, and with fixed ones: starts and ends of every job."""
    choices = (f"sharing_factor={factor}", f"resolution={resolution}")
    for seed in range(LOGS):
        rows = log(seed)
        for name, cutoff in (("dynavgsd", None), ("3", 3.0), ("infinite", float("inf"))):
            rules = Sharing(
                NODES, cores, int(factor * cores + 1e-9), cutoff, ideal=model == "ideal", resolution=resolution
            )
            expected = simulate(jobs_of(rows), rules)
            assert expected == schedule(rows, cores, model, f"max_slowdown={name}", *choices), (seed, name)


def test_a_pass_that_is_not_made_anew_after_a_static_start_has_another_cut_off() -> None:
    """The rule counts: without it schedules under DynAVGSD differ, and those under a fixed cut-off do not."""
    differ = {"dynavgsd": 0, "3": 0}
    for seed in range(LOGS):
        rows = log(seed)
        for name, cutoff in (("dynavgsd", None), ("3", 3.0)):
            rules = Sharing(NODES, 4, 2, cutoff, again=False)
            differ[name] += simulate(jobs_of(rows), rules) != schedule(rows, 4, "worst", f"max_slowdown={name}")
    assert differ["dynavgsd"] > 0
    assert differ["3"] == 0
