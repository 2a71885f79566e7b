# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING

import pytest
from drom.agent.enforcement import affinity
from drom.agent.enforcement.repair import LEAST, MOST, MaskRepair, pause
from drom.agent.model.jobs import Arrival
from drom.agent.system import proc

from dromlib.cpulist import cpus
from tests.agent.observe.test_reporter import Told
from tests.support.child_processes import NOW, ONE, UID, Child, needs_two_cpus, task_processes
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from collections.abc import Collection

    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

OTHER = NOW & ~ONE
REST = NOW & ~ONE & -(NOW & ~ONE)


@pytest.mark.parametrize(
    ("took", "threads", "seconds"),
    [
        (0.0, 10**6, LEAST),
        (0.04, 1024, LEAST),
        (0.1, 1024, 2.0),
        (0.02, 1025, 1.6),
        (0.05, 1025, MOST),
        (9.0, 1, MOST),
    ],
)
def test_rounds_take_a_small_part_of_a_cpu(took: float, threads: int, seconds: float) -> None:
    """They come more seldom the longer one takes, within limits, and less of a CPU goes into many threads."""
    assert pause(took, threads) == pytest.approx(seconds)


@needs_two_cpus
class TestRepairing:
    """A task of two processes that holds the first CPU; somebody binds the second process otherwise."""

    @pytest.fixture
    def fork(self, child: Child) -> int:
        """Return the second process."""
        fork = int(child.ask("fork"))
        affinity.bind(lambda: [child.pid, fork], ONE)
        return fork

    @pytest.fixture
    def node(self) -> Node:
        """Return the node."""
        return make_node([1, 2])

    @pytest.fixture
    def task(self, node: Node, child: Child, fork: int) -> Task:
        """Return the task."""
        task, _ = node.arrive(Arrival(child.pid, child.identity.start_time, UID, "j"), 0.0)
        task.grants[:] = [dataclasses.replace(task.grants[0], mask=ONE)]
        affinity.bind(lambda: [fork], NOW)
        return task

    @pytest.fixture
    def told(self) -> Told:
        """Return what is told of repairs."""
        return Told()

    @staticmethod
    def mask_repair(node: Node, child: Child, told: Told, *, binds: bool = True) -> MaskRepair:
        """Return what repairs the tasks of a node."""

        def find(slots: Collection[int]) -> dict[int, set[int]]:
            return {slot: task_processes(child.identity, UID) for slot in slots}

        return MaskRepair(node, find, told.report, binds=binds)

    def test_threads_that_may_run_elsewhere_are_moved_back(
        self, node: Node, child: Child, task: Task, told: Told
    ) -> None:
        """The first repair is logged and counted; further ones of the same task are only counted."""
        mask_repair = self.mask_repair(node, child, told)
        for _ in range(2):
            mask_repair.run(time.monotonic() + MOST)
            assert child.masks() == {ONE}
            affinity.bind(lambda: [child.pid], OTHER)

        assert told.line == f"event=repaired job=j task=0 pid={task.arrival.pid} threads=1"
        assert (len(told.text.getvalue().splitlines()), told.report.counters.repairs) == (1, 2)

    def test_who_fights_does_not_hold_a_round_up(
        self, node: Node, child: Child, task: Task, told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thread that undoes its mask at once is given up until the next round."""
        bind_thread, times = os.sched_setaffinity, []

        def undone(tid: int, _: set[int]) -> None:
            times.append(tid)
            bind_thread(tid, cpus(NOW))

        monkeypatch.setattr(os, "sched_setaffinity", undone)
        self.mask_repair(node, child, told).run(time.monotonic() + MOST)

        assert len(times) == affinity.FEW_PASSES
        assert task.started

    @pytest.mark.parametrize("what", ["not due", "frozen", "waiting", "observed", "narrower"])
    def test_nobody_is_moved(  # noqa: PLR0917
        self, node: Node, child: Child, task: Task, fork: int, told: Told, what: str
    ) -> None:
        """Between two rounds, on a frozen node, before the first grant, where nothing is bound, within the grant."""
        mask_repair = self.mask_repair(node, child, told, binds=what != "observed")
        if what == "not due":
            task.grants[:] = [dataclasses.replace(task.grants[0], mask=NOW)]
            mask_repair.run(time.monotonic())
            task.grants[:] = [dataclasses.replace(task.grants[0], mask=ONE)]
        elif what == "frozen":
            node.freeze(0.0, "a file")
        elif what == "waiting":
            task.grants.clear()
        elif what == "narrower":
            task.grants[:] = [dataclasses.replace(task.grants[0], mask=NOW)]
            affinity.bind(lambda: [fork], REST)
        before = proc.thread_masks([child.pid, fork])
        mask_repair.run(time.monotonic() + (0 if what == "not due" else MOST))

        assert proc.thread_masks([child.pid, fork]) == before
        assert told.text.getvalue() == ""

    def test_an_empty_node_is_not_looked_at(self, node: Node, child: Child, told: Told) -> None:
        """The agent sleeps."""
        assert self.mask_repair(node, child, told).next_due() is None
