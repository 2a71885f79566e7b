# SPDX-License-Identifier: Apache-2.0
"""Partitions: sets of nodes with limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.scheduler.cp.live_planner import LivePlanner
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import explain
from drom.scheduler.live.cluster.partitions import Partition, partition_of
from drom.scheduler.live.cluster.resource_controller import ResourceController
from drom.scheduler.live.cluster.spec import Spec

from tests.support.fake_cluster import ANN, SETTINGS, FakeCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

DEBUG = Partition("debug", nodes=frozenset({"n0"}), max_time=600, max_nodes=1, priority=10)
LONG = Partition("long", features=frozenset({"big"}), default_time=7200, default=True)
POLICY = load_policy("sd", ("interval=1", "reservations=nodes"))


def spec(nodes: int = 1, **more: object) -> Spec:
    """Return what a user asks for."""
    return Spec(command=("true",), nodes=nodes, folder="/", job_class="rigid", **more)  # type: ignore[arg-type]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[FakeCluster]:
    """Return a cluster of four nodes, of which two have a feature, with two partitions."""
    found = FakeCluster(tmp_path, POLICY, 4, replace(SETTINGS, partitions=(DEBUG, LONG)))
    for name in ("n2", "n3"):
        found.nodes[name].features = ("big",)
    found.settle()
    yield found
    found.store.close()


def refusal(here: FakeCluster, **about: object) -> str:
    """Return the sentence with which a job is refused."""
    with pytest.raises(SchedulerError) as refused:
        here.cluster.submit(spec(**about), ANN, here.now)  # type: ignore[arg-type]
    return str(refused.value)


def test_a_job_runs_in_its_partition(here: FakeCluster) -> None:
    """One that names none in the default one, with its limit; both are in `drom nodes` by name."""
    debug, usual = here.submit(spec(partition="debug")), here.submit(spec(2))
    waits = here.submit(spec(time=60))
    assert debug
    assert usual
    assert waits
    here.settle()
    assert (list(debug.shares), debug.limit, debug.priority) == (["n0"], 600, 10)
    assert (sorted(usual.shares), usual.limit, usual.spec.partition) == (["n2", "n3"], 7200, "long")
    assert waits.shares == {}
    names = [node.partitions for node in here.cluster.nodes.values()]
    assert names == [["debug"], [], ["long"], ["long"]]


def test_a_job_beyond_a_limit_is_refused(here: FakeCluster) -> None:
    """As is one in no partition that there is, and one with more nodes than it has."""
    assert refusal(here, partition="debug", time=1200) == (
        "the job asks for 20 min, and partition debug allows 10 min: request less with --time, or another --partition."
    )
    asks = "the job asks for 2 nodes, and partition debug allows 1 node"
    assert refusal(here, partition="debug", nodes=2) == f"{asks}: request less with --nodes, or another --partition."
    assert refusal(here, nodes=3) == (
        "the job asks for 3 nodes, and this cluster has 2 nodes in partition long: ask for less."
    )
    assert refusal(here, partition="fast") == "there is no partition fast: choose from debug, long."


def test_a_cluster_may_have_no_default_or_no_partition() -> None:
    """Then a job has to name one, or must not."""
    assert partition_of("", ()) is None
    with pytest.raises(SchedulerError, match=r"^there is no partition x: there are none here, so omit --partition\.$"):
        partition_of("x", ())
    with pytest.raises(
        SchedulerError, match=r"^the job names no partition, and none is the default: choose --partition "
    ):
        partition_of("", (DEBUG,))


def test_a_waiting_job_can_go_to_another_partition(here: FakeCluster) -> None:
    """It gets the nodes and the priority of that, within its limits."""
    first, waits = here.submit(spec(2, time=300)), here.submit(spec(time=300))
    assert first
    assert waits
    here.settle()
    with pytest.raises(SchedulerError, match=r"^the job asks for 20 min, and partition debug allows 10 min: "):
        here.cluster.changed(waits.number, {"partition": "debug", "time": 1200})
    here.cluster.update(waits.number, here.cluster.changed(waits.number, {"partition": "debug"}), here.now, "ann", "")
    here.settle()
    assert (list(waits.shares), waits.priority) == (["n0"], 10)


def test_partitions_may_change_while_jobs_wait(here: FakeCluster) -> None:
    """A job waits with the reason if its partition is gone, and holds nobody up; nodes may have come to another one."""
    assert here.submit(spec(2))
    waits, lost = here.submit(spec()), here.submit(spec(partition="debug", hold=True))
    assert waits
    assert lost
    here.cluster.update(lost.number, here.cluster.changed(lost.number, {"priority": 9}), here.now, "root", "")
    here.settle()
    here.settings = replace(SETTINGS, partitions=(replace(LONG, features=frozenset()),))
    here.crash()
    here.cluster.hold(lost.number, here.now, "ann", held=False)
    assert here.cluster.controller
    assert here.cluster.controller.waiting == [waits.number]
    here.settle()
    waits, lost = (here.cluster.jobs[job.number] for job in (waits, lost))
    assert waits.state == "running"
    assert explain.why(lost, here.cluster) == (
        "there is no partition debug any more: cancel it, or choose another with drom update"
    )


def test_a_plan_weighs_waits_by_what_partitions_expect(tmp_path: Path) -> None:
    """Jobs of policy cp share the nodes of their partition, and expect its wait."""
    pytest.importorskip("ortools")
    partitions = (Partition("debug", nodes=frozenset({"n0"}), expected_wait=600), Partition("long", default=True))
    here = FakeCluster(tmp_path, load_policy("cp"), 2, replace(SETTINGS, partitions=partitions))
    here.settle()
    for name in ("debug", "long"):
        assert here.submit(Spec(("true",), ranks=3, folder="/", partition=name))
    here.turn()
    controller = here.cluster.controller
    assert isinstance(controller, ResourceController)
    asked = controller.take_question()
    assert asked
    assert asked.expected.tolist() == [600, 3600]
    plan = LivePlanner(here.cluster.policy.options, 60.0)(asked)
    assert plan.units == {1: {0: 3}, 2: {0: 1, 1: 2}}
    here.store.close()
