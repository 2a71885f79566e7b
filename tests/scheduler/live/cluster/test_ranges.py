# SPDX-License-Identifier: Apache-2.0
"""Jobs with a range of cores in a live cluster: what they may ask for, and how others make room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from drom.agent.execution import protocol as say
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.live.cluster import explain
from drom.scheduler.live.cluster.launch import mpi_command
from drom.scheduler.live.cluster.spec import Spec

from tests.support.fake_cluster import FakeCluster, Size, submitted

if TYPE_CHECKING:
    from pathlib import Path


POLICY = load_policy("equipartition")
SIZES: tuple[Size, ...] = ((4, 0, {}), (4, 0, {}))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"nodes": 2}, r"^policy equipartition gives each task one core, on any node: leave out --nodes\.$"),
        ({"threads": 2}, r"one core, on any node: leave out --cpus-per-task\.$"),
        ({"memory": 1}, r"one core, on any node: leave out --mem\.$"),
        (
            {"least": 2, "most": 4, "ranks": 3},
            r"^--ntasks is a fixed number of cores, --min and --max are a range: give",
        ),
        ({"least": 2}, r"^--min has no --max: say how many cores the job can use at most\.$"),
        ({"least": 4, "most": 2}, r"^--min 4 is above --max 2: write the smaller one as --min\.$"),
        (
            {"least": 9, "most": 12},
            r"^the job needs at least 9 cores, and the nodes have 8: ask for less with --min\.$",
        ),
        ({"ranks": 9}, r"^the job needs at least 9 cores, and the nodes have 8: ask for less with --ntasks\.$"),
        (
            {"least": 1, "most": 2, "script": "#!/bin/sh\ntrue\n"},
            r"^mpirun starts the ranks .* a script is none: write --",
        ),
        (
            {"least": 1, "most": 2, "job_class": "rigid"},
            r"is resized, and a rigid one is not: leave out --class, or --min",
        ),
    ],
)
def test_what_can_never_run_is_refused_with_a_sentence(
    here: FakeCluster, asked: dict[str, object], sentence: str
) -> None:
    """Options of other policies, contradictions, more than there is, and jobs whose ranks nobody starts."""
    with pytest.raises(SchedulerError, match=sentence):
        submitted(here, **asked)


def test_other_policies_have_no_ranges(tmp_path: Path) -> None:
    """Their jobs have nodes, or parts of them, of one size."""
    here = FakeCluster(tmp_path, load_policy("resources"), 1)
    here.settle()

    with pytest.raises(
        SchedulerError, match=r"^policy resources gives jobs no range of cores: leave out --min and --max"
    ):
        submitted(here, least=1, most=2)
    here.store.close()


def test_a_job_shrinks_first_and_then_the_newcomer_starts(here: FakeCluster) -> None:
    """It has ranks on all nodes from the start; the newcomer is asked to start when the cores have been left."""
    first = submitted(here, least=2, most=8)
    assert (first.state, first.shares, first.ranks) == ("running", {"n0": 4, "n1": 4}, {"n0": 4, "n1": 4})
    said = explain.explain(first, here.cluster, here.now)
    assert "It runs on 2 to 8 cores, and has 8 now: all its ranks run." in said
    assert mpi_command(first)[:5] == ("mpirun", "--host", "n0:4,n1:4", "-n", "8")

    second = here.submit(Spec(command=("heat",), folder="/", time=60, least=2, most=8))
    assert second
    here.turn()
    (order,) = [message for message in here.nodes["n1"].inbox if isinstance(message, say.Resize)]
    assert (order.job, order.cores) == (first.number, 0)
    assert second.state == "starting"
    said = explain.explain(second, here.cluster, here.now)
    assert said[0] == "It has 4 of 4 cores of n1."
    assert "It starts once job 1 made room." in said

    here.settle()
    assert (second.state, second.shares) == ("running", {"n1": 4, "n0": 0})
    assert first.shares == {"n0": 4, "n1": 0}
    assert explain.explain(first, here.cluster, here.now)[:2] == [
        "It has 4 of 4 cores of n0.",
        "It runs on 2 to 8 cores, and has 4 now: the other 4 of its 8 ranks rest.",
    ]
    here.check()


def test_a_change_that_is_not_applied_is_withdrawn(here: FakeCluster) -> None:
    """The cores stay, the newcomer waits again and says why, and is tried again later."""
    first = submitted(here, least=2, most=8)
    second = here.submit(Spec(command=("heat",), folder="/", time=60, least=2, most=8))
    assert second
    here.turn()
    for node in here.nodes.values():
        node.read_all()
    here.nodes["n1"].follow((first.number, 1), obeys=False)
    while here.nodes["n1"].outbox:
        here.hear(here.nodes["n1"])

    assert (second.state, second.reason) == ("pending", "job 1 did not make room: it would not")
    assert sum(first.sizes.values()) == 8
    here.settle()
    assert (second.state, first.shares) == ("running", {"n0": 4, "n1": 0})


def test_a_need_that_is_reported_late_withdraws_a_change_at_once(here: FakeCluster) -> None:
    """Ranks that begin while their job makes room, and need its cores, keep these; the other job waits again."""
    for node in here.nodes.values():
        node.can_spawn = False
    first = submitted(here, least=1, most=8)
    second = here.submit(Spec(command=("render",), folder="/", time=60, ranks=4))
    assert second
    here.turn()
    assert (second.state, first.shares) == ("starting", {"n0": 4, "n1": 0})
    here.nodes["n0"].outbox.append(say.Wants(1, 1, 7, 0))
    here.hear(here.nodes["n0"])
    here.turn()

    assert (second.state, second.reason) == ("pending", "job 1 did not make room: its program needs 7 cores")
    here.settle()
    here.check()
    assert (first.shares, first.sizes, second.state) == ({"n0": 4, "n1": 4}, {"n0": 4, "n1": 4}, "pending")


def test_programs_change_their_range(here: FakeCluster) -> None:
    """A report of the least alone raises the minimum; one of both replaces the range, up to what was asked for."""
    first, second = submitted(here, least=2, most=6), submitted(here, least=1, most=8)
    for wants, cores, given in (((1, 0), (2, 6), 5), ((5, 0), (5, 6), 6), ((1, 2), (1, 2), 2), ((1, 9), (1, 6), 4)):
        for node in here.nodes.values():
            node.wants[first.number, 1] = wants
        here.nodes["n0"].outbox.append(say.Wants(first.number, 1, *wants))
        here.settle()
        assert (first.least, first.most) == cores
        assert [sum(job.shares.values()) for job in (first, second)] == [given, 8 - given]

    here.crash()
    here.settle()
    again = here.cluster.jobs[first.number]
    assert (again.least, again.most) == (1, 6)
    here.nodes["n1"].outbox.append(say.Wants(second.number, 7, 3, 3))
    here.settle()
    assert here.cluster.jobs[second.number].wants == []


def test_the_queue_is_looked_through_for_what_fits(here: FakeCluster) -> None:
    """A rigid job that the minima leave no room for waits, and says so; a later one that fits starts."""
    submitted(here, least=4, most=8)
    wide, narrow = submitted(here, ranks=5), submitted(here, ranks=2)

    assert (wide.state, narrow.state) == ("pending", "running")
    assert explain.explain(wide, here.cluster, here.now)[:3] == [
        "It waits: it needs 5 cores, and the minima of running jobs leave 2 of 8.",
        "It is the only job that waits.",
        "It needs 5 cores; the minima of running jobs leave 2 of 8.",
    ]


def test_the_next_scheduler_goes_on_with_the_ranges(here: FakeCluster) -> None:
    """Cores, ranks and the order of jobs are in the queue; a newcomer is shared with as before."""
    first, second = submitted(here, least=2, most=8), submitted(here, least=1, most=3)
    here.crash()
    here.settle()
    again = here.cluster.jobs[first.number]
    assert (again.shares, again.ranks) == (first.shares, first.ranks)

    third = submitted(here, ranks=2)
    assert sum(again.shares.values()) == 4
    assert [sum(here.cluster.jobs[job.number].shares.values()) for job in (second, third)] == [2, 2]
    here.settle(ends=True)
    assert {job.state for job in here.cluster.jobs.values()} == {"completed"}


def test_a_range_can_be_changed_while_the_job_waits(here: FakeCluster) -> None:
    """And a range replaces a number of tasks, as that replaces a range."""
    submitted(here, ranks=8)
    job = submitted(here, least=2, most=4)

    for changes, now in (({"most": 6}, (2, 6, 6)), ({"ranks": 3}, (3, 3, 3)), ({"least": 1, "most": 2}, (1, 2, 2))):
        here.cluster.update(job.number, here.cluster.changed(job.number, changes), here.now, "ann", "")
        assert (job.spec.least, job.spec.most, job.spec.ranks) == now
