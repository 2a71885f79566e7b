# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import pytest
from drom.agent.enforcement import affinity
from drom.agent.enforcement.repair import DELAY, MaskWidening
from drom.agent.model.jobs import Arrival
from drom.agent.system import proc

from tests.support.child_processes import NOW, ONE, Child, needs_two_cpus
from tests.support.nodes import make_node

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task
    from drom.agent.node.node import Node

SOON = time.monotonic()
OTHER = NOW & ~ONE


@needs_two_cpus
class TestWidening:
    """A task of two processes, one of which attends to grants; both have been on the first CPU."""

    @pytest.fixture
    def responder(self, child: Child) -> Child:
        """Return the process that attends to grants."""
        affinity.bind(lambda: [child.pid], ONE)
        return child

    @pytest.fixture
    def other(self, responder: Child) -> int:
        """Return the process that does not."""
        return int(responder.ask("fork"))

    @pytest.fixture
    def node(self) -> Node:
        """Return the node."""
        return make_node([1, 2])

    @pytest.fixture
    def task(self, node: Node, responder: Child) -> Task:
        """Return the task, which has grown onto all CPUs."""
        task, _ = node.arrive(Arrival(responder.pid, responder.identity.start_time, 1, "j", "malleable"), 0.0)
        task.responder = (responder.pid, responder.identity.start_time)
        task.grants[:] = [dataclasses.replace(task.grants[0], mask=NOW)]
        return task

    @pytest.fixture
    def widening(self, node: Node, task: Task, responder: Child, other: int) -> MaskWidening:
        """Return what has been told of the growth."""
        widening = MaskWidening(node, lambda slots: {slot: {responder.pid, other} for slot in slots})
        widening.task_grew(task, ONE, SOON, responder=responder.pid)
        return widening

    @staticmethod
    def masks(*pids: int) -> list[set[int]]:
        """Return the masks of each process's threads."""
        return [set(proc.thread_masks([pid]).values()) for pid in pids]

    def test_others_get_more_room_after_a_while(self, widening: MaskWidening, responder: Child, other: int) -> None:
        """The responder, which has its threads where it wants them, is left alone."""
        widening.run(SOON + DELAY / 2)
        assert (self.masks(other), widening.next_due()) == ([{ONE}], SOON + DELAY)
        widening.run(SOON + DELAY)

        assert self.masks(other, responder.pid) == [{NOW}, {ONE}]

    def test_a_responder_that_did_not_apply_the_growth_gets_more_room(
        self, widening: MaskWidening, task: Task, responder: Child
    ) -> None:
        """It may have become the responder only after the agent had bound the task."""
        widening.task_grew(task, ONE, SOON)
        widening.run(SOON + DELAY)

        assert self.masks(responder.pid) == [{NOW}]

    def test_looks_go_on_until_one_finds_nothing(self, widening: MaskWidening, other: int) -> None:
        """A thread may have read the earlier mask just before a look, and restore it after that."""
        pauses = []
        last = SOON
        while (due := widening.next_due()) is not None:
            pauses.append(due - last)
            widening.run(last := due)
            assert self.masks(other) == [{NOW}]
            if len(pauses) == 1:
                affinity.bind(lambda: [other], ONE)

        assert pauses == pytest.approx([DELAY, 2 * DELAY, 4 * DELAY])

    def test_a_program_that_insists_on_the_earlier_mask_keeps_it(self, widening: MaskWidening, other: int) -> None:
        """The looks come to an end."""
        looks = 0
        while (due := widening.next_due()) is not None:
            widening.run(due)
            affinity.bind(lambda: [other], ONE)
            looks += 1

        assert looks == 6

    def test_growths_shortly_after_each_other_are_one(self, widening: MaskWidening, task: Task, other: int) -> None:
        """Threads with the mask of before any of them get the CPUs that there are by then."""
        widening.task_grew(task, OTHER, SOON + DELAY / 2)
        affinity.bind(lambda: [other], OTHER)
        widening.run(SOON + DELAY)

        assert self.masks(other) == [{NOW}]

    @pytest.mark.parametrize("what", ["bound by somebody", "ended", "frozen"])
    def test_nobody_is_widened_when_things_have_changed(
        self, widening: MaskWidening, node: Node, task: Task, other: int, what: str
    ) -> None:
        """Threads that somebody else has bound, tasks that are over, and a frozen node are left alone."""
        if what == "bound by somebody":
            affinity.bind(lambda: [other], OTHER)
        elif what == "ended":
            del node.tasks[task.slot]
        else:
            node.freeze(0.0, "a file")
        before = self.masks(other)
        widening.run(SOON + DELAY)

        assert self.masks(other) == before

    def test_a_frozen_node_gets_it_when_it_thaws(self, widening: MaskWidening, node: Node, other: int) -> None:
        """Growths are not forgotten."""
        node.freeze(0.0, "a file")
        widening.run(SOON + DELAY)
        assert widening.next_due() is None
        node.thaw(1.0)
        widening.run(SOON + DELAY)

        assert self.masks(other) == [{NOW}]
