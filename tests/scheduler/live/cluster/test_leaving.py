# SPDX-License-Identifier: Apache-2.0
"""Adaptive jobs leave whole nodes under SD-Policy for jobs that find no mates, and have them again after these."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution import protocol as say
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import explain
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.ranges import refuse
from drom.scheduler.live.cluster.spec import Spec

from tests.support.fake_cluster import CORES, FakeCluster, Size, submitted

if TYPE_CHECKING:
    from pathlib import Path

    from drom.scheduler.live.cluster.jobs import Job

pytestmark = pytest.mark.timeout(600)
"""The policy takes half a minute to compile, once."""

POLICY = load_policy("sd", ("max_slowdown=infinite", "interval=1", "reservations=nodes"))
SIZES: tuple[Size, ...] = ((CORES, 0, {}),) * 4
ALL = {"n0": 4, "n1": 4, "n2": 4, "n3": 4}
FIRST = {"n0": 4, "n1": 4, "n2": 0, "n3": 0}
"""The cores of a job that has left half of the nodes."""


def owner(here: FakeCluster) -> Job:
    """Submit a job on all nodes, with a task on each core, that can run on half of them."""
    return submitted(here, nodes=4, min_nodes=2, tasks=CORES, time=3600)


def guest(here: FakeCluster, nodes: int = 2, **asked: object) -> Job:
    """Submit a short job that shares no node."""
    return submitted(here, nodes=nodes, job_class="rigid", **asked)


def arriving(here: FakeCluster) -> Job:
    """Submit such a job, and give the orders that follow, with which nodes do nothing yet."""
    job = here.submit(Spec(("true",), nodes=2, time=60, job_class="rigid", folder="/"))
    assert job
    here.turn()
    return job


def end(here: FakeCluster, job: Job) -> None:
    """End the program of a job, and let everything happen that follows."""
    here.nodes[job.launcher].end((job.number, job.attempt), 0)
    here.settle()
    here.check()


def said(here: FakeCluster, job: Job) -> str:
    """Return what is explained of a job."""
    return " ".join(explain.explain(job, here.cluster, here.now))


def test_a_job_leaves_nodes_and_comes_back(here: FakeCluster) -> None:
    """A job that can run on fewer nodes rests on those that a rigid one gets whole, and has them again after it."""
    job = owner(here)
    other = guest(here)
    here.check()
    assert (job.shares, job.sizes, other.shares) == (FIRST, FIRST, {"n2": 4, "n3": 4})
    assert (job.state, other.state, job.left) == ("running", "running", list(ALL))
    assert "It has left n2, n3 for job 2, and has all cores of a node again when those have ended." in said(here, job)
    assert "Some of its nodes were left by job 1, and go back when it ends." in said(here, other)

    end(here, other)
    assert (job.shares, job.sizes, job.attempt) == (ALL, ALL, 1)
    assert "left" not in said(here, job)


def test_nodes_are_left_before_another_job_starts(here: FakeCluster) -> None:
    """No part of a job starts before all nodes that it gets are left."""
    job = owner(here)
    other = arriving(here)
    here.nodes["n2"].read_all()
    here.nodes["n2"].work(ends=False)
    here.hear(here.nodes["n2"])
    here.turn()

    assert (other.state, job.sizes) == ("starting", ALL | {"n2": 0})
    assert not any(isinstance(order, say.Start) for node in here.nodes.values() for order in node.inbox)
    assert "It is leaving n2, n3 for job 2" in said(here, job)
    assert "It starts once job 1 made room." in said(here, other)


def test_no_job_shares_what_others_have_left(here: FakeCluster) -> None:
    """Further jobs start neither on the nodes that were left, nor on the last ones of a job."""
    job = owner(here)
    guest(here)
    third, fourth = guest(here, 1), submitted(here, nodes=1)
    assert (third.state, fourth.state, job.shares) == ("pending", "pending", FIRST)


def test_a_job_that_does_not_leave_in_time_keeps_its_nodes(here: FakeCluster) -> None:
    """The change is withdrawn on all nodes with a reason, and the job is chosen no more, also after a restart."""
    job = owner(here)
    other = arriving(here)
    for name, obeys in (("n2", True), ("n3", False)):
        here.nodes[name].read_all()
        here.nodes[name].follow((job.number, job.attempt), obeys=obeys)
        here.hear(here.nodes[name])
    here.settle()
    here.check()

    assert (job.shares, job.sizes, other.state, other.attempt) == (ALL, ALL, "pending", 1)
    assert other.reason == "job 1 did not make room: it would not"
    here.crash()
    here.settle()
    job, other = here.cluster.jobs[1], here.cluster.jobs[2]
    assert (job.shares, other.state) == (ALL, "pending")
    assert "It leaves no more nodes, as its ranks did not leave one in time." in said(here, job)


def test_a_job_keeps_the_nodes_that_its_program_needs(here: FakeCluster) -> None:
    """A program that needs the ranks of three nodes leaves one, and the job is never asked to leave two."""
    for node in here.nodes.values():
        node.wants[1, 1] = 9, 0
    job, other = owner(here), guest(here)
    assert (job.shares, job.sizes, other.state) == (ALL, ALL, "pending")
    assert "It keeps 3 nodes, as its program needs the ranks of so many." in said(here, job)
    assert not [entry for entry in here.store.history(1) if entry.what == "ordered"]

    here.crash()
    here.settle()
    assert here.cluster.jobs[2].state == "pending"
    here.cluster.cancel(2, here.now, "")
    assert guest(here, 1).state == "running"
    assert here.cluster.jobs[1].shares == ALL | {"n3": 0}


def test_a_job_keeps_the_cores_that_its_program_needs(here: FakeCluster) -> None:
    """A program that needs nine ranks keeps three cores of each of four nodes, so that no job shares these."""
    for node in here.nodes.values():
        node.wants[1, 1] = 9, 0
    job, other = owner(here), submitted(here, nodes=4)
    assert (job.shares, job.sizes, other.state) == (ALL, ALL, "pending")
    assert "While it shares nodes it keeps 3 cores of each, as its program needs so many ranks." in said(here, job)
    assert not [entry for entry in here.store.history(1) if entry.what == "ordered"]

    here.crash()
    here.settle()
    assert here.cluster.jobs[2].state == "pending"
    here.nodes["n0"].outbox.append(say.Wants(1, 1, 8, 16))
    here.settle()
    here.check()
    job, other = here.cluster.jobs[1], here.cluster.jobs[2]
    assert (job.shares, other.state) == (dict.fromkeys(ALL, 2), "running")


@pytest.mark.parametrize("asked", [{"nodes": 2, "job_class": "rigid"}, {"nodes": 4}], ids=["left", "shared"])
def test_a_need_that_is_reported_late_withdraws_a_change_at_once(here: FakeCluster, asked: dict[str, object]) -> None:
    """Ranks that begin while their job makes room, and need its cores, keep these; the other job waits again."""
    for node in here.nodes.values():
        node.can_spawn = False
    job = owner(here)
    other = here.submit(Spec(("true",), time=60, folder="/", **asked))  # type: ignore[arg-type]
    assert other
    here.turn()
    assert (other.state, job.shares) != ("pending", ALL)
    here.nodes["n0"].outbox.append(say.Wants(1, 1, 13, 0))
    here.hear(here.nodes["n0"])
    here.turn()

    assert (other.state, other.reason) == ("pending", "job 1 did not make room: its program needs 13 cores")
    here.settle()
    here.check()
    assert (job.shares, job.sizes, other.state, job.stays) == (ALL, ALL, "pending", False)


def test_a_program_that_needs_fewer_ranks_leaves_more_nodes(here: FakeCluster) -> None:
    """What a program reported last counts, down to what its user allows."""
    for node in here.nodes.values():
        node.wants[1, 1] = 16, 16
    job, other = owner(here), guest(here)
    assert other.state == "pending"
    here.nodes["n0"].outbox.append(say.Wants(1, 1, 2, 16))
    here.settle()
    assert (job.shares, other.state) == (FIRST, "running")


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_the_next_scheduler_completes_a_change(here: FakeCluster, when: str) -> None:
    """A scheduler that is killed before, while or after nodes are left is followed by one that goes on."""
    job = owner(here)
    if when == "after":
        guest(here)
    else:
        arriving(here)
    if when == "between":
        here.nodes["n3"].read_all()
        here.nodes["n3"].follow((1, 1))
    here.crash()
    here.settle()
    here.check()

    job, other = here.cluster.jobs[1], here.cluster.jobs[2]
    assert (job.shares, job.sizes, job.attempt) == (FIRST, FIRST, 1)
    assert (other.state, other.shares, other.attempt) == ("running", {"n2": 4, "n3": 4}, 1)
    third = guest(here, 1)
    assert (third.state, job.shares) == ("pending", FIRST)
    end(here, other)
    assert (third.state, sum(job.shares.values())) == ("running", 12)
    end(here, third)
    assert job.shares == ALL
    assert isinstance(here.cluster.controller, Controller)
    assert not here.cluster.controller.world.away.any()


def test_an_owner_ends_before_its_guest(here: FakeCluster) -> None:
    """A job that has left nodes ends on all of them, and the other runs on."""
    job = owner(here)
    other = guest(here)
    end(here, job)
    assert (job.state, other.state, other.shares) == ("completed", "running", {"n2": 4, "n3": 4})


def test_a_lost_node_ends_its_owner_and_its_guest(tmp_path: Path) -> None:
    """Owner and guest start again when a node that one has left for the other goes down."""
    settings = replace(FakeCluster(tmp_path / "a", POLICY, 0).settings, give_up=10.0, silence=5.0)
    here = FakeCluster(tmp_path / "b", POLICY, 4, settings)
    here.settle()
    job = owner(here)
    other = guest(here)
    lost = here.nodes.pop("n3")
    for _ in range(20):
        for node in here.nodes.values():
            here.cluster.members.alive(node.name, here.now)
        here.cluster.outbox.messages.clear()
        here.cluster.turn(here.now)
        here.now += 1.0
    assert (job.verdict, other.verdict) == ("requeue", "requeue")
    assert lost.known
    here.store.close()


def test_ranks_of_such_a_job_may_rest_from_the_start(here: FakeCluster) -> None:
    """A job with a task on each core shares nodes if it can leave some, as a guest with half of their cores."""
    first = owner(here)
    second = submitted(here, nodes=4, min_nodes=3, tasks=CORES)
    assert first.shares == second.shares == dict.fromkeys(ALL, 2)
    starts = {one.cores for node in here.nodes.values() for one in node.running.values()}
    assert (second.state, starts) == ("running", {2})


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"min_nodes": 5}, "--min-nodes 5 is above the 4 nodes of the job: write the most nodes as --nodes."),
        (
            {"script": "#!/bin/sh\ntrue"},
            (
                "mpirun starts the ranks of a job with --min-nodes, and a script is none: write -- PROGRAM, or leave "
                "out --min-nodes."
            ),
        ),
        (
            {"job_class": "rigid"},
            "a job with --min-nodes is resized, and a rigid one is not: leave out --class, or --min-nodes.",
        ),
        (
            {"memory": 1 << 30},
            "a job keeps its --mem on nodes that it leaves to others: leave it out, or --min-nodes.",
        ),
    ],
)
def test_jobs_that_cannot_leave_nodes(here: FakeCluster, asked: dict[str, object], sentence: str) -> None:
    """A sentence says what is wrong and what to do."""
    with pytest.raises(SchedulerError) as raised:
        submitted(here, **{"nodes": 4, "min_nodes": 2, **asked})
    assert str(raised.value) == sentence


def test_other_policies_have_no_job_leave_nodes() -> None:
    """A policy that divides nodes refuses such a job, with a sentence."""
    with pytest.raises(SchedulerError) as raised:
        refuse(Spec(("true",), nodes=4, min_nodes=2), load_policy("resources"))
    why = "under policy resources no job leaves nodes: leave out --min-nodes, or run the scheduler with --policy sd."
    assert str(raised.value) == why
