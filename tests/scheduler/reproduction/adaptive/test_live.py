# SPDX-License-Identifier: Apache-2.0
"""The experiment on adaptive jobs with a real scheduler and emulated nodes, with few jobs and in little time."""

from __future__ import annotations

from threading import Event

import pytest
from drom.scheduler.reproduction.adaptive.live import Outcome, Task, levels, lines, run, to_json

from tests.support.commands import drom

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_run_is_bounded_by_its_simulation(adaptive: bool) -> None:
    """Jobs respond no faster than where messages take no time; how much later, only a quiet machine can say."""
    found = run(Task(0.6, 3, adaptive, 12, 60.0), Event())

    assert found.response > 0.97 * found.simulated_response
    assert 0 < found.utilisation <= 1


def test_results_as_lines_and_as_json() -> None:
    """For each load a row for response and one for utilisation, with the difference of the same jobs."""
    runs = {
        Task(0.3, seed, way): Outcome(100.0 - 40 * way + seed, 0.5 + 0.1 * way, 99.0 - 40 * way + seed, 0.5)
        for seed in (2, 1)
        for way in (True, False)
    }

    (_, metric, told), (_, other, used) = levels(runs)
    assert (metric, other) == ("response, s", "utilisation")
    assert told["difference"] == (-40.0, 0.0)
    assert (told["rigid"].mean, told["adaptive, simulated"].mean) == (101.5, 60.5)
    assert used["adaptive"].mean == pytest.approx(0.6)
    assert len(list(lines(runs))) == 3
    assert len(to_json(runs)["runs"]) == 4


def test_a_part_that_is_none() -> None:
    """One sentence, before anything runs."""
    wrong = drom("reproduce", "adaptive", "--live", "--part", "table", code=2)[1]
    assert "'table' is none of changes, residual, cluster" in wrong
    wrong = drom("reproduce", "adaptive", "--part", "changes", code=2)[1]
    assert "simulations have no parts: omit it, or add --live" in wrong
