# SPDX-License-Identifier: Apache-2.0
"""Real schedulers on a real etcd with emulated nodes: a small run, the costs that follow from runs, and their table."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.controllers import events, live
from drom.scheduler.reproduction.controllers.experiment import COSTS
from drom.scheduler.reproduction.controllers.live import (
    SINGLE,
    Conditions,
    Measured,
    Place,
    Run,
    Used,
    _shared_out,
    cluster,
    fit,
    setups,
)
from drom.scheduler.reproduction.controllers.live_table import lines, to_json
from drom.scheduler.reproduction.controllers.model import SMALL, Setup, sizes_of
from drom.scheduler.testbed import etcd

from tests.support.prometheus import tool

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints
    from drom.scheduler.reproduction.controllers.model import Result
    from drom.scheduler.testbed.local import Client


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
        total = some._used()

    assert found.sizes == (1, 3, 2, 1) * 2
    assert found.seconds > 0
    assert found.throughput >= 8 / found.seconds
    assert total.members >= total.leader > 0
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
    """One controller has all nodes and as many jobs as the others together; jobs of the others fit in their nodes."""

    class Recorded:
        """Records the jobs that it is to run."""

        def __init__(self) -> None:
            self.runs: list[tuple[str, int, int]] = []

        def run(self, name: str, sizes: Ints) -> None:
            self.runs.append((name, len(sizes), int(sizes.max())))

    one, many = setups(120)
    assert (one.controllers, one.nodes, many.controllers, many.nodes) == (1, 120, 2, 50)
    all_runs = []
    for setup in (one, many):
        some = Recorded()
        live.runs_of(cast("live.Cluster", some), setup, 1)
        all_runs.append(some.runs[:: live.REPEATS])
    assert [run[:2] for run in all_runs[0]] == [("small", 1000), ("medium", 100), ("large", 40)]
    assert [run[:2] for run in all_runs[1]] == [run[:2] for run in all_runs[0]]
    assert [max(run[2] for run in runs) for runs in all_runs] == [74, 50]  # of at most 75 and 50


def test_waits_make_a_run_longer_and_no_more_costly() -> None:
    """The model of a run has the waits of its controllers, of messages and of its nodes, but CPU times without them."""
    setup = Setup(2, 50, 10)
    sizes = tuple(sizes_of(SMALL, setup, 1).tolist())

    def predicted(conditions: Conditions) -> Result:
        run = Run(setup, "small", sizes, 1.0, 1.0, 1e-3, 1e-4, Used(5, 1, 1, 1, 1), conditions, 2.0)
        return Measured([run], COSTS._replace(answer=5e-5)).predicted(run)

    quiet = predicted(Conditions(0.003))
    for one in (Conditions(0.1), *(Conditions(0.003, **{who: 30.0}) for who in ("controllers", "nodes", "store"))):
        busy = predicted(one)
        assert busy.seconds > quiet.seconds
        assert busy.cpu == pytest.approx(quiet.cpu, rel=0.5)  # turns are other ones


@pytest.mark.parametrize(("controllers", "nodes", "processes"), [(1, 500, 2), (10, 50, 2), (1, 3, 1), (3, 50, 1)])
def test_few_processes_have_all_nodes(controllers: int, nodes: int, processes: int) -> None:
    """Each node is in one of them, which have equally many if they can."""
    homes = {f"p{number}": Place(cast("Client", None), "", f"tcp://{number}", 0) for number in range(controllers)}
    words = list(_shared_out(Setup(controllers, nodes, 1), homes))
    assert len(words) == processes
    counts = [sum(map(int, one[3::4])) for one in words]
    assert sum(counts) == controllers * nodes
    assert max(counts) - min(counts) <= nodes
    groups = [tuple(one[at : at + 3]) for one in words for at in range(0, len(one), 4)]
    assert len(set(groups)) == len(groups)


def test_results_as_lines_and_as_json() -> None:
    """A row for each cost, and one for each setup and workload, except for those from which costs follow alone."""
    setup = Setup(1, 50, 50)
    sizes, usual = tuple(sizes_of(SMALL, setup, 1).tolist()), Conditions(0.003)
    runs = [
        Run(setup, name, sizes, 0.5, 100.0 + number, 0.001, 1e-4, Used(5, 0.05, 0.1, 0.3, 0.1), usual, 2.0)
        for number, name in enumerate((SINGLE, *["small"] * 3))
    ]
    found = Measured(runs, COSTS)
    text = list(lines(found))

    assert text[2].split()[-1] == "2.795"
    assert text[-1].split()[:3] == ["small", "1", "50"]
    assert text[-1].count("0.5 (0.5 to 0.5)") == 1
    assert to_json(found, 1)["runs"][1]["conditions"] == usual._asdict()
    assert [one["model"] is None for one in to_json(found, 1)["runs"]] == [True, False, False, False]
