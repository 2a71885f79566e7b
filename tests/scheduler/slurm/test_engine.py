# SPDX-License-Identifier: Apache-2.0
"""Slurm's jobs as events of a policy, and its decisions as orders to Slurm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from drom.agent.errors import SlurmError
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.slurm.dry_run import forecast
from drom.scheduler.slurm.engine import MOST_ATTEMPTS, PATIENCE, PAUSE, Asked, Engine, Release, TakeBack
from drom.scheduler.slurm.records import GATE, Job, Node

NOW = 1_000_000.0
JOB = Job(
    number=1,
    array=None,
    task=None,
    tasks_left="",
    user="ann",
    uid=1001,
    account="",
    partitions=("main",),
    states=frozenset({"PENDING"}),
    reason="Licenses",
    priority=100,
    submitted=int(NOW),
    eligible=int(NOW),
    started=None,
    ends=None,
    limit_min=10,
    least_nodes=2,
    most_nodes=2,
    tasks=2,
    cpus_per_task=8,
    cpus=16,
    sharing="YES",
    licences=((GATE, 1),),
    dependency="",
    requested_nodes=(),
    nice=0,
    het=None,
    nodes=(),
    memory="0",
    reservation="",
    restarts=0,
    name="job",
    comment="",
    admin_comment="drom:malleable=1:8",
)
NODE = Node(
    name="n1",
    cpus=8,
    usable_cpus=8,
    allocated_cpus=0,
    cores=8,
    threads_per_core=1,
    memory_mib=1000,
    allocated_memory_mib=0,
    states=frozenset({"IDLE"}),
    partitions=("main",),
    features=(),
    version="22.05.8",
    reason="",
)


class Site:
    """A Slurm of four nodes with eight cores, as the engine sees it and carries out its orders."""

    def __init__(self, policy: str = "sd") -> None:
        self.policy = load_policy(
            policy, ["interval=1", "reservations=nodes", "resolution=1"] if policy == "sd" else []
        )
        self.engine = Engine(self.policy, "main")
        self.jobs: dict[str, Job] = {}
        self.nodes = {f"n{number}": replace(NODE, name=f"n{number}") for number in range(1, 5)}
        self.now = NOW

    def submit(self, number: int, **about: Any) -> None:
        """Submit a job through the gate."""
        times = {"submitted": int(self.now), "eligible": int(self.now)}
        self.jobs[str(number)] = replace(JOB, number=number, **times | about)

    def look(self, after: float = 1.0) -> list[Release | TakeBack]:
        """Let the engine look a while later, and return its orders, which are not carried out."""
        self.now += after
        return self.engine.look(self.jobs.values(), self.nodes.values(), self.now)

    def go(self, after: float = 1.0) -> list[Release | TakeBack]:
        """Look, and carry out the orders as Slurm does: released jobs run at once."""
        orders = self.look(after)
        for order in orders:
            if isinstance(order, Release):
                self.release(order)
                if order.nodes:
                    self.start(order.job, *order.nodes)
            else:
                self.jobs[order.job] = replace(self.jobs[order.job], licences=((GATE, 1),), requested_nodes=())
        return orders

    def release(self, order: Release) -> None:
        """Carry out a release."""
        licences = tuple(
            (name, int(count)) for name, _, count in (w.partition(":") for w in order.licences.split(",") if w)
        )
        self.jobs[order.job] = replace(self.jobs[order.job], licences=licences, requested_nodes=order.nodes)

    def start(self, name: str, *nodes: str) -> None:
        """Start a job on nodes."""
        self.jobs[name] = replace(
            self.jobs[name], states=frozenset({"RUNNING"}), nodes=nodes, started=int(self.now), cpus=8 * len(nodes)
        )

    def end(self, name: str, state: str = "COMPLETED") -> None:
        """End a job."""
        self.jobs[name] = replace(self.jobs[name], states=frozenset({state}), nodes=())


def released(orders: list[Release | TakeBack]) -> dict[str, tuple[str, ...]]:
    """Return the nodes to which jobs are released, by name."""
    assert all(isinstance(order, Release) for order in orders)
    return {order.job: tuple(sorted(order.nodes)) for order in orders if isinstance(order, Release)}


@pytest.fixture
def site() -> Site:
    """Return a site under SD-Policy."""
    return Site()


def test_a_job_is_released_to_idle_nodes(site: Site) -> None:
    """It keeps its other licences, and is released once."""
    site.submit(1, licences=(("matlab", 2), (GATE, 1)))

    assert site.go() == [Release("1", ("n1", "n2"), "matlab:2")]
    assert site.go() == []


def test_a_guest_is_released_to_the_nodes_of_its_mates(site: Site) -> None:
    """It is malleable, and ends earlier there than it would if it waited."""
    site.submit(1, limit_min=60)
    site.submit(2, limit_min=60)
    site.go()
    site.submit(3, limit_min=1)

    (order,) = site.go(30)
    assert isinstance(order, Release)
    assert {site.jobs[mate].nodes for mate in order.mates} == {tuple(sorted(order.nodes))}


@pytest.mark.parametrize(
    "about",
    [
        {"sharing": "NO"},
        {"sharing": "OK"},
        {"admin_comment": ""},
        {"admin_comment": "drom:malleable=5:8"},
    ],
    ids=["does not share", "shares if asked", "is not malleable", "needs more than its part"],
)
def test_a_job_that_cannot_share_is_no_guest(site: Site, about: dict[str, Any]) -> None:
    """It waits for the end of others."""
    site.submit(1, limit_min=60)
    site.submit(2, limit_min=60)
    site.go()
    site.submit(3, limit_min=1, **about)
    assert site.go(30) == []

    site.end("1")
    assert set(released(site.go())) == {"3"}


def test_jobs_that_are_not_ready_are_not_released(site: Site) -> None:
    """A held one, one that depends on another, one of the future, and one that does not wait at the gate."""
    site.submit(1, priority=0)
    site.submit(2, dependency="afterok:1")
    site.submit(3, eligible=int(NOW) + 3600)
    site.submit(4, licences=())
    site.submit(5, het=5)
    assert site.go() == []

    site.jobs["1"] = replace(site.jobs["1"], priority=7)
    site.jobs["2"] = replace(site.jobs["2"], dependency="")
    assert set(released(site.go())) == {"1", "2"}


def test_the_order_is_that_of_slurms_priorities(site: Site) -> None:
    """Also where they change while jobs wait."""
    site.submit(1, least_nodes=4, cpus=32)
    site.go()
    site.submit(2, priority=100, least_nodes=4, sharing="NO")
    site.submit(3, priority=200, least_nodes=4, sharing="NO")
    assert site.go() == []
    assert site.engine.waiting() == ["3", "2"]

    site.jobs["2"] = replace(site.jobs["2"], priority=300)
    site.end("1")
    assert set(released(site.go())) == {"2"}


def test_jobs_of_one_priority_are_in_the_order_of_their_numbers(site: Site) -> None:
    """Tasks of an array have the place of the array, whatever the order in which Slurm lists jobs."""
    site.submit(1, least_nodes=4, cpus=32)
    site.go()
    for number in (9, 7, 3):
        site.submit(number, least_nodes=4, sharing="NO")
    site.submit(6, array=6, tasks_left="1-2", least_nodes=4, sharing="NO")
    assert site.go() == []

    assert site.engine.waiting() == ["3", "6_1", "6_2", "7", "9"]


def test_a_job_that_slurm_does_not_start_twice_is_left_to_slurm(site: Site) -> None:
    """Its user may have changed what the job asks for; it has its own nodes and nice value again by then."""
    site.submit(1, requested_nodes=("n2", "n3"), licences=((GATE, 1), ("matlab", 1)))
    for _ in range(MOST_ATTEMPTS):
        (order,) = site.look(PAUSE)
        assert order == Release("1", ("n2", "n3"), "matlab:1")
        site.release(order)
        assert site.look(PATIENCE) == [TakeBack("1", Asked("drom_gate:1,matlab:1", "n2,n3", 0))]
        site.submit(1, requested_nodes=("n2", "n3"), licences=((GATE, 1), ("matlab", 1)))

    assert site.look(PAUSE / 2) == []
    assert site.look(PAUSE) == [Release("1", (), "matlab:1")]
    site.submit(2)
    assert set(released(site.go())) == {"2"}


def test_attempts_to_start_a_job_are_forgotten_once_it_runs(site: Site) -> None:
    """A job that is requeued and not started once is released to nodes a second time."""
    for after in (0, PAUSE):
        site.submit(1)
        (order,) = site.look(after)
        assert isinstance(order, Release)
        site.release(order)
        assert len(site.look(PATIENCE)) == 1
        site.submit(1)
        assert set(released(site.go(PAUSE))) == {"1"}
        site.go()

    assert site.jobs["1"].nodes


def test_a_job_that_slurm_does_not_start_is_taken_back(site: Site) -> None:
    """What it had asked for is restored, and its nodes are left alone for a while."""
    site.submit(1, requested_nodes=("n2", "n3"), nice=5, licences=((GATE, 1), ("matlab", 1)))
    (order,) = site.look()
    assert order == Release("1", ("n2", "n3"), "matlab:1")
    site.release(order)
    assert site.look(PATIENCE - 1) == []

    assert site.go(2) == [TakeBack("1", Asked("drom_gate:1,matlab:1", "n2,n3", 5))]
    site.submit(2)
    assert released(site.go()) == {"2": ("n1", "n4")}
    assert site.go(PAUSE - 2) == []
    site.jobs["1"] = replace(site.jobs["1"], requested_nodes=("n2", "n3"))
    assert released(site.go(2)) == {"1": ("n2", "n3")}


def test_an_order_that_slurm_refuses_is_repeated_later(site: Site) -> None:
    """The job still waits at the gate."""
    site.submit(1)
    assert site.look() == [Release("1", ("n1", "n2"), "")]
    assert site.look() == []
    assert site.look(PAUSE / 2) == []

    assert set(released(site.look(PAUSE))) == {"1"}


def test_jobs_that_an_earlier_daemon_released_are_taken_back(site: Site) -> None:
    """Those that run stay, and are not released again."""
    site.submit(1)
    site.submit(2)
    site.go()
    site.submit(3, licences=(), requested_nodes=("n1", "n2"))
    sent = {**site.engine.sent, "3": Asked("drom_gate:1", "", 0)}
    site.engine = Engine(site.policy, "main", sent)

    assert site.go() == [TakeBack("3", Asked("drom_gate:1", "", 0))]
    site.end("1")
    assert set(released(site.go())) == {"3"}


def test_a_requeued_job_waits_at_the_gate_again(site: Site) -> None:
    """Slurm gives it back without the licence."""
    site.submit(1)
    site.go()
    site.go()
    site.jobs["1"] = replace(site.jobs["1"], states=frozenset({"PENDING"}), nodes=(), restarts=1)

    assert site.go() == [TakeBack("1", Asked("drom_gate:1", "", 0))]
    assert set(released(site.go())) == {"1"}


def test_jobs_that_started_without_the_policy_count(site: Site) -> None:
    """While the gate was open Slurm placed a guest itself: then nobody else goes there."""
    for number in (1, 2):
        site.submit(number, licences=(), limit_min=60)
        site.start(str(number), "n1", "n2")
    site.submit(3)
    site.submit(4, limit_min=1)

    assert released(site.go()) == {"3": ("n3", "n4"), "4": ("n3", "n4")}


def test_a_third_job_on_a_node_is_left_alone(site: Site) -> None:
    """Slurm may share nodes deeper than the policy does: such nodes are not used until that job has ended."""
    for number in (1, 2, 3):
        site.submit(number, licences=(), least_nodes=3, cpus=24, limit_min=60)
        site.start(str(number), "n1", "n2", "n3")
    site.submit(4, least_nodes=1, cpus=8)
    assert released(site.go()) == {"4": ("n4",)}
    controller = site.engine._controller
    site.go()
    assert site.engine._controller is controller, "the state is made anew again and again"

    site.submit(5, least_nodes=3, cpus=24, sharing="NO")
    for number in (1, 2):
        site.end(str(number))
    assert site.go() == []
    site.end("3")
    assert released(site.go()) == {"5": ("n1", "n2", "n3")}


def test_nodes_with_other_jobs_are_not_used(site: Site) -> None:
    """Of another partition, or on a part of a node."""
    site.submit(1, partitions=("other",), sharing="NO")
    site.start("1", "n1")
    site.submit(2, licences=(), sharing="NO")
    site.start("2", "n2")
    site.jobs["2"] = replace(site.jobs["2"], cpus=1)
    site.submit(3)

    assert released(site.go()) == {"3": ("n3", "n4")}


def test_nodes_that_slurm_does_not_use_are_not_used(site: Site) -> None:
    """They are, once Slurm does."""
    site.nodes["n1"] = replace(site.nodes["n1"], states=frozenset({"IDLE", "DRAIN"}))
    site.submit(1, least_nodes=4)
    assert site.go() == []

    site.nodes["n1"] = replace(site.nodes["n1"], states=frozenset({"IDLE"}))
    assert set(released(site.go())) == {"1"}


@pytest.mark.parametrize(
    "about",
    [
        {"least_nodes": 5},
        {"requested_nodes": ("n1",)},
        {"requested_nodes": ("n1", "m1")},
        {"partitions": ("main", "b")},
    ],
)
def test_jobs_that_the_policy_cannot_place_are_left_to_slurm(site: Site, about: dict[str, Any]) -> None:
    """They start where Slurm likes, and run as Slurm would have run them."""
    site.submit(1, **about)

    assert site.go() == [Release("1", (), "")]
    assert site.go() == []


def test_tasks_of_an_array_are_jobs(site: Site) -> None:
    """No more of them at once than the array allows."""
    site.submit(7, array=7, tasks_left="1,4-8:2%2", least_nodes=1, cpus=8)
    site.jobs["array"] = site.jobs.pop("7")
    assert released(site.look()) == {"7_1": ("n1",), "7_4": ("n2",)}

    site.jobs["7_1"] = replace(JOB, number=8, array=7, task=1, tasks_left="", least_nodes=1)
    site.start("7_1", "n1")
    site.jobs["7_4"] = replace(JOB, number=9, array=7, task=4, tasks_left="", least_nodes=1)
    site.start("7_4", "n2")
    site.jobs["array"] = replace(site.jobs["array"], tasks_left="6,8%2")
    assert site.look() == []
    site.end("7_1")
    assert released(site.look()) == {"7_6": ("n1",)}


def test_a_released_task_that_squeue_shows_with_its_array_is_waited_for(site: Site) -> None:
    """The task counts as released for as long as any job; then it is taken back once."""
    site.submit(10, array=10, tasks_left="1-3%1", least_nodes=4, cpus=32)
    (release,) = site.look()
    assert release.job == "10_1"

    assert [site.look(PATIENCE / 4) for _ in range(3)] == [[], [], []]
    assert site.look(PATIENCE / 4) == [TakeBack("10_1", Asked(f"{GATE}:1", "", 0))]
    assert site.engine.sent == {}


def test_a_partition_without_nodes_or_with_unlike_ones_is_refused(site: Site) -> None:
    """The sentences say what to do."""
    site.nodes["n1"] = replace(site.nodes["n1"], usable_cpus=4)
    with pytest.raises(SlurmError, match=r"differ \(1 node of 4 CPUs, 3 nodes of 8 CPUs\): give each kind a partition"):
        site.look()
    site.nodes = {}
    with pytest.raises(SlurmError, match="partition main has no node"):
        site.look()


def test_a_forecast_says_what_would_start(site: Site) -> None:
    """Whether or not the jobs wait at a gate."""
    site.submit(1, limit_min=600)
    site.submit(2, limit_min=600)
    site.go()
    site.submit(3, limit_min=1, licences=(), started=int(site.now) + 3600)
    site.submit(4, limit_min=1, licences=(), partitions=("other",))
    found = forecast(site.policy, "main", site.jobs.values(), site.nodes.values(), site.now + 30)

    assert [(start.job, len(start.mates), start.expected) for start in found.starts] == [("3", 1, int(site.now) + 3600)]
    assert found.waiting == 1


def test_a_cancelled_job_is_forgotten(site: Site) -> None:
    """Whether it waits or runs."""
    site.submit(1, least_nodes=4, cpus=32, sharing="NO")
    site.go()
    site.submit(2, least_nodes=4, sharing="NO")
    site.go()
    del site.jobs["2"]
    site.end("1", "CANCELLED")
    site.go()

    assert site.engine.waiting() == []
    assert site.engine.sent == {}
