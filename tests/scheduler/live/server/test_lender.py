# SPDX-License-Identifier: Apache-2.0
"""Schedulers of home partitions lend each other nodes: real clusters, on nodes and lists of this process."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from drom.agent.execution import protocol as say
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import RIGID
from drom.scheduler.live.cluster import explain
from drom.scheduler.live.cluster.homes import first_job
from drom.scheduler.live.cluster.lending import EMPTY, FreeList
from drom.scheduler.live.cluster.placements import LONGEST_PAUSE
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.live.server import lender
from drom.scheduler.live.server.etcd import StoreError
from drom.scheduler.live.server.lender import Lender

from tests.support.fake_cluster import ANN, CORES, SETTINGS, FakeCluster, FakeNode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.live.cluster.cluster import Cluster
    from drom.scheduler.live.cluster.jobs import Job
    from drom.scheduler.live.server.free_lists import FreeLists
    from drom.scheduler.live.server.node_homes import NodeHomes
    from drom.scheduler.live.server.shared_rows import SharedRows
    from drom.scheduler.live.server.stored_cluster import StoredCluster

FCFS = load_policy("fcfs")
GIVING_UP = replace(SETTINGS, give_up=100.0)


def spec(nodes: int = 1, **more: Any) -> Spec:
    """Return what a user asks for."""
    return Spec(command=("true",), nodes=nodes, time=3600, folder="/", **more)


class Stored:
    """What a lender uses of a cluster that stores its changes."""

    def __init__(self, here: FakeCluster) -> None:
        self._here = here
        self.settings = here.settings

    @property
    def cluster(self) -> Cluster:
        """The cluster, another one after a crash."""
        return self._here.cluster

    def clock(self) -> float:
        """Return the time."""
        return self._here.now

    def flush(self) -> bool:
        """Store, and send."""
        self._here.send()
        return True


class Homes:
    """Home partitions with nodes, p1-0 and so on, and what they have published."""

    def __init__(self, folder: Path, sizes: Mapping[str, int], policy: Policy = FCFS, **settings: Any) -> None:
        self.seen: dict[str, FreeList] = {}
        self.version = 0
        self.fails: str = ""
        self.stopped = ""
        self._written: dict[str, int] = {}
        self.given: dict[str, int] = {}
        self.here: dict[str, FakeCluster] = {}
        self.lenders: dict[str, Lender] = {}
        for number, (home, size) in enumerate(sizes.items(), 1):
            about = replace(GIVING_UP, home=home, first_job=first_job(number), **settings)
            one = self.here[home] = FakeCluster(folder / home, policy, 0, about)
            one.cluster._next = first_job(number)
            one.nodes = {name: FakeNode(name, lambda: 1000.0) for name in (f"{home}-{at}" for at in range(size))}
            self.elect(home, number)
        self.settle()

    def elect(self, home: str, epoch: int) -> None:
        """Have another scheduler lead a home partition."""
        rows, stored = SimpleNamespace(epoch=epoch, leader_key="leader"), Stored(self.here[home])
        nodes = SimpleNamespace(written_at=lambda node: self.given.get(node, 0))
        parts = cast("StoredCluster", stored), cast("SharedRows", rows), cast("FreeLists", self)
        self.lenders[home] = Lender(*parts, cast("NodeHomes", nodes), self.call)

    def crash(self, home: str) -> None:
        """Kill the scheduler of a home partition, which another one then leads."""
        self.here[home].crash()
        self.elect(home, 100)

    def written_at(self, home: str) -> int:
        """Return when a free list was written."""
        return self._written.get(home, 0)

    def swap(self, _: str, __: str, ___: int, lists: Mapping[str, FreeList]) -> bool:
        """Write free lists, or fail as a test wants: `conflict`, `silence`, or `late` if the answer alone is lost."""
        fails, self.fails = self.fails, ""
        if fails == "conflict":
            return False
        if fails != "silence":
            self.version += 1
            self.seen |= lists
            self._written |= dict.fromkeys(lists, self.version)
        if fails:
            raise StoreError("it does not answer")
        return True

    def call(self, nodes: Collection[str]) -> None:
        """Have nodes introduce themselves to the home partition that has them."""
        for name in nodes:
            self.node(name).welcome = False

    def node(self, name: str) -> FakeNode:
        """Return a node, wherever it is."""
        return next(one.nodes[name] for one in self.here.values() if name in one.nodes)

    def _place(self, node: FakeNode) -> FakeCluster:
        """Move a node to the home partition that has it."""
        home = node.name.partition("-")[0]
        there = self.here[self.seen.get(home, EMPTY).nodes.get(node.name) or home]
        for one in self.here.values():
            one.nodes.pop(node.name, None)
        there.nodes[node.name] = node
        return there

    def turn(self, home: str, seconds: float = 0.0) -> None:
        """Do what is due in a home partition."""
        one = self.here[home]
        for node in [node for name, node in one.nodes.items() if name != self.stopped]:
            node.read_all()
            if not node.welcome:
                self._place(node).join(node)
                continue
            node.work(ends=False)
            while node.outbox:
                one.hear(node)
        one.cluster.loans.release()
        one.send()
        if self.lenders[home].follow():
            one.turn(seconds)
            self.lenders[home].act()

    def settle(self) -> None:
        """Let all home partitions do what they can."""
        for _ in range(12):
            for home in self.here:
                self.turn(home)

    def submit(self, home: str, nodes: int = 1, **more: Any) -> Job:
        """Submit a job to a home partition."""
        one = self.here[home]
        job = one.cluster.submit(spec(nodes, **more), ANN, one.now)
        one.send()
        return job

    def end(self, job: Job) -> None:
        """End a job on the node that has launched it."""
        self.node(job.launcher).end((job.number, job.attempt), 0)

    def lent(self) -> dict[str, str]:
        """Return the nodes that are lent."""
        return {node: to for free in self.seen.values() for node, to in free.lent.items()}

    def check(self) -> None:
        """Assert that everything is back, and that nobody asks for nodes."""
        assert not self.lent()
        assert not any(free.wants for free in self.seen.values())
        for home, one in self.here.items():
            assert {*one.cluster.nodes} == {*one.nodes}
            assert not any(node.home for node in one.cluster.nodes.values())
            assert all(name.startswith(home) for name in one.nodes)
            one.check()


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Homes]:
    """Return two home partitions of two nodes, and one of one node."""
    found = Homes(tmp_path, {"p1": 2, "p2": 2, "p3": 1})
    yield found
    for one in found.here.values():
        one.store.close()


def test_a_job_spans_home_partitions(homes: Homes) -> None:
    """It has all cores of its nodes, alone; those that were borrowed go back when it ends."""
    job = homes.submit("p1", 4)
    assert explain.why(job, homes.here["p1"].cluster) == (
        "fewer than 4 nodes are free at once, here and in other home partitions"
    )
    homes.settle()
    assert (job.state, job.shares) == ("running", dict.fromkeys(("p1-0", "p1-1", "p2-0", "p2-1"), CORES))
    assert homes.lent() == {"p2-0": "p1", "p2-1": "p1"}
    assert homes.here["p1"].cluster.queue.request(job).cls == RIGID
    there = homes.here["p2"].cluster
    assert {node.state for node in there.nodes.values()} == {"lent"}
    waits = homes.submit("p2")
    homes.submit("p1")  # which borrows the last node
    homes.settle()
    assert homes.lent()["p3-0"] == "p1"
    assert explain.why(waits, there) == "2 of its nodes are lent, drained, silent or down"
    homes.end(job)
    homes.settle()
    assert (job.state, waits.state) == ("completed", "running")
    homes.end(waits)
    homes.end(homes.here["p1"].cluster.jobs[job.number + 1])
    homes.settle()
    homes.check()
    told = [about for one in homes.here.values() for event, about in one.warnings if event == "nodes_borrowed"]
    assert told[0] == {"job": job.number, "nodes": "p2-0,p2-1", "homes": "p2"}


@pytest.mark.timeout(600)  # the policy takes half a minute to compile, once
def test_guests_stay_away_from_a_job_on_borrowed_nodes(tmp_path: Path) -> None:
    """Under SD-Policy, which would have it shrink if all its nodes were of its own home partition."""
    policy = load_policy("sd", ("interval=1", "max_slowdown=infinite", "reservations=nodes"))
    homes = Homes(tmp_path, {"p1": 2, "p2": 2}, policy)
    job = homes.submit("p1", 3, job_class="malleable")
    homes.settle()
    assert list(job.shares) == ["p1-0", "p1-1", "p2-0"]
    guest, last = (homes.submit("p1", job_class="malleable") for _ in range(2))
    homes.settle()
    assert guest.shares == {"p2-1": CORES}  # borrowed as well
    assert last.state == "pending"
    homes.end(job)
    homes.settle()
    assert last.state == "running"
    homes.end(guest)
    homes.end(last)
    homes.settle()
    homes.check()
    for one in homes.here.values():
        one.store.close()


def test_a_home_partition_lends_nothing_that_its_jobs_need(homes: Homes) -> None:
    """It takes back what it offers as soon as a job of its own waits."""
    large = homes.submit("p1", 5)
    busy = homes.submit("p3")
    homes.settle()
    assert (large.state, busy.state) == ("pending", "running")
    assert homes.seen["p2"].offered == ["p2-0", "p2-1"]
    own = homes.submit("p2", 2)
    homes.settle()
    assert own.state == "running"
    homes.end(busy)
    homes.end(own)
    homes.settle()
    assert large.state == "running"
    homes.end(large)
    homes.settle()
    homes.check()


def test_jobs_that_are_too_large_do_not_wait_for_each_other(homes: Homes) -> None:
    """One after the other gets the nodes, whoever begins."""
    jobs = [homes.submit("p1", 3), homes.submit("p2", 4), homes.submit("p3", 5)]
    while jobs:
        homes.settle()
        (running,) = [job for job in jobs if job.state == "running"]
        homes.end(running)
        jobs.remove(running)
    homes.settle()
    homes.check()


def test_a_waiting_job_that_would_fit_borrows_as_well(homes: Homes) -> None:
    """It is the first that waits, and its home partition has too few free nodes."""
    first, second, third = homes.submit("p1", 2), homes.submit("p1", 2), homes.submit("p1")
    homes.settle()
    assert list(second.shares) == ["p2-0", "p2-1"]
    assert list(third.shares) == ["p3-0"]
    for job in (first, second, third):
        homes.end(job)
    homes.settle()
    homes.check()


def test_waiting_jobs_can_be_held_changed_and_cancelled(homes: Homes) -> None:
    """The home partition then no longer asks for nodes."""
    cluster = homes.here["p1"].cluster
    busy, large = homes.submit("p2", 2), homes.submit("p1", 4)
    homes.settle()
    assert homes.seen["p1"].wants
    cluster.hold(large.number, 1000.0, "ann", held=True)
    homes.settle()
    assert not homes.seen["p1"].wants
    cluster.hold(large.number, 1000.0, "ann", held=False)
    homes.settle()
    assert homes.seen["p1"].wants
    cluster.cancel(large.number, 1000.0, "cancelled by ann")
    small = homes.submit("p1", 3)
    cluster.update(small.number, cluster.changed(small.number, {"nodes": 2}), 1000.0, "ann", "nodes 2")
    homes.settle()
    assert (large.state, small.state, list(small.shares)) == ("cancelled", "running", ["p1-0", "p1-1"])
    homes.end(busy)
    homes.end(small)
    homes.settle()
    homes.check()


def test_a_job_that_no_longer_is_too_large_is_the_policys(homes: Homes) -> None:
    """Nodes have joined its home partition."""
    busy, large = homes.submit("p2", 2), homes.submit("p1", 4)
    homes.settle()
    for number in (2, 3):
        homes.here["p1"].nodes[f"p1-{number}"] = FakeNode(f"p1-{number}", lambda: 1000.0)
    homes.settle()
    assert (large.state, homes.lent()) == ("running", {})
    homes.end(busy)
    homes.end(large)
    homes.settle()
    homes.check()


def test_jobs_that_cannot_span_are_told(homes: Homes, tmp_path: Path) -> None:
    """One is larger than all, one asks for certain nodes, one is of a home partition that lends nothing."""
    together = r"^the job asks for 6 nodes, and home partition p1 has 2 nodes, and all together 5: ask for less\.$"
    with pytest.raises(SchedulerError, match=together):
        homes.submit("p1", 6)
    alone = Homes(tmp_path / "alone", {"p1": 1, "p2": 1}, lends=False)
    with pytest.raises(SchedulerError, match=r"^the job asks for 2 nodes, and home partition p1 has 1 node: ask"):
        alone.submit("p1", 2)
    assert alone.seen == {"p1": EMPTY, "p2": EMPTY}


def test_a_scheduler_that_dies_before_it_has_stored_what_it_took_gives_that_back(homes: Homes) -> None:
    """Its successor finds nodes that it does not know; the job waits, and gets nodes once more."""
    job = homes.submit("p1", 4)
    homes.turn("p1")
    homes.turn("p2")
    taken = {"p2": FreeList(2, CORES, False, {"p2-0": "p1", "p2-1": "p1"})}
    homes.swap("p1", "leader", 1, taken)
    homes.crash("p1")
    homes.turn("p1")
    assert homes.lent() == {}
    homes.settle()
    job = homes.here["p1"].cluster.jobs[job.number]
    assert (job.state, job.attempt, len(homes.lent())) == ("running", 1, 2)


@pytest.mark.parametrize("home", ["p1", "p2"])
def test_a_job_survives_its_schedulers(homes: Homes, home: str) -> None:
    """What is lent stays lent while the borrower or the lender has another scheduler; no job starts there."""
    number = homes.submit("p1", 4).number
    homes.settle()
    homes.crash(home)
    homes.settle()
    job = homes.here["p1"].cluster.jobs[number]
    assert (job.state, job.attempt, homes.lent()) == ("running", 1, {"p2-0": "p1", "p2-1": "p1"})
    assert homes.here["p1"].cluster.queue.request(job).cls == RIGID
    own = homes.submit("p2")
    homes.settle()
    assert list(own.shares) == ["p3-0"]
    homes.end(job)
    homes.end(own)
    homes.settle()
    homes.check()


def test_a_job_that_ends_slowly_keeps_its_nodes(homes: Homes) -> None:
    """Those that it has left are given back with the others, as its scheduler reads all of them when it is replaced."""
    number = homes.submit("p1", 4).number
    homes.settle()
    homes.stopped = "p1-1"
    homes.end(homes.here["p1"].cluster.jobs[number])
    homes.settle()
    homes.crash("p1")
    homes.settle()
    job = homes.here["p1"].cluster.jobs[number]
    assert (job.state, job.left, len(homes.lent())) == ("ending", ["p1-1"], 2)
    homes.stopped = ""
    homes.settle()
    homes.check()


def test_a_borrowed_node_that_fails_is_given_back_once_its_agent_is_back(homes: Homes) -> None:
    """The job runs again, on other nodes; what remains of it on that node is killed first."""
    one = homes.here["p1"]
    job = homes.submit("p1", 4, requeue=True)
    homes.settle()
    lost = one.nodes.pop("p2-1")
    for seconds in (GIVING_UP.silence + 1, GIVING_UP.give_up + 1):
        for node in one.nodes.values():
            node.outbox.append(say.Alive(node.name, 0.0, ()))
        homes.turn("p1", seconds)
        for node in one.nodes.values():
            one.cluster.members.alive(node.name, one.now)
    homes.settle()
    assert (job.state, job.attempt) == ("running", 2)
    assert homes.lent() == dict.fromkeys(("p2-0", "p2-1", "p3-0"), "p1")
    assert one.cluster.nodes["p2-1"].state == "down"
    lost.welcome = False
    one.nodes["p2-1"] = lost
    homes.settle()
    assert homes.lent() == dict.fromkeys(("p2-0", "p3-0"), "p1")
    assert not lost.running
    homes.end(job)
    homes.settle()
    homes.check()


def test_a_borrowed_node_that_cannot_start_the_job_stays_for_a_while(homes: Homes) -> None:
    """A busy one for a minute, so that others do not try it in turn; a drained one until it is not drained."""
    one = homes.here["p1"]
    job = homes.submit("p1", 4, requeue=True)
    homes.turn("p2")
    homes.turn("p1")
    node = homes.node("p2-0")
    while not node.inbox:
        homes.turn("p2")
        homes.turn("p1")
    assert node.refuse()
    homes.settle()
    assert one.cluster.nodes["p2-0"].state == "busy"
    one.cluster.members.drain("p2-0", "dust")
    homes.turn("p1", LONGEST_PAUSE + 1)
    homes.settle()
    assert one.cluster.nodes["p2-0"].state == "drained"
    assert homes.lent()["p2-0"] == "p1"
    one.cluster.members.drain("p2-0", "")
    homes.settle()
    assert job.state == "running"
    homes.end(job)
    homes.settle()
    homes.check()


def test_nothing_is_scheduled_while_it_is_not_known_what_is_lent(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new scheduler writes its free list first, and so does one that got no answer; conflicts are tried again."""
    monkeypatch.setattr(lender, "RETRY", 0.0)
    monkeypatch.setattr(lender, "AGAIN", 0.0)
    homes.crash("p1")
    for fails in ("silence", "conflict"):
        homes.fails = fails
        assert not homes.lenders["p1"].follow()
        assert homes.lenders["p1"].next_look() == 0.0
    assert homes.lenders["p1"].follow()
    homes.settle()
    assert homes.lenders["p1"].next_look() > 0.0
    job = homes.submit("p1", 4)
    for fails in ("silence", "late", "conflict"):
        homes.fails = fails
        homes.turn("p1")
        assert not homes.fails
    homes.settle()
    assert job.state == "running"
    monkeypatch.setattr(lender, "RETRY", 1e9)
    homes.fails = "late"
    homes.end(job)
    homes.settle()
    assert not homes.lenders["p1"].follow()


def test_a_conflict_is_tried_again_once_its_change_is_seen(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No sooner, as the free lists of others are still seen as they were, and not later than that."""
    monkeypatch.setattr(lender, "AGAIN", 1e9)
    p1 = homes.lenders["p1"]
    job = homes.submit("p1", 4)
    homes.fails = "conflict"
    homes.turn("p1")
    for _ in range(3):
        homes.turn("p1")
        assert not homes.seen["p1"].wants
    homes.version += 1
    assert p1.next_look() == 0.0
    homes.turn("p1")
    assert homes.seen["p1"].wants
    homes.settle()
    assert job.state == "running"


def test_an_agent_obeys_the_scheduler_that_has_its_node(homes: Homes) -> None:
    """The epoch with which it is welcomed grows each time that it goes to another one."""
    homes.elect("p1", 1)
    homes.elect("p2", 2)
    epochs = []
    for _ in range(2):
        homes.settle()
        epochs.append(homes.lenders["p2"].epoch_of("p2-0"))
        job = homes.submit("p1", 4)
        homes.settle()
        epochs.append(homes.lenders["p1"].epoch_of("p2-0"))
        homes.end(job)
    homes.given["p2-0"] = 1000  # it got its home partition last
    epochs.append(homes.lenders["p2"].epoch_of("p2-0"))
    assert epochs == sorted(set(epochs))
