# SPDX-License-Identifier: Apache-2.0
"""Jobs below the node: what a unit asks for, where it may be, and sentences for what can never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import explain

from tests.support.fake_cluster import FakeCluster, Size, submitted

if TYPE_CHECKING:
    from pathlib import Path


POLICY = load_policy("resources")
GIB = 1 << 30
SIZES: tuple[Size, ...] = ((4, 4 * GIB, {"gpu": 2}), (2, 0, {}), (8, 6 * GIB, {"gpu": 1}))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"threads": 9},
            r"^1 task of 9 cores does not fit on a node, which has 8 cores: ask for fewer with --cpus-per",
        ),
        (
            {"nodes": 1, "resources": {"gpu": 3}},
            r"^the job asks for 1 core and gpu=3, and none of the 3 nodes that suit it has so much: ask",
        ),
        ({"nodes": 3, "resources": {"gpu": 1}}, r"3 parts with 1 core and gpu=1 each, and .* have room for 2 of them"),
        ({"ranks": 15}, r"^the job asks for 15 parts with 1 core each, and the 3 nodes .* have room for 14 of them"),
        (
            {"nodes": 1, "resources": {"gpu": 1, "disk": 1}},
            r"^no node that suits the job has disk: see the resources in drom nodes\.",
        ),
        ({"ranks": 2, "memory": GIB}, r"^--mem and --resources are amounts of a node: say with --nodes how many"),
        (
            {"nodes": 1, "memory": 7 * GIB},
            r"^the job asks for 7 GiB of memory on each node, and the largest here has 6",
        ),
        ({"nodes": 1, "tasks": 4, "memory": 5 * GIB, "resources": {"gpu": 2}}, r"4 cores, 5 GiB of memory and gpu=2"),
        (
            {"nodes": 2, "resources": {"gpu": 3}},
            r"2 parts with 1 core and gpu=3 each, and none of the 3 nodes that suit it has so much: ask for less\.$",
        ),
        ({"ranks": 5, "nodelist": ("n0",)}, r"5 parts with 1 core each, and the node that suits it has room for 4 of"),
        (
            {"nodes": 1, "resources": {"gpu": 3}, "nodelist": ("n0",)},
            r"^the job asks for 1 core and gpu=3, and the node that suits it does not have so much: ask for less\.$",
        ),
        (
            {"exclude": ("n0", "n1", "n2")},
            r"^the job asks for 1 node, and this cluster has no node outside --exclude: see drom nodes\.",
        ),
    ],
)
def test_what_can_never_run_is_refused_with_a_sentence(
    here: FakeCluster, asked: dict[str, object], sentence: str
) -> None:
    """Units larger than any node, unknown resources, and more of them than there is room for."""
    with pytest.raises(SchedulerError, match=sentence):
        submitted(here, **asked)


def test_jobs_share_nodes_and_none_gets_the_gpu_of_another(here: FakeCluster) -> None:
    """Three jobs have the three GPUs of two nodes; the fourth waits until one ends, and gets that one."""
    jobs = [submitted(here, nodes=1, resources={"gpu": 1}) for _ in range(4)]

    assert [job.devices for job in jobs[:3]] == [
        {"n0": {"gpu": [0]}},
        {"n0": {"gpu": [1]}},
        {"n2": {"gpu": [0]}},
    ]
    assert [job.state for job in jobs] == ["running", "running", "running", "pending"]
    here.check_cores()

    (key,) = (key for key in here.nodes["n0"].running if key[0] == jobs[1].number)
    here.nodes["n0"].end(key, 0)
    here.settle()
    assert jobs[3].devices == {"n0": {"gpu": [1]}}
    assert explain.explain(jobs[3], here.cluster, here.now)[0] == "It has 1 of 4 cores of n0 with gpu 1."


def test_tasks_without_nodes_fill_what_is_free(here: FakeCluster) -> None:
    """Each node starts as many as it has cores for, and mpirun is told how many that are."""
    first = submitted(here, ranks=2, threads=4)
    job = submitted(here, ranks=5)

    assert here.cluster.cores_of_nodes == 0
    assert first.shares == {"n2": 8}
    assert job.shares == {"n1": 2, "n0": 3}
    assert {name: job.tasks_on(name) for name in job.shares} == {"n1": 2, "n0": 3}
    starts = [(name, key) for name, node in here.nodes.items() for key in node.running if key[0] == job.number]
    assert sorted(name for name, _ in starts) == ["n0", "n1"]


def test_a_waiting_job_says_what_it_lacks_and_when_it_starts(here: FakeCluster) -> None:
    """It has a reservation at the end of what runs."""
    submitted(here, nodes=1, tasks=8)
    job = submitted(here, nodes=1, tasks=6)

    said = explain.explain(job, here.cluster, here.now)
    assert said[0] == "It waits: no node has 6 cores free."
    assert "It needs 6 cores; there is room for 0 now." in said
    assert any(line.startswith("It is expected to start in 5") for line in said)


def test_a_restarted_scheduler_knows_what_jobs_hold(here: FakeCluster) -> None:
    """After a kill no GPU and no core is given twice."""
    jobs = [submitted(here, nodes=1, resources={"gpu": 1}, tasks=2, memory=2 * GIB) for _ in range(3)]
    here.crash()
    here.settle()
    later = submitted(here, nodes=1, resources={"gpu": 1})

    assert [here.cluster.jobs[job.number].devices for job in jobs] == [job.devices for job in jobs]
    assert later.state == "pending"
    here.check()


def test_a_job_with_tasks_anywhere_waits_under_a_policy_of_whole_nodes(tmp_path: Path, here: FakeCluster) -> None:
    """The scheduler was restarted with another policy: it says so."""
    job = submitted(here, ranks=3, hold=True)
    here.policy = load_policy("easy")
    here.nodes = {"n0": here.nodes["n0"]}
    here.crash()

    why = here.cluster.queue.why_not(here.cluster.jobs[job.number].spec)
    assert why.startswith("policy easy gives jobs whole nodes, and it does not say how many")
    assert tmp_path.exists()


def test_a_node_may_come_back_with_another_size(here: FakeCluster) -> None:
    """Its agent was restarted with more CPUs and a GPU: jobs get them."""
    submitted(here, nodes=1, tasks=8)
    waiting = submitted(here, nodes=1, tasks=7)
    assert waiting.state == "pending"

    here.nodes["n1"].cores = 7
    here.join(here.nodes["n1"])
    here.settle()
    assert waiting.shares == {"n1": 7}


def test_a_limit_of_a_running_job_can_be_moved(here: FakeCluster) -> None:
    """Reservations move with it; not to a time that is over."""
    first = submitted(here, nodes=1, tasks=8)
    job = submitted(here, nodes=1, tasks=6)
    controller = here.cluster.controller
    assert controller
    planned = controller.planned(job.number)

    assert controller.extend(first.number, 600, int(here.now))
    here.turn()
    assert (controller.limit(first.number), controller.planned(job.number)) == (660, planned + 600)
    assert not controller.extend(first.number, -661, int(here.now) + 1)
    assert controller.limit(first.number) == 660
