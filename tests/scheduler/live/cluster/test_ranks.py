# SPDX-License-Identifier: Apache-2.0
"""Adaptive jobs leave drained nodes, come back to them, and come to nodes that have joined since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.execution import protocol as say
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster import explain

from tests.support.fake_cluster import SETTINGS, FakeNode, Size, submitted

if TYPE_CHECKING:
    from drom.scheduler.live.cluster.jobs import Job

    from tests.support.fake_cluster import FakeCluster

POLICY = load_policy("equipartition")
SIZES: tuple[Size, ...] = ((4, 0, {}), (4, 0, {}), (4, 0, {}))


def drain(here: FakeCluster, name: str, reason: str = "repair") -> None:
    """Drain a node, or undo it with an empty reason, and let everything happen that follows."""
    here.cluster.members.drain(name, reason)
    here.send()
    here.settle()
    here.check()


def said(here: FakeCluster, job: Job) -> str:
    """Return what is explained of a job."""
    return " ".join(explain.explain(job, here.cluster, here.now))


def test_a_job_leaves_a_drained_node_and_comes_back(here: FakeCluster) -> None:
    """A job without cores on a drained node releases its ranks there and leaves it, and has ranks there afterwards."""
    job = submitted(here, least=2, most=12)
    drain(here, "n2")

    assert (job.shares, job.ranks, job.left) == ({"n0": 4, "n1": 4, "n2": 0}, {"n0": 4, "n1": 4, "n2": 0}, ["n0", "n1"])
    assert (job.state, job.acknowledged, here.nodes["n2"].known) == ("running", ["n0", "n1"], {})
    assert explain.leaving(here.cluster.nodes["n2"], here.cluster) == ""

    drain(here, "n2", "")
    assert (job.shares, job.ranks) == ({"n0": 4, "n1": 4, "n2": 4}, {"n0": 4, "n1": 4, "n2": 4})
    assert (job.attempt, job.sizes, job.left) == (1, job.shares, ["n0", "n1", "n2"])
    here.settle(ends=True)
    assert job.state == "completed"


def test_others_make_room_for_the_minimum_of_a_job_that_moves(here: FakeCluster) -> None:
    """A job shrinks to its minimum, and only then does another one give up its cores of a drained node."""
    first, second = submitted(here, least=2, most=12), submitted(here, least=6, most=12)
    on = next(name for name in second.shares if second.shares[name] and second.launcher != name)
    here.cluster.members.drain(on, "repair")
    here.turn()
    resized = [
        (name, order.job) for name in here.nodes for order in here.nodes[name].inbox if isinstance(order, say.Resize)
    ]
    assert (on, second.number) not in resized

    here.settle()
    here.check()
    assert (sum(first.shares.values()), sum(second.shares.values())) == (2, 6)
    assert on not in first.left + second.left


def test_a_job_whose_minimum_does_not_fit_elsewhere_stays(here: FakeCluster) -> None:
    """The drain waits until another job has ended, and both job and node say what for."""
    job, other = submitted(here, least=8, most=12), submitted(here, ranks=4)
    on = next(name for name in job.shares if name not in other.shares and name != job.launcher)
    drain(here, on)

    assert job.shares[on] == 4
    why = f"job {job.number} stays on {on}, as the minima of all jobs do not fit on the other nodes"
    assert explain.leaving(here.cluster.nodes[on], here.cluster) == why
    assert f"J{why[1:]}." in said(here, job)

    here.cluster.cancel(other.number, here.now, "")
    here.send()
    here.settle()
    assert (on in job.left, sum(job.shares.values())) == (False, 8)


def test_ranks_that_no_library_ends_rest(here: FakeCluster) -> None:
    """A program that releases no ranks keeps them at rest on a drained node, and has their cores again afterwards."""
    here.nodes["n2"].can_release = False
    job = submitted(here, least=2, most=12)
    drain(here, "n2")

    assert (job.left, job.shares["n2"]) == (["n0", "n1", "n2"], 0)
    assert f"The ranks of job {job.number} on n2 rest, and end at its next malleability point if" in said(here, job)
    drain(here, "n2", "")
    assert (job.shares, job.ranks["n2"]) == ({"n0": 4, "n1": 4, "n2": 4}, 4)


def test_ranks_rest_where_a_job_was_launched(here: FakeCluster) -> None:
    """A job keeps its ranks at rest on its first node, where mpirun runs on, and says so."""
    job = submitted(here, least=2, most=12)
    drain(here, "n0")

    assert (job.left, job.ranks["n0"], job.shares["n0"]) == (["n0", "n1", "n2"], 4, 0)
    why = f"The ranks of job {job.number} on n0 rest until it ends, as mpirun does, which has started it there."
    assert why in said(here, job)
    drain(here, "n0", "")
    assert job.shares == {"n0": 4, "n1": 4, "n2": 4}


def test_a_job_that_has_left_a_node_comes_to_others(here: FakeCluster) -> None:
    """A job that can spawn ranks has cores of a node that was not there when it started."""
    job = submitted(here, least=2, most=16)
    here.nodes["n3"] = FakeNode("n3", lambda: here.now)
    here.settle()
    assert "n3" not in job.shares
    drain(here, "n2")

    assert job.shares == {"n0": 4, "n1": 4, "n2": 0, "n3": 4}
    order = here.cluster.placements.of(job.number)
    assert [part.node.name for part in order] == ["n0", "n1", "n3"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_next_scheduler_completes_a_drain(here: FakeCluster, when: str) -> None:
    """A scheduler that is killed before or after a job has left its node is followed by one that goes on."""
    job = submitted(here, least=2, most=12)
    here.nodes["n2"].can_release = when == "after"
    drain(here, "n2")
    here.nodes["n2"].can_release = True
    here.crash()
    here.settle()
    here.check()

    again = here.cluster.jobs[job.number]
    assert (again.left, again.state, again.attempt) == (["n0", "n1"], "running", 1)
    drain(here, "n2", "")
    assert again.shares == {"n0": 4, "n1": 4, "n2": 4}


def test_ranks_that_have_not_begun_are_not_released(here: FakeCluster) -> None:
    """A job leaves a node that was drained while it started once its ranks there have begun, and says that it waits."""
    here.nodes["n2"].can_spawn = False
    job = submitted(here, least=2, most=12)
    drain(here, "n2")
    assert (job.shares["n2"], job.ranks["n2"], job.left) == (0, 4, ["n0", "n1", "n2"])
    assert f"Job {job.number} leaves n2 once its ranks there have begun." in said(here, job)

    here.nodes["n2"].outbox.append(say.Wants(job.number, 1, 1, 0))
    here.settle()
    assert (job.ranks["n2"], job.left) == (0, ["n0", "n1"])


def test_a_job_that_leaves_a_node_leaves_it_although_the_scheduler_dies(here: FakeCluster) -> None:
    """The next scheduler takes what was ended on a node that is not drained any more for a part that has left."""
    job = submitted(here, least=2, most=12)
    here.cluster.members.drain("n2", "repair")
    while not job.leaving:
        here.turn()
        for node in here.nodes.values():
            node.read_all()
            node.work(ends=False)
            while node.outbox and not job.leaving:
                here.hear(node)
    here.cluster.members.drain("n2", "")
    here.send()
    here.nodes["n2"].read_all()
    assert not here.nodes["n2"].running
    here.crash()
    here.settle()
    here.check()

    again = here.cluster.jobs[job.number]
    assert (again.state, again.attempt, again.left) == ("running", 1, ["n0", "n1", "n2"])
    assert (again.shares["n2"], again.leaving, again.awaited) == (4, [], {})


@pytest.mark.parametrize("when", ["before", "after"])
def test_ranks_that_are_to_come_again_are_awaited(here: FakeCluster, when: str) -> None:
    """Ranks that have left a node, before or after it is drained no more, report there in time or give it back."""
    here.nodes["n2"].can_release = False
    job = submitted(here, least=2, most=12, time=3600)
    drain(here, "n2")
    here.nodes["n2"].can_spawn = False
    gone = say.Vacated(job.number, 1, is_empty=False)
    if when == "before":
        here.nodes["n2"].ranks.clear()
        here.nodes["n2"].outbox.append(gone)
        here.settle()
    drain(here, "n2", "")
    if when == "after":
        assert job.awaited == {}
        here.nodes["n2"].ranks.clear()
        here.nodes["n2"].outbox.append(gone)
        here.settle()
    assert (job.ranks["n2"], list(job.awaited)) == (4, ["n2"])

    here.turn(SETTINGS.spawn_within)
    here.settle()
    here.check()
    assert (job.state, job.shares, job.awaited) == ("running", {"n0": 4, "n1": 4, "n2": 0}, {"n2": 0})


def test_a_node_that_is_busy_is_not_joined_yet(here: FakeCluster) -> None:
    """A job that a node cannot take back runs on elsewhere, and is taken back later."""
    job = submitted(here, least=2, most=12)
    drain(here, "n2")
    here.cluster.members.drain("n2", "")
    here.turn()
    here.turn()
    assert here.nodes["n2"].refuse()
    here.hear(here.nodes["n2"])
    assert (job.left, job.state) == (["n0", "n1"], "running")

    here.settle()
    assert job.shares == {"n0": 4, "n1": 4, "n2": 4}


def comes_back_without_ranks(here: FakeCluster, *names: str) -> Job:
    """Return a job that has cores of nodes that it has come back to, but no ranks on the first of them."""
    job = submitted(here, least=2, most=12, time=3600)
    for name in names:
        drain(here, name)
    here.nodes[names[0]].can_spawn = False
    for name in names:
        drain(here, name, "")
    assert (job.shares, list(job.awaited)) == ({"n0": 4, "n1": 4, "n2": 4}, [names[0]])
    assert f"It waits for its ranks on {names[0]}." in said(here, job)
    return job


def test_a_node_without_ranks_in_time_is_given_back(here: FakeCluster) -> None:
    """A job whose ranks do not come on a node gives the node back, with a sentence, and joins no other one."""
    job = comes_back_without_ranks(here, "n2")
    here.turn(SETTINGS.spawn_within - 30)
    here.settle()
    assert job.shares["n2"] == 4
    assert here.cluster.next_look() <= here.now + 30

    here.turn(30)
    here.settle()
    here.check()
    assert (job.state, job.shares, job.left) == ("running", {"n0": 4, "n1": 4, "n2": 0}, ["n0", "n1"])
    assert "Its ranks did not come on n2: it has given that node back, and joins no other." in said(here, job)
    reason = "its ranks did not report there in time: see its output. It gives the node back for good."
    assert here.warnings == [("ranks_missing", {"node": "n2", "job": job.number, "reason": reason})]
    other = submitted(here, ranks=4)
    assert (other.state, other.shares) == ("running", {"n2": 4})
    here.cluster.cancel(other.number, here.now, "")
    here.send()
    here.settle()
    assert (job.shares["n2"], job.left) == (0, ["n0", "n1"])


def test_a_job_keeps_other_nodes_that_it_has_come_back_to(here: FakeCluster) -> None:
    """A job gives back only the node on which its ranks do not report."""
    job = comes_back_without_ranks(here, "n2", "n1")
    here.turn(SETTINGS.spawn_within)
    here.settle()

    assert (job.shares, sorted(job.left)) == ({"n0": 4, "n1": 4, "n2": 0}, ["n0", "n1"])


def test_a_node_that_cannot_be_left_yet_is_given_back(here: FakeCluster) -> None:
    """The cores of a node without ranks go to others while something of the job is left there, also after a restart."""
    job = comes_back_without_ranks(here, "n2")
    here.nodes["n2"].can_release = False
    here.turn(SETTINGS.spawn_within)
    here.settle()
    here.crash()
    here.settle()
    here.check()

    again, other = here.cluster.jobs[job.number], submitted(here, ranks=4)
    assert (again.shares["n2"], sorted(again.left), other.shares) == (0, ["n0", "n1", "n2"], {"n2": 4})


@pytest.mark.parametrize("comes", [True, False])
def test_the_next_scheduler_waits_for_ranks_anew(here: FakeCluster, comes: bool) -> None:
    """Ranks that report after a restart of the scheduler keep their node, others give it back."""
    job = comes_back_without_ranks(here, "n2")
    here.turn(SETTINGS.spawn_within - 30)
    here.crash()
    here.nodes["n2"].can_spawn = comes
    here.turn(30)
    here.settle()
    again = here.cluster.jobs[job.number]
    assert again.shares["n2"] == 4
    here.turn(SETTINGS.spawn_within)
    here.settle()
    here.check()
    late = [event for event, _ in here.warnings].count("ranks_missing")
    assert ("n2" in again.left, again.state, late) == (comes, "running", not comes)


def test_a_job_ends_while_it_leaves_a_node(here: FakeCluster) -> None:
    """A job that is cancelled before a drained node has released its ranks ends on all nodes."""
    job = submitted(here, least=2, most=12)
    here.nodes["n2"].can_release = False
    drain(here, "n2")
    here.cluster.cancel(job.number, here.now, "cancelled")
    here.send()
    here.nodes["n2"].outbox.append(say.Vacated(job.number, 1, is_empty=True))
    here.settle()
    assert (job.state, job.left) == ("cancelled", [])
