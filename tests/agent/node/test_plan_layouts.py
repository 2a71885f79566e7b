# SPDX-License-Identifier: Apache-2.0
"""Layouts as jobs come, go, grow and shrink on a node of two sockets of four cores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.errors import Refused
from drom.agent.model.cores import Cores
from drom.agent.model.jobs import Arrival, Task
from drom.agent.model.layouts import Layout
from drom.agent.node.invariants import violations
from drom.agent.node.node import Node
from drom.agent.placement.kernel import distributor
from drom.agent.placement.kernel.background import CompiledKernel
from drom.agent.policy.site_rules import SiteRules
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.synthetic import synthetic_topology

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.agent.model.jobs import Action

COMPACT, SPREAD, ONE_EACH = Layout("compact"), Layout("spread"), Layout("per_socket", 1)


def strict(layout: Layout) -> Layout:
    """Return the layout with the exclamation mark."""
    return replace(layout, strict=True)


def amounts(task: Task) -> list[int]:
    """Return the cores a task was granted in each of two sockets of four."""
    return [(task.granted >> at & 0xF).bit_count() for at in (0, 4)]


class Stage:
    """A node whose programs all cooperate; its invariants are looked at after every event."""

    def __init__(self, words: str, unit: str = "core") -> None:
        machine = synthetic_topology(words)
        self.placer = CompiledKernel(machine, unit)
        wholes = usable_cores(machine) if unit == "thread" else ()
        self.node = Node(Cores.of(usable_cores(machine, unit), wholes), self.placer, rules=SiteRules(1.0))
        self.tasks: dict[str, Task] = {}

    def arrive(self, job: str, most: int = 0, layout: Layout = Layout(), **more: Any) -> Task:  # noqa: B008 - frozen
        """Let a task arrive that may have `most` CPUs, and everybody follow."""
        pid = 100 + self.node.plan.arrivals * 10 + more.get("rank", 0)
        arrival = Arrival(pid, 1, more.pop("uid", 1), job, max_cpus=most, layout=layout, **more)
        task, actions = self.node.arrive(arrival, 0.0)
        self.node.grants.set_responder(task.slot, pid, 1)
        self.follow(actions)
        return task

    def follow(self, _: list[Action]) -> None:
        """Acknowledge until nothing is pending."""
        assert violations(self.node) == []
        while late := [task for task in self.node.tasks.values() if len(task.grants) > 1]:
            self.node.grants.applied(late[0].slot, late[0].epoch, 0.0)
            assert violations(self.node) == []

    def end(self, task: Task) -> None:
        """Let a task end, and everybody follow."""
        self.follow(self.node.ended(task.slot, 0.0))

    def resize(self, job: str, cpus: int | None) -> None:
        """Order a number of CPUs, and let everybody follow."""
        self.follow(self.node.resize(job, cpus, 0.0))

    def why(self, task: Task) -> str:
        """Return why a task waits."""
        return self.node.jobs[task.job].waits_for


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Two sockets of four cores."""
    distributor.kernel()
    made = Stage("pack:2 core:4")
    yield made
    made.placer.close()


@pytest.fixture
def threads() -> Iterator[Stage]:
    """Two sockets of four cores of two threads, handed out by thread."""
    distributor.kernel()
    made = Stage("pack:2 core:4 pu:2", "thread")
    yield made
    made.placer.close()


class TestStrictCompact:
    """compact! waits rather than spill."""

    def test_waits_until_a_socket_has_room(self, stage: Stage) -> None:
        """With two cores free in each socket a job of three waits, says why, and starts when one empties."""
        a = stage.arrive("a", 2, job_class="rigid", layout=COMPACT)
        b = stage.arrive("b", 2, job_class="rigid", layout=SPREAD)
        stage.end(a)
        c = stage.arrive("c", 3, job_class="rigid", layout=SPREAD)
        d = stage.arrive("d", 3, strict(COMPACT), min_cpus=3)

        assert b.granted.bit_count() == 2
        assert not d.started
        rooms = ", ".join(
            f"{4 - x - y} in socket {n}" for n, (x, y) in enumerate(zip(amounts(b), amounts(c), strict=True))
        )
        assert stage.why(d) == f"compact! of job d needs 3 CPUs in one socket: it can have {rooms}."
        stage.end(c)
        assert sorted(amounts(d)) == [0, 3]

    def test_takes_fewer_cores_rather_than_wait(self, stage: Stage) -> None:
        """A job of four that can do with one takes what one socket has."""
        stage.arrive("a", 5, job_class="rigid", layout=Layout("spread"))
        b = stage.arrive("b", 4, strict(COMPACT))

        assert sorted(amounts(b)) == [0, 2]

    def test_an_arrival_does_not_break_it(self, stage: Stage) -> None:
        """A job shrinks and grows inside its socket whoever comes and goes."""
        a = stage.arrive("a", 4, strict(COMPACT))
        home = a.granted
        guests = [stage.arrive(name, uid=n) for n, name in enumerate("bcd")]

        assert a.granted & ~home == 0
        for guest in guests:
            stage.end(guest)
        assert a.granted == home

    def test_does_not_grow_over_its_socket(self, stage: Stage) -> None:
        """Free cores elsewhere go to those who can use them."""
        a = stage.arrive("a", 6, strict(COMPACT), min_cpus=1)
        b = stage.arrive("b", 2, job_class="rigid", layout=strict(SPREAD), uid=2)

        assert a.granted.bit_count() in (3, 6)
        c = stage.arrive("c", 2, uid=3)
        stage.end(b)
        assert max(amounts(a)) == 4
        assert c.granted.bit_count() == 2

    def test_an_order_that_would_break_it_is_refused_with_the_reason(self, stage: Stage) -> None:
        """A resize says what stands in its way."""
        stage.arrive("r", 4, job_class="rigid", layout=SPREAD)
        stage.arrive("a", 4, strict(COMPACT))

        with pytest.raises(
            Refused, match=r"^compact! of job a needs 4 CPUs in one socket: it can have 2 in socket 0, "
        ):
            stage.resize("a", 4)


class TestSpread:
    """spread keeps equal numbers on all sockets."""

    def test_leaves_neighbours_on_each(self, stage: Stage) -> None:
        """Two jobs of four lie on both sockets, and the other has the rest."""
        a = stage.arrive("a", 4, SPREAD)
        b = stage.arrive("b", 4)

        assert amounts(a) == [2, 2]
        assert a.granted | b.granted == 0xFF

    def test_stays_while_others_come_and_go(self, stage: Stage) -> None:
        """A job whose count stays keeps its cores."""
        a = stage.arrive("a", 4, SPREAD)
        home = a.granted
        others = [stage.arrive(name, 2) for name in "bc"]
        assert a.granted == home
        for other in others:
            stage.end(other)
        assert a.granted == home
        assert a.epoch == 1

    def test_shrinks_and_grows_equally(self, stage: Stage) -> None:
        """Orders change it by sockets in turn."""
        a = stage.arrive("a", 8, strict(SPREAD))
        for count, wanted in [(5, [2, 3]), (2, [1, 1]), (7, [3, 4])]:
            stage.resize("a", count)
            assert sorted(amounts(a)) == wanted

    def test_is_restored_when_it_can_be(self, stage: Stage) -> None:
        """A best-effort job that had to make do lies as asked once there is room, with as many cores as before."""
        r = stage.arrive("r", 4, job_class="rigid", layout=COMPACT)
        a = stage.arrive("a", 4, SPREAD)
        assert a.granted in (0x0F, 0xF0)
        stage.end(r)

        assert amounts(a) == [2, 2]

    def test_the_death_of_a_task_does_not_block_the_node(self, stage: Stage) -> None:
        """A strict job that loses a task is laid out anew if it can be; arrivals come in either way."""
        ranks = [stage.arrive("a", 2, strict(SPREAD), session=5, rank=rank, size=2, min_cpus=2) for rank in (0, 1)]
        assert sorted(rank.granted.bit_count() for rank in ranks) == [2, 2]
        stage.end(ranks[0])
        b = stage.arrive("b", 6)

        assert amounts(ranks[1]) == [1, 1]
        assert b.granted.bit_count() == 6


class TestPerSocket:
    """per-socket=N is a cap."""

    def test_caps_the_job(self, stage: Stage) -> None:
        """A job alone on the node gets N cores of each socket."""
        a = stage.arrive("a", 0, ONE_EACH)

        assert amounts(a) == [1, 1]

    def test_more_cannot_be_ordered(self, stage: Stage) -> None:
        """The cap is the job's maximum."""
        stage.arrive("a", 0, ONE_EACH)

        with pytest.raises(Refused, match=r"^job a can have 1 to 2 CPUs, not 3: see its min and max\.$"):
            stage.resize("a", 3)

    def test_what_can_never_be_is_refused(self, stage: Stage) -> None:
        """A strict job whose minimum is above the cap is told at once; best effort exceeds N."""
        with pytest.raises(
            Refused, match=r"^it needs at least 3 CPUs, and per-socket=1! gives a job at most 2 CPUs here: .*\.$"
        ):
            stage.arrive("a", 4, strict(ONE_EACH), min_cpus=3)
        assert stage.arrive("a", 4, ONE_EACH, min_cpus=3).granted.bit_count() == 3


def test_the_site_has_a_layout_for_those_that_ask_for_none(stage: Stage) -> None:
    """What a job asks for counts before it."""
    stage.node.plan.layout = SPREAD
    a = stage.arrive("a", 4)
    stage.end(a)
    b = stage.arrive("b", 4, COMPACT)

    assert (amounts(a), sorted(amounts(b))) == ([2, 2], [0, 4])
    assert a.arrival.layout == SPREAD


class TestThreads:
    """Hardware threads as the unit."""

    def test_more_tasks_than_cores_fit(self, threads: Stage) -> None:
        """Sixteen tasks run on eight cores, each on a thread."""
        tasks = [threads.arrive(f"t{n}", 1) for n in range(16)]

        assert sorted(task.granted for task in tasks) == [1 << n for n in range(16)]

    def test_a_task_gets_whole_cores_where_it_can(self, threads: Stage) -> None:
        """Two threads are those of one core, also after others came and went."""
        small = [threads.arrive(f"t{n}", 1) for n in range(4)]
        pair = threads.arrive("pair", 2)
        threads.end(small[1])
        threads.end(small[2])
        four = threads.arrive("four", 4)

        for task in (pair, four):
            assert all(task.granted >> 2 * core & 3 in (0, 3) for core in range(8)), f"{task.granted:b}"

    def test_counts_are_threads(self, threads: Stage) -> None:
        """Three CPUs are three, not two whole cores."""
        assert threads.arrive("a", 3).granted.bit_count() == 3

    def test_layouts_count_threads(self, threads: Stage) -> None:
        """per-socket=3 is three threads of each socket."""
        a = threads.arrive("a", 0, Layout("per_socket", 3))

        assert [(a.granted >> at & 0xFF).bit_count() for at in (0, 8)] == [3, 3]
