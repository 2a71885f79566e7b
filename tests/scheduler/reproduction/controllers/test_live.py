# SPDX-License-Identifier: Apache-2.0
"""Real schedulers on a real etcd with emulated nodes: a small run, the costs that follow from runs, and their table."""

from __future__ import annotations

import numpy as np
import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.controllers import events, live
from drom.scheduler.reproduction.controllers.experiment import COSTS
from drom.scheduler.reproduction.controllers.live import SINGLE, Measured, Run, Used, cluster, fit, setups
from drom.scheduler.reproduction.controllers.live_table import lines, to_json
from drom.scheduler.reproduction.controllers.model import SMALL, Setup, sizes_of
from drom.scheduler.testbed import etcd

from tests.support.prometheus import tool


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run policies and model as plain Python, which gives the same results and starts at once."""
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setattr(events, "compiled", lambda: events.run)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_two_controllers_run_their_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs end; each turn is a message or two to the store, however many jobs it concerns."""
    tool("etcd", "etcd-server")
    monkeypatch.setattr(live, "IDLE_S", 0.2)
    setup = Setup(2, 3, 4)
    with cluster(setup) as some:
        assert some.latency() > 0
        found = some.run("mine", np.array([1, 3, 2, 1] * 2))

    assert found.sizes == (1, 3, 2, 1) * 2
    assert found.seconds > 0
    assert found.throughput >= 8 / found.seconds
    assert found.used.members >= found.used.leader
    assert 2 < found.used.messages < 12 * 8


def test_without_etcd_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence says what to install."""
    monkeypatch.setattr(etcd, "_path", lambda: None)
    with pytest.raises(SchedulerError, match="install Debian's package etcd-server"):
        live.measure(100, 1)


def test_costs_follow_from_runs() -> None:
    """What does not explain anything costs nothing, and never less."""
    loads = np.array([(2, 50, 50), (40, 50, 50), (100, 50, 1300), (110, 50, 1200)], np.float64)

    assert fit(loads, loads @ [0.001, 0.002, 0.003]) == pytest.approx([0.001, 0.002, 0.003])
    assert fit(loads, loads @ [0.001, -0.0001, 0.003]).min() == 0.0


def test_setups_have_the_same_jobs() -> None:
    """One controller has all nodes and all jobs of the others."""
    one, many = setups(120)
    assert (one.controllers, one.nodes, many.controllers, many.nodes) == (1, 120, 2, 50)
    assert one.jobs == many.controllers * many.jobs


def test_results_as_lines_and_as_json() -> None:
    """A row for each cost, and one for each setup and workload, except for those from which costs follow alone."""
    setup = Setup(1, 50, 50)
    sizes = tuple(sizes_of(SMALL, setup, 1).tolist())
    runs = [
        Run(setup, name, sizes, 0.5, 100.0 + number, 0.001, Used(5, 0.05, 0.1, 0.3, 0.1), 2.0)
        for number, name in enumerate((SINGLE, *["small"] * 3))
    ]
    found = Measured(runs, COSTS, COSTS)
    text = list(lines(found))

    assert text[2].split()[-1] == "1.710"
    assert text[-1].split()[:3] == ["small", "1", "50"]
    assert "102 (101 to 103)" in text[-1]
    assert [one["model"] is None for one in to_json(found, 1)["runs"]] == [True, False, False, False]
