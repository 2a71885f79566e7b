# SPDX-License-Identifier: Apache-2.0
"""CPUs that go and come back while jobs run. Eight cores of one CPU, unless said otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.agent.bench.simulated_day import restarted
from drom.agent.node.explain import explain

from tests.agent.node.test_node import Stage
from tests.agent.node.test_policy_rules import arrive, node, waits
from tests.support.nodes import MACHINES

if TYPE_CHECKING:
    from drom.agent.model.jobs import Task


def lose(stage: Stage, gone: int) -> None:
    """Let just these CPUs be gone, and everybody follow."""
    stage.take(stage.node.set_usable_cpus(-1, stage.now, gone))
    stage.settle()


def why(stage: Stage, task: Task) -> str:
    """Return why a job is on CPUs that are gone."""
    return stage.node.plan.why_kept(stage.node.jobs[task.job])


class TestJobsThatMove:
    """Whoever has a place elsewhere leaves cores that are gone."""

    def test_jobs_shrink_onto_what_is_left_and_grow_again(self) -> None:
        """The largest gives up first, and all is handed out again when it comes back."""
        stage = node()
        a = arrive(stage, "a")
        lose(stage, 0x0F)
        assert (a.granted, a.reason) == (0xF0, "avoid")
        lose(stage, 0)

        assert a.granted == 0xFF

    def test_rigid_jobs_move(self) -> None:
        """A rigid job keeps its number of cores, at the cost of those who can shrink."""
        stage = node()
        rigid = arrive(stage, "r", job_class="rigid", max_cpus=3)
        arrive(stage, "b")
        lose(stage, rigid.granted)

        assert stage.counts == {"r": 3, "b": 2}
        assert not sum(stage.masks.values()) & stage.node.plan.gone

    def test_exact_cpus_that_are_gone_end_their_order(self) -> None:
        """The job competes again; an order for CPUs of which some are left holds."""
        stage = node()
        a = arrive(stage, "a")
        stage.pin(a, 0b11)
        lose(stage, 0b1)
        assert (a.pin, a.granted) == (0b11, 0b10)
        lose(stage, 0b11)

        assert (a.pin, a.granted) == (0, 0xFC)

    def test_an_arrival_waits_for_what_is_gone(self) -> None:
        """The arrival is not refused: it starts when the CPUs come back."""
        stage = node()
        lose(stage, 0xFE)
        task = arrive(stage, "a", min_cpus=4)
        assert waits(stage) == {"a": "needs at least 4 CPUs: this node hands out 1 now."}
        lose(stage, 0)

        assert task.granted == 0xFF


class TestJobsWithoutAPlace:
    """A job whose minimum has no place elsewhere loses nothing, and says why it is short."""

    def test_a_job_is_told_and_gets_its_own_cpus_back(self) -> None:
        """What is left of its CPUs is its grant; all of it is when they come back."""
        stage = node()
        a = arrive(stage, "a", min_cpus=6)
        arrive(stage, "b", min_cpus=2)
        before = a.granted
        lose(stage, before & 0x0F)
        assert a.granted == before & 0xF0
        assert "are gone, and there is no room elsewhere for the 6 CPUs that job a needs" in why(stage, a)
        sentences = [text for topic, text in explain(stage.node, "a", stage.now) if topic == "limit"]
        assert why(stage, a) in sentences
        lose(stage, 0)

        assert (a.granted, why(stage, a)) == (before, "")

    def test_nothing_is_left_at_all(self) -> None:
        """Programs run where the kernel lets them, on paper where they were."""
        stage = node()
        a = arrive(stage, "a")
        lose(stage, 0xFF)
        assert a.granted == 0xFF
        assert "the kernel chooses its CPUs" in why(stage, a)
        b = arrive(stage, "b")
        assert waits(stage).keys() == {"b"}
        lose(stage, 0xF0)

        assert a.granted | b.granted == 0x0F

    def test_a_new_agent_takes_it_as_it_is(self) -> None:
        """What it has less is no reason to move anybody, and it grows when there is room again."""
        stage = node()
        for job in ("a", "b"):
            arrive(stage, job, min_cpus=4, max_cpus=4)
        lose(stage, 0b1)
        held = stage.masks
        assert sum(mask.bit_count() for mask in held.values()) == 7
        stage.node, actions = restarted(stage.node, stage.now)
        stage.take(actions)
        assert stage.masks == held
        lose(stage, 0)

        assert [mask.bit_count() for mask in stage.masks.values()] == [4, 4]

    def test_room_is_found_when_somebody_ends(self) -> None:
        """The job moves as soon as another one ends."""
        stage = node()
        a = arrive(stage, "a", min_cpus=4, max_cpus=4)
        b = arrive(stage, "b", min_cpus=4, max_cpus=4)
        lose(stage, a.granted)
        assert why(stage, a)
        stage.end(b)

        assert (a.granted & stage.node.plan.gone, why(stage, a)) == (0, "")


class TestThreadsOfCores:
    """Four cores of two hardware threads."""

    def test_a_core_is_used_with_what_is_left_of_it(self) -> None:
        """Without simultaneous multithreading each job has its cores, with half as many CPUs."""
        stage = Stage(MACHINES[3])
        a, b = arrive(stage, "a"), arrive(stage, "b")
        lose(stage, 0b10101010)
        assert {a.granted, b.granted} == {0b0101, 0b01010000}
        assert (why(stage, a), why(stage, b)) == ("", "")
        c = arrive(stage, "c")
        assert c.granted.bit_count() == 1
        lose(stage, 0)

        assert a.granted | b.granted | c.granted == 0xFF
