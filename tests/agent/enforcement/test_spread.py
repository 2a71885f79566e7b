# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest
from drom.agent.enforcement import affinity
from drom.agent.enforcement.spread import LOOKS, ThreadSpreading, active_threads_by_cpu, planned_migrations
from drom.agent.ipc.mailboxes import MailboxState
from drom.agent.ipc.registry import Owner, Registry
from drom.agent.model.jobs import Arrival, Grant, Settled
from drom.agent.system import cpu_times
from drom.agent.system.cpu_times import Thread

from dromlib.cpulist import mask_of
from tests.support.child_processes import NOW, ONE, needs_two_cpus
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from _pytest.monkeypatch import MonkeyPatch
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

MS = 1_000_000
POINTS = 0b1111
"""All that a mailbox says of malleability points; the bit after these says that threads bind themselves."""
BOUND = MailboxState(0, 0, 0, points=0b10001)


class TestMoves:
    """Which threads are moved where; each of them has used a time, in milliseconds of ten."""

    @staticmethod
    def of(threads: Mapping[int, tuple[int, bool, float]], granted: list[int]) -> dict[int, int]:
        """Return the moves when each thread was on a CPU, runs or not, and has used some of ten milliseconds."""
        before = {tid: Thread(cpu, False, 7) for tid, (cpu, _, _) in threads.items()}
        now = {tid: Thread(cpu, runs, 7 + int(used * MS)) for tid, (cpu, runs, used) in threads.items()}
        return planned_migrations(active_threads_by_cpu(before, now, 0.01), now, granted)

    def test_of_two_that_take_turns_the_one_that_runs_is_moved(self) -> None:
        """The other one sleeps, and would wake up where it was."""
        assert self.of({10: (1, True, 5), 11: (1, False, 5)}, [0, 1]) == {10: 0}
        assert self.of({10: (1, False, 5), 11: (1, True, 5)}, [0, 1]) == {11: 0}

    def test_one_stays_and_the_others_go_as_far_as_there_is_room(self) -> None:
        """Three on one CPU, and one idle CPU: one moves, and two if there are two."""
        three = {10: (2, True, 3), 11: (2, True, 3), 12: (2, False, 3)}

        assert self.of(three, [2, 5]) in ({10: 5}, {11: 5})
        assert sorted(self.of(three, [1, 2, 5]).values()) == [1, 5]

    def test_nobody_moves_where_every_cpu_is_used(self) -> None:
        """More threads than CPUs are the kernel's business."""
        assert self.of({10: (0, True, 5), 11: (0, True, 5), 12: (1, True, 9)}, [0, 1]) == {}

    def test_a_thread_that_does_nothing_counts_for_nothing(self) -> None:
        """An idle thread neither crowds a CPU nor keeps one."""
        assert self.of({10: (1, True, 9), 11: (1, False, 0.1)}, [0, 1]) == {}
        assert self.of({10: (1, True, 5), 11: (1, False, 5), 12: (0, False, 0.1)}, [0, 1]) == {10: 0}

    def test_a_new_thread_counts(self) -> None:
        """A thread without an earlier reading counts with all of its time."""
        now = {10: Thread(1, True, 5 * MS), 11: Thread(1, False, 4 * MS)}

        assert planned_migrations(active_threads_by_cpu({10: Thread(1, True, 0)}, now, 0.01), now, [0, 1]) == {10: 0}


@needs_two_cpus
def test_a_thread_that_runs_is_pushed_and_keeps_its_mask() -> None:
    """A moved thread runs on the named CPU, whichever it was on, far more often than by chance."""
    me, (low, high) = threading.get_native_id(), sorted(os.sched_getaffinity(0))[:2]
    before, mask = os.sched_getaffinity(0), 1 << low | 1 << high
    os.sched_setaffinity(0, {low, high})
    try:
        hits = 0
        for cpu in (low, high) * 10:
            assert affinity.migrate_thread(me, cpu, mask)
            hits += cpu_times.of_threads(os.getpid())[me].cpu == cpu
            assert mask_of(os.sched_getaffinity(0)) == mask
        assert hits >= 15
    finally:
        os.sched_setaffinity(0, before)


@needs_two_cpus
def test_a_thread_that_somebody_bound_otherwise_is_not_pushed() -> None:
    """And nor is one that is gone."""
    assert not affinity.migrate_thread(0, 0, ONE)
    assert mask_of(os.sched_getaffinity(0)) == NOW
    assert not affinity.migrate_thread(2**22 + 1, 0, NOW)


class TestSpreading:
    """When threads are looked at, on a node of two cores with one task that has grown onto both."""

    @pytest.fixture
    def registry(self, tmp_path: Path) -> Registry:
        """Return a registry."""
        return Registry.create(tmp_path / "registry", 4, 64, Owner(1, 1, bytes(16), 1, emulated=False))

    @pytest.fixture
    def node(self) -> Node:
        """Return the node."""
        return make_node([1, 2])

    @pytest.fixture
    def task(self, node: Node) -> Task:
        """Return the task, whose program is this process and has applied its grant."""
        task, _ = node.arrive(Arrival(os.getpid(), 1, 1, "j", "malleable"), 0.0)
        task.responder = (os.getpid(), 1)
        return task

    @pytest.fixture
    def pushed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
        """Return the pushes of threads, two of which always take turns on CPU 1."""
        used = iter(range(0, 10**12, 10**9))
        monkeypatch.setattr(cpu_times, "of_threads", lambda _: {n: Thread(1, n == 10, next(used)) for n in (10, 11)})
        found: list[tuple[int, int, int]] = []
        monkeypatch.setattr(affinity, "migrate_thread", lambda *words: found.append(words))
        return found

    @staticmethod
    def applied(task: Task, old: int = 1, outcome: str = "applied") -> Settled:
        """Return what says that the task has both CPUs now."""
        return Settled(task, task.epoch, old, 3, "grow", outcome, 0.0, 0.0)

    def test_threads_are_looked_at_for_a_while(
        self, node: Node, task: Task, registry: Registry, pushed: list[tuple[int, int, int]]
    ) -> None:
        """At each look one is moved, and after the last there is no more to do."""
        spreading = ThreadSpreading(node, lambda _: MailboxState(0, 0, 0), registry)
        spreading.watch(self.applied(task))
        looks = 0
        while (due := spreading.next_due()) is not None:
            assert due < time.monotonic() + LOOKS[-1]
            spreading.run(due)
            looks += 1

        assert looks == len(LOOKS)
        assert pushed == [(10, 0, 3)] * looks

    def test_threads_that_are_apart_are_left_alone_till_the_last_look(
        self, node: Node, task: Task, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first look comes too soon to tell; between it and the last one there is one more."""
        used = iter(range(0, 10**12, 10**9))
        monkeypatch.setattr(cpu_times, "of_threads", lambda _: {n: Thread(n - 10, True, next(used)) for n in (10, 11)})
        spreading = ThreadSpreading(node, lambda _: MailboxState(0, 0, 0), registry)
        start = time.monotonic()
        spreading.watch(self.applied(task))
        looks = []
        while (due := spreading.next_due()) is not None:
            looks.append(due)
            spreading.run(due)

        assert len(looks) == 3
        assert start + LOOKS[-1] - LOOKS[-2] <= looks[-1] < time.monotonic() + LOOKS[-1]

    @pytest.mark.parametrize("what", ["superseded", "frozen", "ended", "left"])
    def test_nobody_is_moved_when_things_have_changed(
        self, node: Node, task: Task, registry: Registry, pushed: list[tuple[int, int, int]], what: str
    ) -> None:
        """The agent has published another grant, was told to change nothing, or the task or its program is gone."""
        spreading = ThreadSpreading(node, lambda _: MailboxState(0, 0, 0), registry)
        spreading.watch(self.applied(task))
        if what == "superseded":
            task.epoch += 1
        elif what == "frozen":
            node.freeze(0.0, "a file")
        elif what == "ended":
            del node.tasks[task.slot]
        else:
            task.responder = None
        spreading.run(time.monotonic() + 1)

        assert (pushed, spreading.next_due()) == ([], None)

    def test_only_who_has_grown_by_itself_is_watched(self, node: Node, task: Task, registry: Registry) -> None:
        """Not who has no more than before, and not who was bound by the agent."""
        spreading = ThreadSpreading(node, lambda _: MailboxState(0, 0, 0), registry)
        spreading.watch(self.applied(task, old=3))
        spreading.watch(self.applied(task, outcome="bound"))

        assert spreading.next_due() is None

    @pytest.mark.parametrize("case", [(MailboxState(0, 0, 0, points=POINTS), True), (BOUND, False), (None, False)])
    def test_threads_that_bind_themselves_are_left_alone(
        self,
        node: Node,
        task: Task,
        registry: Registry,
        pushed: list[tuple[int, int, int]],
        case: tuple[MailboxState | None, bool],
    ) -> None:
        """Moving one would undo what it has bound itself to in the meantime."""
        mail, watched = case
        spreading = ThreadSpreading(node, {task.mailbox: mail}.get, registry)
        spreading.watch(self.applied(task))
        spreading.run(time.monotonic() + 1)

        assert bool(pushed) == watched

    def test_the_registry_names_the_thread_while_it_is_moved(
        self, node: Node, task: Task, registry: Registry, pushed: list[tuple[int, int, int]], monkeypatch: MonkeyPatch
    ) -> None:
        """The next agent finds it there if this one dies in between."""
        named: list[int] = []
        monkeypatch.setattr(affinity, "migrate_thread", lambda *_: named.append(registry.header("moved_tid")))
        spreading = ThreadSpreading(node, lambda _: MailboxState(0, 0, 0), registry)
        spreading.watch(self.applied(task))
        spreading.run(time.monotonic() + 1)

        assert (named, registry.header("moved_tid"), pushed) == ([10], 0, [])

    @needs_two_cpus
    @pytest.mark.parametrize("is_moved", [True, False], ids=["on that CPU alone", "with another mask"])
    def test_a_move_that_an_agent_died_in_is_finished(
        self, node: Node, task: Task, registry: Registry, *, is_moved: bool
    ) -> None:
        """The thread has the CPUs of its task again, unless somebody has changed its mask since."""
        cpu, before = ONE.bit_length() - 1, os.sched_getaffinity(0)
        task.grants = [Grant(1, NOW, 0.0)]
        registry.record_move(threading.get_native_id(), cpu if is_moved else cpu + 1)
        os.sched_setaffinity(0, {cpu})
        try:
            ThreadSpreading(node, lambda _: None, registry).finish()
            assert mask_of(os.sched_getaffinity(0)) == (NOW if is_moved else ONE)
            assert registry.header("moved_tid") == 0
        finally:
            os.sched_setaffinity(0, before)
