# SPDX-License-Identifier: Apache-2.0
"""The state machine of a live cluster: no core is given twice, no job lost or started twice, whatever happens when."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from drom.agent.execution import protocol as say
from drom.scheduler.allocation.gaps import Gaps
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER
from drom.scheduler.live.cluster import admission, explain, survivors
from drom.scheduler.live.cluster.controller import Controller
from drom.scheduler.live.cluster.executions import MOST_LOSSES, SOON
from drom.scheduler.live.cluster.job_queue import STEPS
from drom.scheduler.live.cluster.jobs import FINAL
from drom.scheduler.live.cluster.placements import LONGEST_PAUSE
from drom.scheduler.live.cluster.pool_controller import PoolController
from drom.scheduler.live.cluster.resource_controller import ResourceController
from drom.scheduler.live.cluster.spec import SAVING, Dependency, Spec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.fake_cluster import ANN, SETTINGS, FakeCluster, FakeNode, Size
from tests.support.file_systems import folder_in_memory

if TYPE_CHECKING:
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.jobs import Job

pytestmark = pytest.mark.timeout(600)
"""SD-Policy takes half a minute to compile, once."""

NODES = 3
GIVING_UP = replace(SETTINGS, give_up=100.0)
CHOICES = ("interval=1", "max_slowdown=infinite", "reservations=nodes")
RESOURCES, POOLED = load_policy("resources"), load_policy("equipartition")
SIZES: tuple[Size, ...] = ((4, 4 << 30, {"gpu": 2}), (2, 0, {}), (8, 6 << 30, {"gpu": 1, "fpga": 1}))
"""Unlike nodes; the second does not say how much memory it has."""
POLICY, POLICY_FED = load_policy("sd", CHOICES), load_policy("sd", (*CHOICES, "feedback=1"))


def spec(nodes: int = 1, minutes: int = 1, **more: object) -> Spec:
    """Return what a user asks for."""
    return Spec(command=("true",), nodes=nodes, time=60 * minutes, folder="/", **more)  # type: ignore[arg-type]


def with_mate(folder: Path, policy: Policy, nodes: int) -> tuple[FakeCluster, Job]:
    """Return a cluster all of whose nodes have a job of an hour, and that job."""
    here = FakeCluster(folder, policy, nodes)
    here.settle()
    mate = here.submit(spec(nodes, 60))
    assert mate
    here.settle()
    return here, mate


def test_wants_are_refused_by_a_policy_that_takes_nodes_as_equal(tmp_path: Path) -> None:
    """Such a policy could put the job on a node that lacks its requested features or resources."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    for node in here.nodes.values():
        here.join(node)

    with pytest.raises(SchedulerError, match=r"^policy easy treats all nodes as equal: omit --constraint, "):
        here.cluster.submit(spec(memory=1), ANN, 1.0)

    here.store.close()


def test_a_reason_names_few_jobs(tmp_path: Path) -> None:
    """Of many jobs that another waits for the first are named and the others counted."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    others = here.cluster.submit_many(spec(hold=True), ANN, here.now, 256)

    after = tuple(Dependency("afterany", job.number) for job in others)
    job = here.cluster.submit(spec(after=after), ANN, here.now)

    assert explain.why(job, here.cluster) == "waits for jobs 1, 2, 3 and 253 more"
    here.store.close()


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        *((name, ()) for name in ("fcfs", "easy", "conservative", "firstfit", "sjf")),
        ("sd", ("reservations=counts", "interval=1")),
    ],
)
def test_a_policy_that_takes_nodes_as_equal_starts_jobs(tmp_path: Path, name: str, choices: tuple[str, ...]) -> None:
    """Those that may be on any node, one after the other on the same nodes, also after a restart."""
    here = FakeCluster(tmp_path, load_policy(name, choices), 2)
    here.settle()
    for nodes in (1, 2):
        assert here.submit(spec(nodes, job_class="rigid"))
    here.settle()
    assert [job.state for job in list(here.store.newest(10))[::-1]] == ["running", "pending"]
    here.crash()
    here.settle(ends=True)

    assert [job.state for job in list(here.store.newest(10))[::-1]] == ["completed", "completed"]
    here.store.close()


def test_what_another_policy_let_in_holds_nobody_up(tmp_path: Path) -> None:
    """A waiting job that wants certain nodes waits on, with the reason, under a policy that takes nodes as equal."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    here.submit(spec(minutes=60))
    wants = here.submit(spec(memory=1))
    assert wants
    here.policy = load_policy("fcfs")
    here.crash()
    here.submit(spec())
    here.settle()
    here.nodes["n0"].end((1, 1), 0)
    here.settle()

    states = {job.number: job.state for job in list(here.store.newest(10))[::-1]}
    assert states == {1: "completed", 2: "pending", 3: "running"}
    waiting = here.cluster.jobs[2]
    assert explain.why(waiting, here.cluster) == (
        "policy fcfs treats all nodes as equal, and it requests certain ones: "
        "cancel it, or run the scheduler with --policy sd"
    )
    here.policy = POLICY
    here.crash()
    here.settle(ends=True)
    assert {job.state for job in list(here.store.newest(10))[::-1]} == {"completed"}
    here.store.close()


@pytest.mark.parametrize(("cores", "state"), [(8, "running"), (2, "pending")])
def test_jobs_outlast_all_nodes(tmp_path: Path, cores: int, state: str) -> None:
    """They start on the next ones that join a later scheduler, or say why they do not fit on these."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1, GIVING_UP)
    here.settle()
    job = here.submit(spec(tasks=4))
    assert job
    here.nodes.pop("n0")
    here.turn(GIVING_UP.silence + 1)
    here.turn(GIVING_UP.give_up + 1)
    here.cluster.members.forget("n0", here.now)
    here.send()
    here.crash()
    job = here.cluster.jobs[job.number]
    assert explain.why(job, here.cluster) == "no node has joined yet"

    here.nodes["m0"] = FakeNode("m0", lambda: here.now, cores)
    here.settle()

    assert job.state == state
    if state == "pending":
        assert explain.why(job, here.cluster) == (
            "its 4 tasks of 1 core do not fit on a node, which has 2 cores now: cancel it, and submit it again"
        )
        small = here.submit(spec())
        here.settle()
        assert small in here.cluster.jobs.values()
        assert small.state == "running"  # type: ignore[union-attr]
    here.store.close()


def test_only_nodes_that_a_job_may_be_on_are_told_as_free(tmp_path: Path) -> None:
    """One of the two has what it asks for, and that one is busy; a busy node that is drained is not counted off."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.nodes["n0"].features = ("big",)
    here.settle()
    here.submit(spec(minutes=60, constraint=("big",), job_class="rigid"))
    waits = here.submit(spec(constraint=("big",), job_class="rigid"))
    any_two = here.submit(spec(2, job_class="rigid"))
    assert waits
    assert any_two
    here.settle()

    said = explain.explain(waits, here.cluster, here.now)
    assert "It needs 1 node; 0 of the 1 that have what it asks for are free." in said
    here.cluster.members.drain("n0", "dust")
    said = explain.explain(any_two, here.cluster, here.now)
    assert "It needs 2 nodes; 1 is free, 1 drained, silent or down." in said
    here.store.close()


def test_a_job_gets_its_nodes_among_those_that_it_names(tmp_path: Path) -> None:
    """It waits while these are busy though others are free, also after a restart."""
    here = FakeCluster(tmp_path, POLICY, 4)
    here.settle()
    chosen = here.submit(spec(2, nodelist=("n1", "n2", "n3"), exclude=("n2",), job_class="rigid"))
    waits = here.submit(spec(nodelist=("n3",), job_class="rigid"))
    other = here.submit(spec(exclude=("n0",), job_class="rigid"))
    assert chosen
    assert waits
    assert other
    here.settle()
    assert (sorted(chosen.shares), waits.shares, list(other.shares)) == (["n1", "n3"], {}, ["n2"])
    here.crash()
    waits = here.cluster.jobs[waits.number]
    here.settle()
    said = explain.explain(waits, here.cluster, here.now)
    assert "It needs 1 node; 0 of the 1 that have what it asks for are free." in said

    here.cluster.update(waits.number, here.cluster.changed(waits.number, {"nodelist": ["n0"]}), here.now, "ann", "")
    here.settle()
    assert waits.shares == {"n0": 4}
    here.settle(ends=True)
    here.store.close()


@pytest.mark.parametrize(
    ("wants", "sentence"),
    [
        ({"nodelist": ("n0", "n9")}, "--nodelist names node n9, which does not exist: see drom nodes."),
        ({"exclude": ("n9",)}, "--exclude names node n9, which does not exist: see drom nodes."),
        (
            {"nodes": 2, "nodelist": ("n0", "n0")},
            "the job asks for 2 nodes, and --nodelist names 1: name more, or ask for fewer with --nodes.",
        ),
        (
            {"nodelist": ("n0",), "exclude": ("n0",)},
            "the job asks for 1 node, and this cluster has no node in --nodelist outside --exclude: see drom nodes.",
        ),
        (
            {"nodelist": ("n0",), "constraint": ("big",)},
            "the job asks for 1 node, and this cluster has no node with feature big in --nodelist: see drom nodes.",
        ),
    ],
)
def test_nodes_that_do_not_suffice_are_refused(tmp_path: Path, wants: dict[str, object], sentence: str) -> None:
    """At submission, with what to do."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.nodes["n1"].features = ("big",)
    here.settle()
    with pytest.raises(SchedulerError) as refused:
        here.cluster.submit(spec(**wants), ANN, here.now)  # type: ignore[arg-type]
    assert str(refused.value) == sentence
    here.store.close()


def test_the_first_job_has_a_start_though_nothing_is_free_for_a_plan(tmp_path: Path) -> None:
    """When as many of its nodes are left as it needs; those behind it say that nobody has planned theirs."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    for minutes in (5, 10):
        here.submit(spec(minutes=minutes, job_class="rigid"))
    here.settle()
    one, behind = (here.submit(spec(nodes, job_class="rigid")) for nodes in (1, 2))
    assert one
    assert behind
    here.settle()
    controller = here.cluster.controller
    assert controller
    assert {controller.planned(job.number) for job in (one, behind)} == {NEVER}

    start = here.cluster.jobs[1].started
    assert start is not None
    assert explain.expected_start(one, here.cluster, here.now) == int(start) + 300
    assert explain.explain(one, here.cluster, start)[1:] == [
        "It is number 1 of 2 jobs that wait.",
        "It needs 1 node; 0 are free.",
        "It is expected to start in 5 min, if nothing changes.",
    ]
    assert explain.expected_start(behind, here.cluster, here.now) is None
    assert explain.explain(behind, here.cluster, start)[-1] == "No start is planned for it yet."
    here.cluster.cancel(one.number, here.now, "cancelled by ann")
    here.settle()
    assert "It is the only job that waits." in explain.explain(behind, here.cluster, here.now)
    assert explain.expected_start(behind, here.cluster, here.now) == int(start) + 600
    here.store.close()


def test_a_start_is_not_expected_once_that_has_become_false(tmp_path: Path) -> None:
    """A guest has made the job before it longer, its moment has passed, or nodes were drained since it was planned."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    host = here.submit(spec(minutes=10))
    first = here.submit(spec(minutes=600, job_class="rigid"))
    behind = here.submit(spec(minutes=600, job_class="rigid"))
    assert host
    assert first
    assert behind
    here.settle()
    controller = here.cluster.controller
    assert isinstance(controller, Controller)
    started, planned = int(host.started or 0), controller.world.jobs.planned
    planned[controller.world.queue[:2]] = started + 600, started + 600 + 36000

    def expected() -> list[float | None]:
        return [explain.expected_start(job, here.cluster, here.now) for job in (first, behind)]

    assert expected() == [started + 600, started + 36600]
    guest = here.submit(spec(minutes=1, priority=1))
    here.settle()
    assert guest
    assert (guest.state, host.limit) == ("running", 660)
    planned[controller.world.queue[:2]] = started + 600, started + 630
    assert expected() == [started + 660, None]
    here.cluster.members.drain("n0", "dust")
    assert expected() == [None, None]
    here.cluster.members.drain("n0", "")
    here.now = started + 661.0
    assert expected() == [None, None]
    here.store.close()


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        (0, "completed", ""),
        (3, "failed", "it returned 3"),
        (-9, "failed", "it was ended by SIGKILL"),
        (-40, "failed", "it was ended by signal 40"),
    ],
)
def test_how_a_job_has_ended_is_told_in_words(tmp_path: Path, status: int, state: str, reason: str) -> None:
    """Signals by their names, where they have any; of one that ended well there is nothing to say."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    job = here.submit(spec())
    assert job
    here.settle()
    here.nodes["n0"].end((job.number, 1), status)
    here.settle()

    assert (job.state, explain.why(job, here.cluster)) == (state, reason)
    (said,) = explain.explain(job, here.cluster, here.now)
    assert said.startswith(f"It is over: {state} after ")
    assert said.endswith(f": {reason}." if reason else " s.")
    here.store.close()


@pytest.mark.parametrize(
    ("stubborn", "reason"),
    [
        (False, "its limit of 60 s was over"),
        (True, "its limit of 60 s was over, and it was killed, as it did not end on SIGTERM"),
    ],
)
def test_a_job_that_ends_at_its_limit_says_so(tmp_path: Path, *, stubborn: bool, reason: str) -> None:
    """While it ends, with how long that may take, and once it is over."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    job = here.submit(spec())
    assert job
    here.settle()
    here.turn(61.0)

    assert explain.explain(job, here.cluster, here.now) == [
        "It has 4 of 4 cores of n0.",
        "Its limit of 60 s is over: it received SIGTERM, and is killed within 5.0 s.",
    ]
    if stubborn:
        here.nodes["n0"].inbox.clear()
        here.nodes["n0"].end((job.number, 1), -signal.SIGKILL)
    here.settle()
    assert (job.state, explain.why(job, here.cluster)) == ("timeout", reason)
    here.store.close()


def test_each_node_of_a_job_is_told_once_that_its_first_node_has_left(tmp_path: Path) -> None:
    """A job of n nodes ends with n - 1 signals, whenever the nodes report."""
    here = FakeCluster(tmp_path, load_policy("easy"), 6)
    here.settle()
    job = here.submit(spec(6))
    assert job
    here.settle()
    first, *others = (here.nodes[name] for name in job.left)
    first.end((job.number, 1), 0)
    here.hear(first)
    killed = []
    for node in others:
        killed += [(node.name, one) for one in node.inbox if isinstance(one, say.Signal)]
        node.read_all()
        here.hear(node)

    assert killed == [(node.name, say.Signal(job.number, 1, signal.SIGKILL, None)) for node in others]
    assert job.state == "completed"
    here.store.close()


def test_a_job_that_is_ended_says_by_whom(tmp_path: Path) -> None:
    """What is left of one whose first node has been left is killed, whatever the reason was."""
    here = FakeCluster(tmp_path, load_policy("easy"), 2)
    here.settle()
    cancelled = here.submit(spec(2))
    assert cancelled
    here.settle()
    here.cluster.cancel(cancelled.number, here.now, "cancelled by root")
    assert explain.explain(cancelled, here.cluster, here.now)[1] == (
        "It was cancelled by root: it received SIGTERM, and is killed within 5.0 s."
    )
    here.settle()
    fails = here.submit(spec(2))
    assert fails
    here.settle()
    here.nodes["n0"].end((fails.number, 1), 3)
    here.hear(here.nodes["n0"])

    assert explain.explain(fails, here.cluster, here.now) == [
        "It has 4 of 4 cores of n1.",
        "Its own program has ended: what is left of it is killed.",
    ]
    here.settle(ends=True)
    here.store.close()


def test_a_held_job_says_who_holds_it_and_how_to_release_it(tmp_path: Path) -> None:
    """Also after a restart; its own user need not be told that it was them."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    own, other = here.submit(spec(hold=True)), here.submit(spec(hold=True))
    assert own
    assert other
    here.cluster.hold(other.number, here.now, "ann", held=False)
    here.cluster.hold(other.number, here.now, "root", held=True)
    here.send()
    here.crash()

    assert [explain.why(job, here.cluster) for job in here.cluster.jobs.values()] == [
        "held: release it with drom hold --release 1",
        "held by root: release it with drom hold --release 2",
    ]
    assert [entry.detail for entry in here.store.history(2, 2)][1:] == [{"by": "ann"}, {"by": "root"}]
    here.store.close()


def test_a_mate_says_for_whom_it_shrank_and_how_much_longer_it_may_take(tmp_path: Path) -> None:
    """Long after its guest has ended, by what has happened to it; the guest has a limit of its own."""
    here, mate = with_mate(tmp_path, POLICY, 2)
    guest = here.submit(spec(2, 10))
    assert guest
    here.settle()
    for node in here.nodes.values():
        node.end((guest.number, 1), 0)
    here.settle()

    history = {job.number: list(here.store.history(job.number, job.number)) for job in (mate, guest)}
    ordered = [entry.detail for entry in history[1] if entry.what == "ordered"]
    assert {(one["node"], one["cores"], one.get("for")) for one in ordered} == {
        *(("n0", 2, guest.number), ("n1", 2, guest.number)),
        *(("n0", 4, None), ("n1", 4, None)),
    }
    limits = {
        number: [e.detail["seconds"] for e in entries if e.what == "limit"] for number, entries in history.items()
    }
    assert limits == {1: [mate.limit], 2: [1200]}
    assert mate.limit > 3600
    here.settle(ends=True)
    here.store.close()


def test_submissions_are_taken_back_together(tmp_path: Path) -> None:
    """Nothing of them is left, not even their numbers; those before them stay."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    kept = here.cluster.submit(spec(hold=True), ANN, 1.0)
    many = [here.cluster.submit(spec(hold=held), ANN, 1.0) for held in (False, True, False)]

    here.cluster.discard(many)

    assert here.cluster.jobs == here.cluster.outbox.jobs == {kept.number: kept}
    assert [entry.job for entry in here.cluster.outbox.entries] == [kept.number]
    assert here.cluster.submit(spec(), ANN, 1.0).number == many[0].number
    here.store.close()


def test_all_of_a_long_chain_are_cancelled_when_its_first_job_fails(tmp_path: Path) -> None:
    """However long it is; a job that waits for two of them is cancelled once."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    first = here.submit(spec())
    assert first
    for number in range(first.number, first.number + 600):
        here.cluster.submit(spec(after=(Dependency("afterok", number),)), ANN, here.now)
    here.cluster.submit(spec(after=(Dependency("afterok", 2), Dependency("afterok", 3))), ANN, here.now)
    here.settle()
    here.nodes["n0"].end((first.number, 1), 1)
    here.settle()

    states = [job.state for job in list(here.store.newest(1000))[::-1]]
    assert states == ["failed", *["cancelled"] * 601]
    assert len([entry for entry in here.store.history() if entry.what == "cancelled"]) == 601
    here.store.close()


def test_what_follows_for_many_jobs_takes_several_turns(tmp_path: Path) -> None:
    """So that others are heard between: those that wait for a job are cancelled, or start, a few in each turn."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    first, second = here.submit(spec(hold=True)), here.submit(spec())
    assert first
    assert second
    asks = [spec(after=(Dependency(kind, job.number),)) for kind, job in (("afterok", first), ("afterany", second))]
    doomed, others = (here.cluster.submit_many(one, ANN, here.now, 3 * STEPS) for one in asks)
    here.settle()
    here.cluster.cancel(first.number, here.now, "cancelled by ann")
    turns = 0
    while here.cluster.queue.is_behind:
        assert sum(job.state == "cancelled" for job in doomed) == STEPS * (1 + turns)
        assert here.cluster.next_look() == 0.0
        here.cluster.turn(here.now)
        turns += 1
    assert turns == 3
    assert all(job.state == "cancelled" and f"job {first.number}" in job.reason for job in doomed)

    here.send()
    here.nodes["n0"].end((second.number, 1), 0)
    here.settle()
    assert not here.cluster.queue.is_behind
    assert not any(here.cluster.queue.waits_for(job.number) for job in others)
    here.store.close()


def test_who_waits_for_many_is_looked_at_for_the_one_that_changed(tmp_path: Path) -> None:
    """Those that are over and forgotten are not looked up again, nor is it written down again."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    for _ in range(20):
        here.submit(spec(job_class="rigid"))
    collects = here.submit(
        spec(after=tuple(Dependency(kind, n) for n in range(1, 21) for kind in ("after", "afterok")))
    )
    assert collects
    past: list[int] = []
    here.cluster.state.past = past.append
    for number in range(1, 21):
        assert here.cluster.queue.waits_for(collects.number) == list(range(number, 21))
        here.settle()
        here.cluster.agents.on_message("n0", say.Ended(number, 1, 0, here.now, 0.0, 0), here.now)
        here.nodes["n0"].known.clear()
        assert set(here.cluster.outbox.jobs) == {number}
        here.send()
        here.cluster.forget_final(0)
    here.settle()

    assert (collects.state, past) == ("running", [])
    here.store.close()


@pytest.mark.parametrize(("began", "started"), [(-8.0, -8.0), (5.0, 0.0), (-1e9, -20.0), (None, None)])
def test_a_job_may_start_and_end_while_no_scheduler_is_there(
    tmp_path: Path, began: float | None, started: float | None
) -> None:
    """It has started when its node says, between its submission and its end; both are in its history."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    job = here.cluster.submit(spec(), ANN, here.now)
    here.turn()
    here.now += 20
    assert (job.state, job.started) == ("starting", None)
    at = 0.0 if began is None else here.now + began
    here.cluster.agents.on_message("n0", say.Ended(job.number, 1, 0, here.now, 1.0, 0, began=at), here.now)
    here.send()

    assert job.state == "completed"
    assert job.started == (None if started is None else here.now + started)
    events = [(entry.what, entry.at) for entry in here.store.history(job.number, job.number)]
    assert [at for what, at in events if what == "started"] == ([] if started is None else [job.started])
    here.store.close()


def test_what_can_never_start_is_refused(tmp_path: Path) -> None:
    """Before it has a number; what may still be is taken in."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    first = here.submit(spec())
    assert first
    here.settle()
    here.nodes["n0"].end((first.number, 1), 1)
    here.settle()

    sentence = "the job could never start, as it was to start after success of job 1, which is failed: "
    with pytest.raises(SchedulerError, match=rf"^{sentence}leave that out of --dependency, or name another job\.$"):
        here.cluster.submit(spec(after=(Dependency("afterok", 1),)), ANN, here.now)
    assert list(here.cluster.jobs) == [1]
    assert here.submit(spec(after=(Dependency("afternotok", 1),)))
    here.store.close()


def test_a_job_ends_though_who_waited_for_it_is_forgotten(tmp_path: Path) -> None:
    """One was cancelled long ago, another was taken back as it could not be written down."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    job = here.submit(spec())
    later = here.submit(spec(after=(Dependency("afterany", 1),)))
    assert job
    assert later
    here.cluster.discard([here.cluster.submit(spec(after=(Dependency("afterany", 1),)), ANN, here.now)])
    here.cluster.cancel(later.number, here.now, "cancelled by ann")
    here.send()
    here.cluster.forget_final(0)
    assert list(here.cluster.jobs) == [job.number]

    here.settle(ends=True)

    assert [one.state for one in list(here.store.newest(10))[::-1]] == ["completed", "cancelled"]
    here.store.close()


def test_texts_are_kept_no_longer_than_a_job_may_need_them(tmp_path: Path) -> None:
    """Also not if it ends in the moment in which it comes, and its like goes on; what it asked for stays."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    wanted = spec(script="#!/bin/sh\nsecret\n", environment={"TOKEN": "secret"})
    first, second = here.cluster.submit_many(wanted, ANN, here.now, 2)
    here.cluster.cancel(second.number, here.now, "cancelled by ann")
    here.send()
    here.crash()

    kept = replace(here.cluster.jobs[first.number].spec, script="#!", environment={})
    assert here.cluster.jobs[first.number].spec.environment == wanted.environment
    assert here.store.job(second.number).spec == kept  # type: ignore[union-attr]
    here.settle(ends=True)
    assert here.store.job(first.number).spec == kept  # type: ignore[union-attr]
    here.store.close()


def test_a_job_is_forgotten_only_when_nobody_waits_for_it(tmp_path: Path) -> None:
    """Whoever does starts though its scheduler was killed meanwhile; nobody can begin to wait for one that is gone."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    first = here.submit(spec())
    assert first
    here.settle(ends=True)
    held = here.submit(spec(hold=True, after=(Dependency("afterok", first.number),)))
    assert held
    here.now += 100.0
    assert here.store.forget(here.now, here.cluster.needed(), 9) == []
    here.crash()
    here.settle()
    here.cluster.hold(held.number, here.now, "ann", held=False)
    here.settle(ends=True)
    assert here.store.job(held.number).state == "completed"  # type: ignore[union-attr]

    here.now += 100.0
    here.cluster.forget(here.store.forget(here.now, here.cluster.needed(), 9))

    assert list(here.cluster.jobs) == [held.number]
    with pytest.raises(SchedulerError, match=rf"^there is no job {first.number} to wait for: see drom queue --all\.$"):
        here.cluster.submit(spec(after=(Dependency("afterok", first.number),)), ANN, here.now)
    here.store.close()


def test_a_job_that_waits_for_the_start_of_another_follows_it(tmp_path: Path) -> None:
    """At once, not when that has ended."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    first = here.submit(spec())
    second = here.submit(spec(after=(Dependency("after", 1),)))
    assert first
    assert second
    here.settle()

    assert (first.state, second.state) == ("running", "running")
    here.store.close()


def test_what_agents_measure_counts_where_all_nodes_are_as_large(tmp_path: Path) -> None:
    """For the attempt that runs, with the size that it is to have; it is forgotten with the job."""
    here, mate = with_mate(tmp_path, POLICY_FED, 2)

    def tell(name: str, *paces: say.Pace) -> dict[int, float]:
        """Let a node say this as often as it takes, and return what is known."""
        for _ in range(3):
            here.nodes[name].outbox.append(say.Alive(name, 0.0, paces))
            here.hear(here.nodes[name])
        return (
            here.cluster.executions.rates[mate.number].known() if mate.number in here.cluster.executions.rates else {}
        )

    for strange in (say.Pace(9, 1, 4, 1.0, 5), say.Pace(1, 2, 4, 1.0, 5), say.Pace(1, 1, 2, 1.0, 5)):
        assert tell("n0", strange) == {}
    assert tell("n0", say.Pace(1, 1, 4, 0.0, 5)) == {}
    assert tell("n0", say.Pace(1, 1, 4, 1.0, 8)) == {4: 8.0}
    assert tell("n1", say.Pace(1, 1, 4, 1.0, 12)) == {4: 10.0}
    guest = here.submit(spec(2, 1))
    assert guest
    here.settle()
    assert tell("n1", say.Pace(1, 1, 4, 1.0, 99), say.Pace(1, 1, 2, 2.0, 12)) == {2: 6.0, 4: 10.0}

    said = explain.explain(mate, here.cluster, here.now)
    assert "Of its speed with 4 of 4 cores it was measured to have 0.60 with 2." in said
    controller = here.cluster.controller
    assert isinstance(controller, Controller)
    assert controller.world.rates[0].tolist() == [0, 0, 600_000_000, 0, 1_000_000_000]
    here.settle(ends=True)
    assert here.cluster.executions.rates == {}
    here.store.close()


@pytest.mark.parametrize(("choice", "tasks", "may"), [("0", 2, True), ("1", 2, False), ("1", 1, True)])
def test_who_may_share_has_room_with_the_least_share(choice: str, tasks: int, *, may: bool) -> None:
    """With feedback a guest or a mate may have a quarter of a node."""
    policy = load_policy("sd", ("reservations=nodes", f"feedback={choice}"))

    assert admission.may_share(spec(tasks=tasks), [], policy, 4) == may


def test_a_mate_is_not_asked_for_room_while_one_of_its_nodes_is_away(tmp_path: Path) -> None:
    """The mate would shrink for a guest that cannot start; once the node is back, the mate makes room."""
    here, mate = with_mate(tmp_path, POLICY, 2)
    here.crash()
    here.join(here.nodes["n1"])
    guest = here.submit(spec(2, 1))
    assert guest
    here.turn()

    assert here.warnings == []
    assert here.cluster.jobs[mate.number].shares == {"n0": 4, "n1": 4}

    here.settle()
    assert here.cluster.jobs[guest.number].shares == {"n0": 2, "n1": 2}
    here.store.close()


def test_a_guest_whose_mate_ends_instead_of_shrinking_starts_with_what_it_is_held_at(tmp_path: Path) -> None:
    """The guest has all cores at once, and the next guest waits until the first one has given some up."""
    here, mate = with_mate(tmp_path, POLICY, 1)
    node = here.nodes["n0"]
    guest = here.submit(spec(1, 20))
    assert guest
    here.turn(1.0)
    node.end((mate.number, 1), 0)
    node.read_all()
    while node.outbox:
        here.hear(node)
    here.turn(1.0)
    (start,) = [message for message in node.inbox if isinstance(message, say.Start)]
    here.settle()
    other = here.submit(spec(1, 1))
    assert other
    here.turn(1.0)

    assert start.cores == node.cores
    assert here.cluster.dispatch.waiting_for(other.number) == [guest.number]
    here.settle()
    here.check()
    assert {here.cluster.jobs[job.number].state for job in (guest, other)} == {"running"}
    here.store.close()


@pytest.mark.parametrize("requeue", [True, False])
def test_a_launcher_that_fails_as_a_node_is_lost_is_lost_with_it(tmp_path: Path, *, requeue: bool) -> None:
    """The former notices first, as mpirun does; its job is begun anew, or fails, as it asked."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2, requeue=requeue))
    assert job
    here.settle()
    here.nodes["n0"].end((job.number, 1), 205)
    here.hear(here.nodes["n0"])
    assert job.state == "ending"
    here.nodes["n1"].known.clear()
    here.nodes["n1"].launched.clear()
    here.settle()

    here.join(here.nodes["n1"])
    here.settle()

    found = here.cluster.jobs[job.number]
    assert (found.state, found.attempt) == (("running", 2) if requeue else ("node_fail", 1))
    here.store.close()


def lose(here: FakeCluster, job: Job, after: float = 1.0, status: int = -9) -> Job:
    """Let a job of two nodes begin, and lose its part on the second one so many seconds later; return it."""
    here.settle()
    here.turn(after)
    job = here.cluster.jobs[job.number]
    here.nodes["n1"].end((job.number, job.attempt), status)
    here.hear(here.nodes["n1"])
    here.nodes["n0"].read_all()
    here.hear(here.nodes["n0"])
    return job


@pytest.mark.parametrize("where", ["n0", "n1"])
def test_a_job_that_needs_too_much_memory_fails_and_says_so(tmp_path: Path, where: str) -> None:
    """The job does not wait again as a lost one does: it would need as much again."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2, memory=100 << 20))
    assert job
    here.settle()
    note = "it needed more than its 100 MiB of memory: ask for more with --mem."
    here.nodes[where].known[job.number, 1].over_memory = note
    here.nodes[where].end((job.number, 1), -9)
    here.settle()

    assert (job.state, job.reason) == ("failed", note)
    here.store.close()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_job_that_is_lost_soon_after_each_start_is_held(tmp_path: Path, *, crashes: bool) -> None:
    """Its script may end all that its user has on the other nodes; whoever releases it has it tried as often again."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2, 60))
    assert job
    for _ in range(2):
        for _ in range(MOST_LOSSES):
            assert not job.held
            job = lose(here, job)
            assert (job.state, job.reason) == ("pending", "its part on n1 was ended by SIGKILL")
            if crashes:
                here.crash()
        here.settle()
        job = here.cluster.jobs[job.number]
        assert explain.explain(job, here.cluster, here.now) == [
            "It waits: held, as it was lost 5 times soon after its start: release it with drom hold --release 1.",
            "Last time: its part on n1 was ended by SIGKILL.",
        ]
        here.cluster.hold(job.number, here.now, "ann", held=False)

    last = [entry for entry in here.store.history() if entry.what == "held"][-1]
    assert last.detail == {"reason": "it was lost 5 times soon after its start"}
    here.settle(ends=True)
    assert here.store.job(job.number).state == "completed"  # type: ignore[union-attr]
    here.store.close()


def test_only_a_loss_soon_after_a_start_counts(tmp_path: Path) -> None:
    """Nor does it when a node was too busy to start the job, or when it is not begun anew."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2, 60))
    assert job
    assert lose(here, job, SOON + 1, 3).reason == "its part on n1 returned 3"
    here.turn()
    here.nodes["n1"].inbox.popleft()
    assert here.nodes["n1"].refuse()
    here.settle()
    here.turn(1.0)
    here.settle()
    assert (job.state, job.attempt, job.losses) == ("running", 3, 0)
    here.cluster.cancel(job.number, here.now, "cancelled by ann")
    other = here.submit(spec(2, 60, requeue=False))
    assert other
    other = lose(here, other)
    assert (other.state, other.losses, other.reason) == ("node_fail", 0, "its part on n1 was ended by SIGKILL")
    here.store.close()


@pytest.mark.parametrize("how", ["failed", "cancelled"])
def test_a_job_that_is_over_before_a_node_could_start_it_ends(tmp_path: Path, how: str) -> None:
    """The agent of its second node began anew when it was told to; it is not told again."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2))
    assert job
    here.turn(1.0)
    n0, n1 = here.nodes["n0"], here.nodes["n1"]
    n1.inbox.clear()
    n0.read()
    here.hear(n0)
    if how == "failed":
        n0.end((job.number, 1), 3)
        here.hear(n0)
    else:
        here.cluster.cancel(job.number, here.now, "cancelled by ann")
        here.send()
    assert job.state == "ending"

    here.join(n1)
    here.settle()

    assert (here.cluster.jobs[job.number].state, n1.launched) == (how, set())
    here.store.close()


def test_a_post_to_a_silent_node_is_lost_only_when_its_job_has_left_it(tmp_path: Path) -> None:
    """Its agent may be back when it is asked again: a launcher that heard of a loss would give its job up."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2, 60))
    assert job
    here.settle()
    n0, n1 = here.nodes["n0"], here.nodes["n1"]
    post = say.Post(job.number, 1, "n0", "n1", {"step": "1"})

    def ask() -> list[say.ToAgent]:
        n0.outbox.append(post)
        here.hear(n0)
        return [message for node in (n0, n1) for message in node.inbox if isinstance(message, (say.Post, say.Lost))]

    n1.welcome = False
    here.turn(SETTINGS.silence + 1)
    assert (here.cluster.nodes["n1"].state, ask()) == ("gone", [])
    here.join(n1)
    assert ask() == [post]
    n1.inbox.clear()
    n1.welcome = False
    here.turn(SETTINGS.silence + 1)
    here.turn(SETTINGS.give_up + 1)
    assert ask() == [say.Lost(job.number, 1, "n1", {"step": "1"})]
    here.store.close()


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("sure", [True, False])
def test_a_node_that_does_not_come_back_after_a_restart_is_given_up(
    tmp_path: Path, *, sure: bool, requeue: bool
) -> None:
    """Its jobs leave their other nodes, also those of which nobody knows whether they had been started."""
    here = FakeCluster(tmp_path, POLICY, 2, GIVING_UP)
    here.settle()
    job = here.submit(spec(2, 60, requeue=requeue))
    assert job
    if sure:
        here.settle()
    else:
        here.turn(1.0)
    here.crash()
    here.join(here.nodes["n0"])
    here.nodes["n0"].read()
    assert here.cluster.jobs[job.number].state == ("running" if sure else "starting")

    for _ in range(14):
        here.turn(10.0)
    assert here.cluster.nodes["n1"].state == "down"
    n0 = here.nodes["n0"]
    while n0.inbox or n0.outbox:
        if n0.inbox:
            n0.read()
        else:
            here.hear(n0)
    assert here.cluster.jobs[job.number].state == ("pending" if requeue else "node_fail")
    assert n0.known == {}

    here.settle()
    assert here.cluster.jobs[job.number].state == ("running" if requeue else "node_fail")
    here.settle(ends=True)
    here.store.close()


def test_a_job_that_never_began_waits_again_whatever_it_asked_for(tmp_path: Path) -> None:
    """Its node was given up before its mate had made room: nothing of it has run, so nothing can run twice."""
    here = FakeCluster(tmp_path, POLICY, 1, GIVING_UP)
    here.settle()
    mate = here.submit(spec(1, 60, requeue=False))
    here.settle()
    guest = here.submit(spec(1, 1, requeue=False))
    assert mate
    assert guest
    here.turn(1.0)
    assert here.cluster.dispatch.waiting_for(guest.number) == [mate.number]
    here.nodes["n0"].welcome = False
    here.turn(GIVING_UP.silence + 1)
    here.turn(GIVING_UP.give_up + 1)

    assert (mate.state, guest.state) == ("node_fail", "pending")
    here.settle()
    assert here.cluster.jobs[guest.number].state == "running"
    here.store.close()


@pytest.mark.parametrize(("refuses", "state"), [("n0", "pending"), ("n1", "failed")])
def test_a_job_that_a_node_could_not_begin_waits_again(tmp_path: Path, refuses: str, state: str) -> None:
    """Also one that is not to begin anew, where the node that was to start its program has not; others cannot know."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2, requeue=False))
    assert job
    here.turn(1.0)
    for name, node in here.nodes.items():
        if name == refuses:
            node.inbox.clear()
            node.outbox.append(say.Refused(job.number, 1, "node", "it is full."))
        else:
            node.read()
    for name in sorted(here.nodes, key=refuses.__eq__):
        here.hear(here.nodes[name])
    while here.cluster.jobs[job.number].state == "ending":
        here.settle()

    assert here.cluster.jobs[job.number].state == state
    assert (here.cluster.nodes[refuses].drained, job.launcher) == ("it is full.", "" if state == "pending" else "n0")
    here.store.close()


def test_a_node_that_cannot_start_jobs_now_is_put_off(tmp_path: Path) -> None:
    """For longer each time until it starts one; nobody drains it, and its jobs wait."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    job, node = here.submit(spec()), here.nodes["n0"]
    assert job
    asked = []
    for _ in range(800):
        here.turn(0.25)
        while node.inbox:
            if node.refuse():
                asked.append(here.now)
            else:
                node.read()
        while node.outbox:
            here.hear(node)

    assert [round(later - before) for before, later in itertools.pairwise(asked)] == [1, 2, 4, 8, 16, 32, 60, 60]
    found = here.cluster.nodes["n0"]
    assert (found.state, found.busy, found.drained, found.pause) == ("busy", "it is frozen.", "", 60.0)
    assert here.cluster.next_look() <= found.again  # type: ignore[operator]
    assert (job.state, job.reason) == ("pending", "node n0: it is frozen.")
    said = explain.explain(job, here.cluster, here.now)
    assert "It waits: 1 of its nodes cannot start jobs now: it is frozen." in said
    assert "It needs 1 node; 0 are free, 1 cannot start jobs now." in said
    here.turn(60.0)
    here.settle()
    assert (job.state, found.state, found.pause, found.again) == ("running", "up", 0.0, None)
    here.store.close()


def test_a_busy_node_is_as_good_as_any_for_the_next_scheduler(tmp_path: Path) -> None:
    """Nothing of it lasts, though the node was written down meanwhile."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    job = here.submit(spec())
    assert job
    here.turn()
    assert here.nodes["n0"].refuse()
    here.hear(here.nodes["n0"])
    here.cluster.members.drain("n0", "dust")
    here.cluster.members.drain("n0", "")
    here.send()
    assert here.cluster.nodes["n0"].state == "busy"
    here.crash()
    here.settle()

    assert here.cluster.jobs[job.number].state == "running"
    here.store.close()


def test_a_job_that_starts_where_it_is_not_to_be_any_more_is_killed(tmp_path: Path) -> None:
    """The order of an earlier scheduler came late; until it has ended its cores are not free."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    node, job = here.nodes["n0"], here.submit(spec())
    assert job
    here.turn()
    (late,) = node.inbox
    here.crash()
    here.join(node)
    here.cluster.cancel(job.number, here.now, "cancelled by ann")
    here.send()
    node.inbox.append(late)
    node.read_all()
    here.hear(node)
    other = here.submit(spec(job_class="rigid"))
    assert other
    here.turn()

    assert node.inbox == deque([say.Signal(job.number, 1, signal.SIGKILL, None)])
    assert other.state == "pending"
    here.settle()
    assert (list(node.known), other.state) == ([(other.number, 1)], "running")
    here.store.close()


@pytest.mark.parametrize("who", ["scheduler", "agent"])
@pytest.mark.parametrize("obeys", [True, False])
def test_a_mate_that_has_not_shrunk_when_somebody_is_killed_is_told_again(
    tmp_path: Path, who: str, *, obeys: bool
) -> None:
    """Its node says what it holds, whatever it was told to; its guest starts when it has shrunk, and not before."""
    here, mate = with_mate(tmp_path, POLICY, 1)
    node = here.nodes["n0"]
    guest = here.submit(spec(1, 1))
    assert guest
    here.turn()
    node.read_all()
    assert list(node.known[mate.number, 1].ordered) == [2]
    node.known[mate.number, 1].ordered.clear()
    if who == "scheduler":
        here.crash()
        here.turn()
    here.join(node)
    here.turn()

    resize = say.Resize(mate.number, 1, 2, SETTINGS.shrink_within)
    assert [message for message in node.inbox if not isinstance(message, say.Welcome)] == [resize]
    assert here.cluster.dispatch.waiting_for(guest.number) == [mate.number]
    node.read_all()
    here.turn(1.0)
    assert not node.inbox
    node.follow((mate.number, 1), obeys=obeys)
    here.hear(node)
    assert here.cluster.jobs[guest.number].state == ("starting" if obeys else "pending")
    here.turn()
    assert [message.job for message in node.inbox if isinstance(message, say.Start)] == [guest.number] * obeys
    here.store.close()


def test_nothing_is_due_while_a_silent_node_is_waited_for(tmp_path: Path) -> None:
    """The scheduler sleeps until the node is given up."""
    here = FakeCluster(tmp_path, POLICY, 1, GIVING_UP)
    here.settle()
    here.nodes["n0"].welcome = False
    here.turn(SETTINGS.silence + 1)

    assert here.cluster.nodes["n0"].state == "gone"
    assert here.cluster.next_look() == here.now + GIVING_UP.give_up
    here.store.close()


def test_a_limit_that_is_changed_keeps_what_it_grew_by(tmp_path: Path) -> None:
    """A mate has its new time and what it lost to a guest; it ends then, and not at its first limit."""
    here, mate = with_mate(tmp_path, POLICY, 1)
    guest = here.submit(spec(minutes=5))
    assert guest
    here.settle()
    assert (mate.shares, guest.shares) == ({"n0": 2}, {"n0": 2})
    grown = mate.limit - 3600
    assert grown > 0
    for seconds in (1800, 5400):
        here.cluster.update(mate.number, here.cluster.changed(mate.number, {"time": seconds}), here.now, "root", "")
        here.send()
        assert mate.limit == seconds + grown
    here.now += 1000
    with pytest.raises(SchedulerError, match=r"^with 1\.0 s the limit of job 1 would be over: give a longer --time, "):
        here.cluster.update(mate.number, here.cluster.changed(mate.number, {"time": 1}), here.now, "root", "")
    here.crash()
    here.settle()
    mate = here.cluster.jobs[mate.number]
    assert here.cluster.controller
    assert here.cluster.controller.limit(mate.number) == mate.limit >= 5400
    here.turn(mate.started + mate.limit - here.now - 2)  # type: ignore[operator]
    assert mate.state == "running"
    here.turn(3)
    assert mate.verdict == "timeout"
    here.store.close()


@pytest.mark.parametrize(("after", "state"), [(50.0, "completed"), (70.0, "timeout")])
def test_a_job_that_has_ended_while_nobody_heard_is_no_timeout(tmp_path: Path, after: float, state: str) -> None:
    """Unless it took longer than it might; the first turn of the next scheduler is before its node speaks."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    job = here.submit(spec(1, 1))
    assert job
    here.settle()
    here.crash()
    here.now += after
    here.nodes["n0"].end((job.number, 1), 0)
    here.turn(100.0)
    here.settle()

    assert here.store.job(job.number).state == state  # type: ignore[union-attr]
    here.store.close()


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("scheduler_is_there", [False, True])
def test_a_job_has_ended_when_its_programs_have_and_not_when_that_is_reported(
    tmp_path: Path, nodes: int, *, scheduler_is_there: bool
) -> None:
    """Its history, its run time and what it pays say so, whether the scheduler or the agents were away meanwhile."""
    here = FakeCluster(tmp_path, POLICY, nodes)
    here.settle()
    job = here.submit(spec(nodes, 60))
    assert job
    here.settle()
    if not scheduler_is_there:
        here.crash()
    here.now += 50.0
    ended = here.now
    for node in here.nodes.values():
        node.end((job.number, 1), 0)
    here.now += 5000.0
    here.settle()

    found, last = here.store.job(job.number), here.store.history(job.number, job.number)[-1]
    assert found
    assert (found.state, found.ended, last.what, last.at) == ("completed", ended, "completed", ended)
    here.store.close()


def test_a_job_that_has_not_started_is_no_timeout(tmp_path: Path) -> None:
    """The job waits again when its node is given up, and then has its whole time limit."""
    here = FakeCluster(tmp_path, POLICY, 1, GIVING_UP)
    here.settle()
    job = here.submit(spec(1, 1))
    assert job
    here.turn(1.0)
    here.nodes["n0"].welcome = False
    here.nodes["n0"].inbox.clear()
    here.turn(GIVING_UP.silence + 1)
    here.turn(70.0)
    assert job.state == "starting"
    here.join(here.nodes["n0"])
    here.settle()
    assert job.state == "running"
    here.turn(50.0)
    assert job.state == "running"
    here.turn(11.0)
    assert (job.state, job.verdict) == ("ending", "timeout")
    here.settle()
    assert job.state == "timeout"
    here.store.close()


def test_a_job_that_is_cancelled_while_it_is_to_begin_anew_does_not(tmp_path: Path) -> None:
    """Its user was told that it ends."""
    here = FakeCluster(tmp_path, POLICY, 2)
    here.settle()
    job = here.submit(spec(2))
    assert job
    here.settle()
    here.nodes["n1"].known.clear()
    here.join(here.nodes["n1"])
    assert (job.state, job.verdict) == ("ending", "requeue")

    here.cluster.cancel(job.number, here.now, "cancelled by ann")
    here.settle()

    assert (job.state, job.reason) == ("cancelled", "cancelled by ann")
    here.store.close()


def test_growth_that_is_refused_is_not_ordered_again_at_once(tmp_path: Path) -> None:
    """Only after a pause, which grows, until it succeeds."""
    here, mate = with_mate(tmp_path, POLICY, 1)
    guest = here.submit(spec(1, 1))
    assert guest
    here.settle()
    node = here.nodes["n0"]
    node.end((guest.number, 1), 0)
    orders = []
    for _ in range(400):
        node.read_all()
        if node.running[mate.number, 1].ordered:
            orders.append(here.now)
            node.running[mate.number, 1].cores = 2
            node.follow((mate.number, 1), obeys=False)
        while node.outbox:
            here.hear(node)
        here.turn(0.25)

    pauses = [round(later - before) for before, later in itertools.pairwise(orders)]
    assert pauses == [1, 2, 4, 8, 16, 32]
    here.settle()
    here.turn(60.0)
    here.settle()
    assert node.running[mate.number, 1].cores == 4
    here.store.close()


def test_a_job_that_ends_is_told_once(tmp_path: Path) -> None:
    """Neither its limit nor its user puts off when it is killed."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    job = here.submit(spec(1, 1))
    assert job
    here.settle()
    here.turn(61.0)
    assert job.verdict == "timeout"
    for _ in range(3):
        here.turn(40.0)
        here.cluster.cancel(job.number, here.now, "cancelled by ann")
        here.send()

    assert [message.then_kill for message in here.nodes["n0"].inbox if isinstance(message, say.Signal)] == [5.0]
    here.settle()
    assert job.state == "timeout"
    here.store.close()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_job_has_all_the_seconds_of_its_limit(tmp_path: Path, *, crashes: bool) -> None:
    """Whenever in a second it begins, and also when the scheduler was away."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    here.turn(math.ceil(here.now) + 0.9 - here.now)
    job = here.submit(spec(1, 1))
    assert job
    here.settle()
    began = job.started
    assert began is not None
    assert began % 1 > 0.8
    if crashes:
        here.crash()
        here.settle()
        job = here.cluster.jobs[job.number]
    here.turn(began + 59.9 - here.now)
    assert (job.state, job.verdict) == ("running", "")
    assert here.cluster.next_look() <= began + 60.0
    here.turn(0.11)

    assert job.verdict == "timeout"
    here.store.close()


def test_a_job_that_ends_within_the_last_second_of_its_limit_is_no_timeout(tmp_path: Path) -> None:
    """Nor is anybody looked for who has left."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    here.turn(math.ceil(here.now) + 0.9 - here.now)
    job = here.submit(spec(1, 1))
    assert job
    here.settle()
    here.turn((job.started or 0.0) + 59.5 - here.now)
    here.nodes["n0"].end((job.number, 1), 0)
    here.settle()
    here.turn(1.0)

    assert here.store.job(job.number).state == "completed"  # type: ignore[union-attr]
    assert here.cluster.next_look() > here.now
    here.store.close()


def test_a_node_that_was_given_up_gets_no_job_before_it_is_rid_of_its_old_ones(tmp_path: Path) -> None:
    """They are killed as it comes back, and until they have ended their cores are not free."""
    here = FakeCluster(tmp_path, POLICY, 1, GIVING_UP)
    here.settle()
    job = here.submit(spec(1, 60))
    assert job
    here.settle()
    node = here.nodes["n0"]
    node.welcome = False
    here.turn(GIVING_UP.silence + 1)
    here.turn(GIVING_UP.give_up + 1)
    assert (here.cluster.nodes["n0"].state, job.state) == ("down", "pending")

    here.join(node)
    here.turn(1.0)
    assert [type(message).__name__ for message in node.inbox] == ["Welcome", "Signal"]
    here.settle()

    assert list(node.running) == [(job.number, 2)]
    here.check()
    here.store.close()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_limit_that_was_stretched_is_as_asked_for_when_the_job_begins_anew(tmp_path: Path, *, crashes: bool) -> None:
    """However often its node has lost it: a guest on half of a node has twice its time, and no more."""
    here, mate = with_mate(tmp_path, POLICY, 1)
    number = here.submit(spec(1, 5)).number  # type: ignore[union-attr]
    limits = []
    for attempt in (1, 2, 3):
        here.settle()
        limits.append(here.cluster.jobs[number].limit)
        here.nodes["n0"].known.pop((number, attempt))
        if crashes:
            here.crash()
        here.join(here.nodes["n0"])
        limits.append(here.cluster.jobs[number].limit)

    assert here.cluster.jobs[mate.number].state == "running"
    assert limits == [600, 300, 600, 300, 600, 300]
    here.store.close()


def test_who_gives_no_limit_has_no_more_than_anybody_may_have(tmp_path: Path) -> None:
    """The usual limit may be longer than the longest."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1, replace(SETTINGS, default_time=3600, max_time=600))
    here.settle()

    assert here.submit(replace(spec(), time=0)).limit == 600  # type: ignore[union-attr]
    assert here.submit(spec(minutes=11)) is None
    here.store.close()


def test_a_job_that_hangs_as_it_starts_has_a_limit(tmp_path: Path) -> None:
    """Its file may be a pipe that nobody reads; its time counts from when its nodes were asked, not while it waits."""
    here, mate = with_mate(tmp_path, POLICY, 1)
    node = here.nodes["n0"]
    guest = here.submit(spec(1, 1))
    assert guest
    here.turn(1.0)
    node.read_all()
    here.turn(300.0)
    assert (guest.state, here.cluster.dispatch.waiting_for(guest.number)) == ("starting", [mate.number])
    node.follow((mate.number, 1))
    here.hear(node)
    here.turn()
    node.read_all()
    node.outbox.clear()
    here.turn(119.0)
    assert guest.verdict == ""
    here.turn(2.0)

    assert (guest.state, guest.verdict) == ("ending", "timeout")
    here.settle()
    assert (guest.state, here.store.job(mate.number).state) == ("timeout", "running")  # type: ignore[union-attr]
    here.store.close()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_size_that_an_agent_confirms_as_it_comes_back_is_history(tmp_path: Path, *, crashes: bool) -> None:
    """Once: with what it said meanwhile lost, nobody would know that two jobs did not have the same cores."""
    here, mate = with_mate(tmp_path, POLICY, 1)
    node = here.nodes["n0"]
    here.submit(spec(1, 1))
    here.turn(1.0)
    node.read()
    node.follow((mate.number, 1))
    node.outbox.clear()
    if crashes:
        here.crash()
    for _ in range(2):
        here.join(node)

    def sizes() -> list[int]:
        return [entry.detail["cores"] for entry in here.store.history(1, 1) if entry.what == "resized"]

    assert sizes() == [2]
    here.settle()
    node.end((2, 1), 0)
    here.settle()
    assert sizes() == [2, 4]
    here.store.close()


@pytest.mark.parametrize("how", ["completed", "cancelled"])
def test_a_node_that_goes_down_later_does_not_change_how_a_job_ended(tmp_path: Path, how: str) -> None:
    """Why and when stay what they were."""
    here = FakeCluster(tmp_path, POLICY, 2, GIVING_UP)
    here.settle()
    job = here.submit(spec(2, 60))
    assert job
    here.settle()
    here.now += 50.0
    ended = here.now
    if how == "cancelled":
        here.cluster.cancel(job.number, here.now, "cancelled by ann")
        here.send()
        here.nodes["n0"].read()
    else:
        here.nodes["n0"].end((job.number, 1), 0)
    here.hear(here.nodes["n0"])
    assert (job.state, job.left) == ("ending", ["n1"])
    here.nodes["n1"].welcome = False
    here.turn(GIVING_UP.silence + 1)
    here.turn(GIVING_UP.give_up + 1)

    assert here.cluster.nodes["n1"].state == "down"
    assert (job.state, job.reason, job.ended) == (how, "cancelled by ann" if how == "cancelled" else "", ended)
    here.store.close()


def test_a_refusal_does_not_change_why_a_job_was_cancelled(tmp_path: Path) -> None:
    """Its node could not start it, but it was to end anyway."""
    here = FakeCluster(tmp_path, POLICY, 1)
    here.settle()
    job = here.submit(spec())
    assert job
    here.turn(1.0)
    here.cluster.cancel(job.number, here.now, "cancelled by ann")
    here.nodes["n0"].outbox.append(say.Refused(job.number, 1, "job", "cannot run it."))
    here.hear(here.nodes["n0"])

    assert (job.state, job.reason) == ("cancelled", "cancelled by ann")
    here.store.close()


def test_a_node_that_is_down_may_be_forgotten(tmp_path: Path) -> None:
    """Nobody waits for it any more, also after a restart; its place is the next newcomer's, and it may come back."""
    here = FakeCluster(tmp_path, POLICY, 3, GIVING_UP)
    here.settle()
    job = here.submit(spec(3, 60, requeue=False))
    assert job
    here.settle()
    with pytest.raises(SchedulerError, match=r"^node n1 is up: stop its agent, "):
        here.cluster.members.forget("n1", here.now)
    with pytest.raises(SchedulerError, match=r"^there is no node n9: see drom nodes\.$"):
        here.cluster.members.forget("n9", here.now)
    here.nodes["n1"].welcome = False
    here.turn(GIVING_UP.silence + 1)
    here.turn(GIVING_UP.give_up + 1)
    with pytest.raises(
        SchedulerError, match=r"^node n1 has job 1, which has not left its other nodes yet: try again\.$"
    ):
        here.cluster.members.forget("n1", here.now)
    gone = here.nodes.pop("n1")
    here.settle()
    assert job.state == "node_fail"
    waits = here.submit(spec(3))
    assert waits
    here.turn()
    assert explain.why(waits, here.cluster) == "1 of its nodes is drained, silent or down"
    here.cluster.cancel(waits.number, here.now, "cancelled by ann")

    here.cluster.members.forget("n1", here.now)
    here.send()
    assert here.submit(spec(3)) is None
    here.crash()
    assert list(here.cluster.nodes) == ["n0", "n2"]
    assert here.submit(spec(3)) is None
    other = here.nodes["n3"] = FakeNode("n3", lambda: here.now)
    here.settle()
    assert here.cluster.nodes["n3"].index == 1
    whole = here.submit(spec(3))
    assert whole
    here.settle()
    assert (whole.state, set(whole.shares), len(other.running)) == ("running", {"n0", "n2", "n3"}, 1)
    gone.known.clear()
    here.nodes["n1"] = gone
    here.settle()
    assert here.cluster.nodes["n1"].index == 3
    here.settle(ends=True)
    here.store.close()


@pytest.mark.parametrize("name", ["n,3:4", "-n", ".n", "n 1", "n" * 65, "n\n"])
def test_a_name_that_lists_of_hosts_cannot_have_is_refused(tmp_path: Path, name: str) -> None:
    """What it would be read as is another node."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    with pytest.raises(SchedulerError, match=r" is not a name of a node: set one of letters, digits, \. _ and - with "):
        here.cluster.agents.hello(replace(here.nodes["n0"].hello(), node=name), 1.0)

    assert here.cluster.nodes == {}
    here.store.close()


class LiveCluster(RuleBasedStateMachine):
    """Users, agents, the clock and `kill -9` in any order."""

    cluster_settings = SETTINGS

    @initialize()
    def begin(self) -> None:
        self.folder = folder_in_memory()
        self.here = FakeCluster(Path(self.folder.name), POLICY, NODES, self.cluster_settings)
        self.submitted: list[int] = []
        for node in self.here.nodes.values():
            self.here.join(node)

    def teardown(self) -> None:
        if not hasattr(self, "here"):
            return
        try:
            self.here.settle()
            assert not [job for job in self.here.cluster.jobs.values() if job.state == "ending"]
            self.here.settle(ends=True)
            self.here.turn(LONGEST_PAUSE)
            self.check_free()
            for number in self.submitted:
                job = self.here.store.job(number)
                assert job
                assert job.state in FINAL
                begun = {key[1] for node in self.here.nodes.values() for key in node.begun if key[0] == number}
                assert job.spec.requeue or len(begun) <= 1
            assert not any(node.known for node in self.here.nodes.values())
        finally:
            self.here.store.close()
            self.folder.cleanup()

    def check_free(self) -> None:
        """Assert that all nodes are free again."""
        assert isinstance(self.here.cluster.controller, Controller)
        assert self.here.cluster.controller.world.scalars[1] == NODES

    @rule(nodes=st.integers(1, NODES), minutes=st.integers(1, 4), after=st.booleans(), requeue=st.booleans())
    def submit(self, nodes: int, minutes: int, *, after: bool, requeue: bool) -> None:
        waits = (Dependency("afterany", self.submitted[-1]),) if after and self.submitted else ()
        job = self.here.submit(spec(nodes, minutes, after=waits, requeue=requeue))
        assert job
        self.submitted.append(job.number)

    @rule(data=st.data(), nodes=st.integers(1, NODES), minutes=st.integers(1, 4), after=st.booleans())
    def update(self, data: st.DataObject, nodes: int, minutes: int, *, after: bool) -> None:
        if not self.submitted:
            return
        number = data.draw(st.sampled_from(self.submitted))
        waits = (Dependency("afterany", self.submitted[0]),) if after else ()
        cluster = self.here.cluster
        with contextlib.suppress(SchedulerError):
            pending = cluster.state.living(number).state == "pending"
            changes = {"time": 60 * minutes, **({"nodes": nodes, "after": waits} if pending else {})}
            cluster.update(number, cluster.changed(number, changes), self.here.now, "ann", "")
        self.here.send()

    @rule(seconds=st.sampled_from((0.0, 0.4, 1.0, 10.0, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.here.turn(seconds)

    def node(self, data: st.DataObject) -> FakeNode:
        return data.draw(st.sampled_from(sorted(self.here.nodes.values(), key=lambda node: node.name)))

    @rule(data=st.data())
    def a_node_reads(self, data: st.DataObject) -> None:
        if (node := self.node(data)).inbox:
            node.read()

    @rule(data=st.data())
    def a_node_is_too_busy(self, data: st.DataObject) -> None:
        if (node := self.node(data)).inbox:
            node.refuse()

    @rule(data=st.data())
    def a_node_speaks(self, data: st.DataObject) -> None:
        if (node := self.node(data)).outbox:
            self.here.hear(node)

    @rule(data=st.data(), obeys=st.booleans())
    def a_job_follows(self, data: st.DataObject, *, obeys: bool) -> None:
        node = self.node(data)
        told = sorted(key for key, one in node.running.items() if one.ordered)
        if told:
            node.follow(data.draw(st.sampled_from(told)), obeys=obeys)

    @rule(data=st.data(), status=st.sampled_from((0, 1)))
    def a_job_ends(self, data: st.DataObject, status: int) -> None:
        node = self.node(data)
        if node.running:
            node.end(data.draw(st.sampled_from(sorted(node.running))), status)

    @rule(data=st.data())
    def an_agent_comes_back(self, data: st.DataObject) -> None:
        self.here.join(self.node(data))

    @rule()
    def the_scheduler_is_killed(self) -> None:
        self.here.crash()

    @rule()
    def the_scheduler_is_killed_before_it_sends(self) -> None:
        self.here.cluster.turn(self.here.now)
        self.here.send(survives=False)
        self.here.crash()

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.submitted))
        job = self.here.cluster.jobs.get(number)
        if job and not job.is_final:
            self.here.cluster.cancel(number, self.here.now, "cancelled by its user")
            self.here.send()

    @precondition(lambda self: hasattr(self, "here"))
    @invariant()
    def it_is_sound(self) -> None:
        self.look()

    def look(self) -> None:
        self.here.check()


class SilentNodes(LiveCluster):
    """The same with nodes that are given up, whose jobs go on there and begin anew elsewhere until they are back."""

    cluster_settings = replace(SETTINGS, give_up=30.0)

    @rule(data=st.data())
    def a_node_falls_silent(self, data: st.DataObject) -> None:
        self.node(data).welcome = False

    @rule(seconds=st.sampled_from((20.0, 40.0)))
    def much_time_passes(self, seconds: float) -> None:
        self.here.turn(seconds)

    @rule()
    def all_come_back(self) -> None:
        self.here.settle()

    def look(self) -> None:
        self.here.check_cores()


class DividedNodes(LiveCluster):
    """The same with unlike nodes, whose cores, memory and GPUs are given to jobs."""

    @initialize()
    def begin(self) -> None:
        self.folder = folder_in_memory()
        self.here = FakeCluster(Path(self.folder.name), RESOURCES, NODES, self.cluster_settings, SIZES)
        self.submitted: list[int] = []
        for node in self.here.nodes.values():
            self.here.join(node)

    def check_free(self) -> None:
        controller = self.here.cluster.controller
        assert isinstance(controller, ResourceController)
        assert controller.counts == (0, 0)
        assert (controller.free == controller.capacity).all()

    @rule(
        nodes=st.integers(0, 2),
        tasks=st.integers(1, 3),
        threads=st.integers(1, 2),
        memory=st.sampled_from((0, 1 << 30, 3 << 30)),
        gpus=st.integers(0, 2),
    )
    def submit_units(self, nodes: int, tasks: int, threads: int, memory: int, gpus: int) -> None:
        anywhere = replace(spec(nodes, threads=threads), ranks=tasks)
        wanted = {"gpu": gpus} if gpus else {}
        on_nodes = replace(spec(nodes, threads=threads), tasks=tasks, memory=memory, resources=wanted)
        if job := self.here.submit(on_nodes if nodes else anywhere):
            self.submitted.append(job.number)


class PooledNodes(LiveCluster):
    """The same with jobs that have a range of cores of all nodes, which grows and shrinks with what others need."""

    @initialize()
    def begin(self) -> None:
        self.folder = folder_in_memory()
        self.here = FakeCluster(Path(self.folder.name), POOLED, NODES, self.cluster_settings, SIZES)
        self.submitted: list[int] = []
        for node in self.here.nodes.values():
            self.here.join(node)

    def check_free(self) -> None:
        controller = self.here.cluster.controller
        assert isinstance(controller, PoolController)
        assert controller.counts == (0, 0)
        assert controller.spare == (14, 14)

    @rule(least=st.integers(1, 6), more=st.integers(0, 10), minutes=st.integers(1, 4), requeue=st.booleans())
    def submit(self, least: int, more: int, minutes: int, *, requeue: bool) -> None:
        job = self.here.submit(spec(0, minutes, least=least, most=least + more, requeue=requeue))
        assert job
        self.submitted.append(job.number)


class FilledNodes(DividedNodes):
    """The same with fillers, which are saved or cannot be, and go on from what was saved."""

    @initialize(slot=st.sampled_from((0, 60)))
    def begin(self, slot: int) -> None:
        self.cluster_settings = replace(SETTINGS, gaps=Gaps(slot, 10))
        super().begin()
        for saving in (*SAVING, *SAVING):
            self.submit_filler(2, 0, saving)
        self.here.settle()

    @rule()
    def agents_act(self) -> None:
        """Let messages come and go until all is said; saves take longer."""
        for _ in range(4):
            for node in self.here.nodes.values():
                if not node.welcome:
                    self.here.join(node)
                node.read_all()
                while node.outbox:
                    self.here.hear(node)
            self.here.turn()

    @rule(threads=st.integers(1, 3), memory=st.sampled_from((0, 1 << 30)), saving=st.sampled_from(SAVING))
    def submit_filler(self, threads: int, memory: int, saving: str) -> None:
        asked = replace(spec(0, threads=threads), memory=memory, saving=saving, time=0)
        if job := self.here.submit(asked):
            self.submitted.append(job.number)

    @rule(succeeds=st.booleans())
    def saves_end(self, *, succeeds: bool) -> None:
        for node in self.here.nodes.values():
            node.read_all()
            for key in [key for key, one in node.running.items() if one.save]:
                node.finish_save(key, succeeds=succeeds)

    @rule()
    def fillers_work(self) -> None:
        for node in self.here.nodes.values():
            for one in node.running.values():
                one.work += 1

    def look(self) -> None:
        super().look()
        for job in self.here.cluster.jobs.values():
            kept = [node.images[job.number] for node in self.here.nodes.values() if job.number in node.images]
            assert not job.image_on or job.saves in {number for number, _ in kept}, "its image is lost"


TestLiveCluster = LiveCluster.TestCase
TestLiveCluster.settings = settings(
    max_examples=300,
    phases=[Phase.generate],
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestDividedNodes = DividedNodes.TestCase
TestDividedNodes.settings = settings(TestLiveCluster.settings, max_examples=200)
TestPooledNodes = PooledNodes.TestCase
TestPooledNodes.settings = settings(TestLiveCluster.settings, max_examples=200)
TestFilledNodes = FilledNodes.TestCase
TestFilledNodes.settings = settings(TestLiveCluster.settings, max_examples=150)
TestSilentNodes = SilentNodes.TestCase
TestSilentNodes.settings = settings(TestLiveCluster.settings, max_examples=50)


HALF_RIGHT = """
import numpy as np
from drom.scheduler.interface import NEVER, place, start

def decide(state, event, options, actions):
    for job in state.queue:
        if state.jobs.nodes[job] == 2:
            place(actions, job, np.array([0, 1 << 40]), state.cores)
        elif state.jobs.nodes[job] <= state.free:
            start(actions, job)
    return NEVER
"""


def test_a_job_that_the_policy_places_wrongly_waits_and_says_why(tmp_path: Path) -> None:
    """No node is lost by it, jobs behind it start, and the log has it once however often the policy is asked."""
    (tmp_path / "half.py").write_text(HALF_RIGHT, encoding="utf-8")
    here = FakeCluster(tmp_path / "state", load_policy(str(tmp_path / "half.py")), 3)
    here.settle()
    wrong, free = here.submit(spec(nodes=2)), here.submit(spec(nodes=3))
    assert wrong
    assert free
    here.settle()
    assert (wrong.state, free.state) == ("pending", "running")
    assert explain.why(wrong, here.cluster) == "policy half starts a job on nodes that have no room for it"
    assert [event for event, _ in here.warnings if event == "policy_fault"] == ["policy_fault"]

    here.settle(ends=False)
    here.cluster.cancel(wrong.number, here.now, "cancelled by ann")
    here.settle(ends=True)
    assert free.state == "completed"


def test_a_job_that_survives_sigkill_is_told_and_its_node_left_alone(tmp_path: Path) -> None:
    """After a while no start is expected there; once it has ended, jobs start again by themselves."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    hangs, node = here.submit(spec()), here.nodes["n0"]
    assert hangs
    here.settle()
    waits = here.submit(spec())
    assert waits
    here.turn()
    assert explain.expected_start(waits, here.cluster, here.now) is not None
    here.cluster.cancel(hangs.number, here.now, "cancelled by root")
    here.turn()
    node.inbox.clear()
    assert here.cluster.next_look() <= here.now + here.cluster.settings.kill_wait + survivors.PATIENCE
    found = here.cluster.nodes["n0"]
    here.turn(here.cluster.settings.kill_wait + survivors.PATIENCE - 1)
    assert found.state == "up"
    here.turn(1.0)

    assert (found.state, found.busy) == ("busy", "job 1 was killed and does not end: see the log of the node's agent")
    assert explain.why(hangs, here.cluster) == "it was killed and does not end on n0"
    assert explain.explain(hangs, here.cluster, here.now)[1].startswith(
        "It was cancelled by root: it was killed and does not end, and has its cores until it does. See "
    )
    assert explain.expected_start(waits, here.cluster, here.now) is None
    assert explain.why(waits, here.cluster).startswith("1 of its nodes cannot start jobs now: job 1 was killed")
    here.turn(100.0)
    assert (waits.state, found.state) == ("pending", "busy")
    node.end((hangs.number, 1), -signal.SIGKILL)
    here.settle()
    assert (hangs.state, waits.state, found.state, found.busy) == ("cancelled", "running", "up", "")
    here.store.close()


def test_the_next_scheduler_finds_a_job_that_survives_sigkill(tmp_path: Path) -> None:
    """The next scheduler counts the time from its own start."""
    here = FakeCluster(tmp_path, load_policy("easy"), 1)
    here.settle()
    hangs = here.submit(spec())
    assert hangs
    here.settle()
    here.cluster.cancel(hangs.number, here.now, "cancelled by root")
    here.turn()
    here.crash()
    here.join(here.nodes["n0"])
    here.nodes["n0"].inbox.clear()
    here.turn(here.cluster.settings.kill_wait + survivors.PATIENCE)
    assert here.cluster.executions.survivors.jobs == {hangs.number}
    here.store.close()
