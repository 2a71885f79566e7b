# SPDX-License-Identifier: Apache-2.0
"""What happens on a node, told as stories; `test_node_machine` looks for the stories nobody thought of."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from drom.agent.bench.simulated_day import restarted
from drom.agent.errors import Refused
from drom.agent.model.jobs import Action, Arrival, Bind, Demand, FreeSlot, Publish, Settled, Start, Task, action_name
from drom.agent.node.invariants import violations
from drom.agent.node.node import Node
from drom.agent.node.plan import MANY
from drom.agent.placement.kernel import distributor
from drom.agent.placement.kernel.background import CompiledKernel
from drom.agent.policy.site_rules import SiteRules
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.synthetic import synthetic_topology
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from tests.agent.node.test_node_machine import RULES, NodeMachine
from tests.support.node_model import CAPACITY
from tests.support.nodes import MACHINES, make_node, sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drom.agent.placement.ranks import PlacementKernel, RankKey, RankRequest

EIGHT = MACHINES[2]
THREADS = MACHINES[3]
WORDS = ["pack:2 core:1", "pack:2 core:2", "pack:2 core:4", "pack:2 core:2 pu:2"]
"""The machines of `MACHINES` in hwloc's words."""


class Stage:
    """A node with programs that acknowledge when told; every event is followed by a look at the invariants."""

    def __init__(self, cores: list[int] = EIGHT, **options: Any) -> None:
        self.node = make_node(cores, **options)
        self.now = 0.0
        self.pids = 100
        self.actions: list[Action] = []

    def take(self, actions: list[Action]) -> list[Action]:
        """Keep what the node asked for last, and look at it."""
        self.actions = actions
        assert violations(self.node) == []
        return actions

    def knock(self, job: str, **fields: Any) -> Task:
        """Let a task arrive without a responder."""
        self.pids += 1
        arrival = Arrival(**{"pid": self.pids, "start_time": 7, "uid": 1, "job": job, **fields})
        task, actions = self.node.arrive(arrival, self.now)
        self.take(actions)
        return task

    def arrive(self, job: str, **fields: Any) -> Task:
        """Let a task arrive whose program cooperates."""
        task = self.knock(job, **fields)
        assert self.node.grants.set_responder(task.slot, task.arrival.pid, 7)
        return task

    def ack(self, task: Task) -> list[Action]:
        """Acknowledge the newest grant of a task."""
        return self.take(self.node.grants.applied(task.slot, task.epoch, self.now))

    def settle(self) -> None:
        """Acknowledge everything until nothing is pending."""
        while late := [task for task in self.node.tasks.values() if len(task.grants) > 1]:
            self.ack(late[0])

    def end(self, task: Task) -> list[Action]:
        """Let a task end, and everybody else follow."""
        actions = self.take(self.node.ended(task.slot, self.now))
        self.settle()
        return actions

    def tick(self, seconds: float) -> list[Action]:
        """Let time pass."""
        self.now += seconds
        return self.take(self.node.tick(self.now))

    def resize(self, job: str, cpus: int | None) -> list[Action]:
        """Order a number of CPUs, and let everybody follow."""
        actions = self.take(self.node.resize(job, cpus, self.now))
        self.settle()
        return actions

    def pin(self, task: Task, mask: int) -> list[Action]:
        """Order exact CPUs, and let everybody follow."""
        actions = self.take(self.node.pin(task.slot, mask, self.now))
        self.settle()
        return actions

    @property
    def masks(self) -> dict[str, int]:
        """What each task has been granted last, by job and rank."""
        return {f"{t.job}/{t.rank}" if t.rank else t.job: t.granted for t in self.node.tasks.values()}

    @property
    def counts(self) -> dict[str, int]:
        """The cores each job has in the plan."""
        return {job.name: job.cores for job in self.node.jobs.values()}

    def state(self) -> object:
        """Return everything that a refusal must leave as it was."""
        node = copy.deepcopy(self.node)
        return repr(
            (node.tasks, node.jobs, node.plan.ledger.owners, sorted(node.grants._free_slots), node.grants.epochs)
        )


@pytest.fixture
def stage() -> Stage:
    """Return an empty node of two sockets of four cores."""
    return Stage()


def kinds(actions: list[Action]) -> list[type[Action]]:
    """Return the kinds of the actions in order."""
    return [type(action) for action in actions]


class TestArrival:
    """Tasks at the door."""

    def test_the_first_one_gets_the_whole_node(self, stage: Stage) -> None:
        """A task alone is granted every core at once, and its launcher is answered after the grant is out."""
        a = stage.arrive("a")

        assert kinds(stage.actions) == [Publish, Start]
        assert (a.granted, a.epoch, stage.node.grants.state(a)) == (0xFF, 1, "running")

    def test_a_guest_waits_until_the_mate_has_left(self, stage: Stage) -> None:
        """The mate is asked to shrink; only its acknowledgement starts the guest."""
        a = stage.arrive("a")
        b = stage.arrive("b")

        assert kinds(stage.actions) == [Publish]
        assert (stage.node.grants.state(a), stage.node.grants.state(b)) == ("shrinking", "waiting")
        assert kinds(stage.ack(a)) == [Settled, Publish, Start]
        assert stage.masks == {"a": 0x0F, "b": 0xF0}

    def test_the_grants_say_why(self, stage: Stage) -> None:
        """A mate is told that it shares, a guest that it arrived."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.settle()

        assert (a.reason, b.reason) == ("share", "arrival")

    def test_the_same_process_may_ask_again(self, stage: Stage) -> None:
        """A second knock of one process is the task it already is, and asks for nothing."""
        a = stage.arrive("a")
        before = stage.state()

        task, actions = stage.node.arrive(a.arrival, 1.0)

        assert (task, actions) == (a, [])
        assert stage.state() == before

    def test_a_reused_pid_is_another_task(self, stage: Stage) -> None:
        """A process with the pid of a task and another start time is somebody else."""
        a = stage.arrive("a")
        b = stage.knock("a", pid=a.arrival.pid, start_time=8)

        assert a is not b
        assert b.job == "a.2"

    def test_names_are_made_different(self, stage: Stage) -> None:
        """Jobs that ask for one name are numbered."""
        assert [stage.knock("a").job for _ in range(3)] == ["a", "a.2", "a.3"]

    def test_a_full_registry_refuses(self) -> None:
        """Without a free slot an arrival is refused with what to do, and a slot that came free serves again."""
        stage = Stage(capacity=1)
        a = stage.arrive("a")

        with pytest.raises(Refused, match=r"^the registry is full \(1 tasks\): .*--capacity\.$"):
            stage.knock("b")
        stage.end(a)
        assert stage.knock("b").slot == a.slot

    def test_epochs_go_on_in_a_reused_slot(self, stage: Stage) -> None:
        """A slot's next tenant never repeats an epoch, whoever still looks at it."""
        a = stage.arrive("a")
        stage.end(a)

        assert stage.arrive("b").epoch > a.epoch + 1

    def test_cpus_are_whole_cores(self) -> None:
        """Three CPUs on cores of two threads are two cores."""
        stage = Stage(THREADS)

        assert stage.arrive("a", max_cpus=3).granted.bit_count() == 4


class TestClasses:
    """Malleable, moldable and rigid jobs."""

    def test_a_rigid_job_gets_just_what_it_asks(self, stage: Stage) -> None:
        """A rigid job has its cores from the start and lends none."""
        stage.arrive("a", job_class="rigid", max_cpus=6)
        stage.arrive("b")

        assert stage.counts == {"a": 6, "b": 2}

    def test_a_rigid_job_waits_for_all_of_it(self, stage: Stage) -> None:
        """What sharing cannot give is waited for."""
        stage.arrive("a")
        b = stage.arrive("b", job_class="rigid", max_cpus=6)

        assert stage.node.grants.state(b) == "waiting"
        assert stage.node.jobs["b"].waits_for == "needs at least 6 CPUs: 0 free, running jobs may lend 4."

    def test_rigid_ranks_without_a_number_share_the_node(self, stage: Stage) -> None:
        """Three rigid tasks that ask for no number get two of eight cores each."""
        stage.arrive("a", job_class="rigid", session=5, size=3)

        assert stage.counts == {"a": 6}

    def test_a_moldable_job_takes_what_is_there_and_keeps_it(self, stage: Stage) -> None:
        """A moldable job starts smaller than it asked, and neither lends nor grows afterwards."""
        a = stage.arrive("a", max_cpus=5)
        stage.arrive("b", job_class="moldable", max_cpus=8)
        stage.settle()
        stage.end(a)
        stage.arrive("c", max_cpus=8)

        assert stage.counts == {"b": 4, "c": 4}

    def test_frozen_jobs_stay_where_they_are(self, stage: Stage) -> None:
        """A rigid job keeps its very cores through arrivals and ends of others."""
        rigid = stage.arrive("r", job_class="rigid", max_cpus=2)
        mask = rigid.granted
        for name in ("a", "b", "c"):
            stage.end(stage.arrive(name))
        stage.arrive("d")
        stage.settle()

        assert rigid.granted == mask


class TestOwnership:
    """Cores that are lent, and come back."""

    def test_the_guest_gives_back_when_it_ends(self, stage: Stage) -> None:
        """A mate gets its cores again, and is told that they return."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.settle()
        stage.end(b)

        assert stage.masks == {"a": 0xFF}
        assert (a.reason, stage.node.plan.owned(a)) == ("return", 0xFF)

    def test_what_is_lent_stays_owned(self, stage: Stage) -> None:
        """While the guest runs the mate owns the whole node, and the guest nothing."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.settle()

        assert (stage.node.plan.owned(a), stage.node.plan.owned(b)) == (0xFF, 0)

    def test_the_tasks_of_a_job_own_its_cores_together(self, stage: Stage) -> None:
        """Lent ones are no task's in particular; each task tells of all, whichever of them ends."""
        tasks = [stage.arrive("mpi", session=7, rank=rank, size=2) for rank in range(2)]
        stage.settle()
        stage.arrive("guest")
        stage.settle()

        assert stage.counts == {"mpi": 4, "guest": 4}
        assert [stage.node.plan.owned(task) for task in tasks] == [0xFF, 0xFF]
        stage.end(tasks[0])
        assert stage.node.plan.owned(tasks[1]) & tasks[1].granted == tasks[1].granted

    def test_when_the_owner_ends_first_the_guest_owns(self, stage: Stage) -> None:
        """D27: the guest takes the whole node, and lends it to the next one."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.settle()
        stage.end(a)
        stage.arrive("c")
        stage.settle()

        assert stage.counts == {"b": 4, "c": 4}
        assert stage.node.plan.owned(b) == 0xFF

    def test_two_guests_return_one_by_one(self, stage: Stage) -> None:
        """The end of one guest gives its cores to their owner, not to the other guest."""
        a, b = stage.arrive("a"), stage.arrive("b", max_cpus=2)
        stage.settle()
        c = stage.arrive("c", max_cpus=2)
        stage.settle()
        stage.end(b)

        assert stage.counts == {"a": 6, "c": 2}
        stage.end(c)
        assert a.granted == 0xFF

    def test_a_job_that_asked_for_less_leaves_cores_to_nobody(self, stage: Stage) -> None:
        """What nobody can use stays free, and the next one takes it without disturbing anybody."""
        a = stage.arrive("a", max_cpus=2)
        b = stage.arrive("b", max_cpus=3)

        assert kinds(stage.actions) == [Publish, Start]
        assert (a.granted.bit_count(), b.granted.bit_count()) == (2, 3)


class TestWaiting:
    """Arrivals that have to wait their turn."""

    @pytest.fixture
    def full(self, stage: Stage) -> Stage:
        """Return a node that a rigid job fills, with two waiting."""
        stage.arrive("a", job_class="rigid", max_cpus=8)
        stage.arrive("b", max_cpus=6, min_cpus=6)
        stage.arrive("c", max_cpus=2)
        return stage

    def test_each_is_told_why(self, full: Stage) -> None:
        """The first is told what is missing, the others that they stand behind it."""
        jobs = full.node.jobs

        assert jobs["b"].waits_for == "needs at least 6 CPUs: 0 free, running jobs may lend 0."
        assert jobs["c"].waits_for == "others arrived before it."
        assert full.counts == {"a": 8, "b": 0, "c": 0}

    def test_they_start_in_order(self, full: Stage) -> None:
        """When room comes all that fit start, and nobody waits for a sentence any more."""
        full.end(full.node.tasks[0])

        assert full.counts == {"b": 6, "c": 2}
        assert {job.waits_for for job in full.node.jobs.values()} == {""}

    def test_nobody_overtakes(self, stage: Stage) -> None:
        """One that would fit waits behind one that does not."""
        stage.arrive("a", job_class="rigid", max_cpus=6)
        stage.arrive("b", job_class="rigid", max_cpus=4)
        c = stage.arrive("c", max_cpus=1)

        assert stage.node.grants.state(c) == "waiting"

    def test_one_that_gives_up_frees_the_way(self, full: Stage) -> None:
        """A waiting task that ends lets the next one move up."""
        full.end(full.node.tasks[1])

        assert full.node.jobs["c"].waits_for == "needs at least 1 CPU: 0 free, running jobs may lend 0."

    def test_a_waiting_job_takes_no_orders(self, full: Stage) -> None:
        """A job can be resized and pinned only once it runs."""
        with pytest.raises(Refused, match=r"^job b still waits for its first cores: .*\.$"):
            full.resize("b", 2)
        with pytest.raises(Refused, match=r"^job b still waits"):
            full.pin(full.node.tasks[1], 1)


class TestOrders:
    """What people say."""

    def test_a_resized_job_holds(self, stage: Stage) -> None:
        """A job fixed at four cores keeps four, whoever comes and goes, and others use the rest."""
        a = stage.arrive("a")
        stage.resize("a", 4)
        b = stage.arrive("b")
        stage.settle()
        stage.end(b)

        assert (stage.counts, a.reason) == ({"a": 4}, "order")

    def test_a_resize_takes_from_others(self, stage: Stage) -> None:
        """An order is met at the cost of malleable neighbours, down to their minima."""
        stage.arrive("a")
        stage.arrive("b")
        stage.settle()
        stage.resize("b", 7)

        assert stage.counts == {"a": 1, "b": 7}

    def test_what_an_order_frees_is_used(self, stage: Stage) -> None:
        """Cores that a shrunk job leaves go to a neighbour that can use them."""
        stage.arrive("a")
        stage.arrive("b")
        stage.settle()
        stage.resize("a", 1)

        assert stage.counts == {"a": 1, "b": 7}

    def test_auto_lets_it_go(self, stage: Stage) -> None:
        """A job that is let go competes for its equal share again."""
        stage.arrive("a")
        stage.arrive("b")
        stage.settle()
        stage.resize("b", 7)
        stage.resize("b", None)

        assert stage.node.jobs["b"].hold is None
        assert stage.counts == {"a": 4, "b": 4}

    def test_auto_on_a_rigid_job_changes_nothing(self, stage: Stage) -> None:
        """A rigid job that is let go keeps its cores."""
        a = stage.arrive("a", job_class="rigid", max_cpus=3)
        stage.resize("a", None)

        assert a.granted.bit_count() == 3

    def test_a_pin_moves_and_holds(self, stage: Stage) -> None:
        """A pinned task has exactly these CPUs, its neighbour the others, and a later arrival changes neither mask."""
        a = stage.arrive("a")
        b = stage.arrive("b")
        stage.settle()
        stage.pin(a, 0b1100_0000)

        assert stage.masks == {"a": 0b1100_0000, "b": 0b0011_1111}
        stage.arrive("c")
        stage.settle()
        assert a.granted == 0b1100_0000
        assert not b.granted & a.granted

    def test_a_pin_may_name_one_thread_of_a_core(self) -> None:
        """Nobody else gets the other thread."""
        stage = Stage(THREADS)
        a = stage.arrive("a")
        stage.pin(a, 0b0111)
        b = stage.arrive("b")
        stage.settle()

        assert (a.granted, b.granted) == (0b0111, 0xF0)

    def test_a_resize_ends_a_pin(self, stage: Stage) -> None:
        """The newest order counts."""
        a = stage.arrive("a")
        stage.pin(a, 0b11)
        stage.resize("a", 3)

        assert (a.pin, a.granted.bit_count()) == (0, 3)

    def test_an_order_supersedes_one_not_yet_applied(self, stage: Stage) -> None:
        """A program asked to shrink and then to grow again gets the last word, and one acknowledgement settles both."""
        a = stage.arrive("a")
        stage.node.resize("a", 2, 0.0)
        stage.node.resize("a", 6, 0.0)

        assert len(a.grants) == 3
        assert kinds(stage.ack(a)) == [Settled]
        assert a.granted.bit_count() == 6

    @pytest.mark.parametrize(
        ("order", "sentence"),
        [
            (lambda s: s.node.resize("x", 2, 0.0), r"^there is no job x: see `drom ps`\.$"),
            (lambda s: s.node.resize("a", 9, 0.0), r"^job a can have 2 to 8 CPUs, not 9: see its min and max\.$"),
            (lambda s: s.node.resize("a", 1, 0.0), r"^job a can have 2 to 8 CPUs, not 1: see its min and max\.$"),
            (lambda s: s.node.resize("a", 8, 0.0), r"^job a cannot have 8 CPUs: at most 6 CPUs are available: .*\.$"),
            (lambda s: s.node.resize("r", 1, 0.0), r"^job r is rigid: it keeps its cores until it ends\.$"),
            (lambda s: s.node.pin(0, 0, 0.0), r"^some of these CPUs are not managed here: .*\.$"),
            (lambda s: s.node.pin(0, 0x100, 0.0), r"^some of these CPUs are not managed here: .*\.$"),
            (lambda s: s.node.pin(0, 0b1, 0.0), r"^a task of job a can have 2 to 8 CPUs, not 1: .*\.$"),
            (lambda s: s.node.pin(0, 0xFF, 0.0), r"^job r may not be moved from CPUs among these: choose others\.$"),
            (lambda s: s.node.pin(1, 0b11, 0.0), r"^job r is rigid: it keeps its cores until it ends\.$"),
            (
                lambda s: s.knock("b", job_class="rigid", max_cpus=9),
                r"^it needs at least 9 CPUs, this node has 8: .*\.$",
            ),
            (lambda s: s.knock("b", min_cpus=3, size=3), r"^3 tasks of at least 3 CPUs need 9, .*\.$"),
            (lambda s: s.knock("b", min_cpus=3, max_cpus=2), r"^--min 3 is above --cpus 2: .*\.$"),
            (lambda s: s.knock("b", rank=2, size=2), r"^local rank 2 is outside a job of 2 tasks: .*\.$"),
        ],
    )
    def test_refusals_leave_the_state_as_it_was(
        self, stage: Stage, order: Callable[[Stage], object], sentence: str
    ) -> None:
        """What cannot be done is answered with one sentence, and nothing has changed."""
        stage.arrive("a", min_cpus=2)
        stage.arrive("r", job_class="rigid", max_cpus=2)
        stage.settle()
        before = stage.state()

        with pytest.raises(Refused, match=sentence):
            order(stage)

        assert stage.state() == before

    def test_among_very_many_tasks_a_pin_moves_a_task_that_had_settled(self, stage: Stage) -> None:
        """A task that lies well and keeps its count is moved all the same when it is named."""
        a = stage.arrive("a")
        stage.node.plan.many = 0
        stage.pin(a, 0b10)
        stage.pin(a, 0b01)

        assert a.granted == 0b01

    def test_a_swap_by_pins_is_refused(self) -> None:
        """A pin that only two programs meeting on one core could perform is refused."""
        stage = Stage(MACHINES[0])
        a = stage.arrive("a")
        stage.arrive("b", max_cpus=1)
        stage.settle()
        before = stage.state()

        with pytest.raises(Refused, match=r"^these cores cannot change hands without two programs meeting .*\.$"):
            stage.node.pin(a.slot, stage.masks["b"], 0.0)
        assert stage.state() == before


class TestRanks:
    """Several tasks that are one job."""

    def test_they_join_by_session_and_name(self, stage: Stage) -> None:
        """Ranks of one launch are one job; all places are laid out when the first one comes."""
        first = stage.arrive("mpi", session=9, rank=0, size=2)

        assert stage.counts == {"mpi": 8}
        assert first.granted.bit_count() == 4
        second = stage.arrive("mpi", session=9, rank=1, size=2)
        assert second.job == first.job
        assert first.granted | second.granted == 0xFF

    @pytest.mark.parametrize("other", [{"session": 8}, {"uid": 2}, {"session": 0}, {"rank": 0}])
    def test_others_do_not_join(self, stage: Stage, other: dict[str, int]) -> None:
        """Another session, another user, no session, or a rank that is there already is another job."""
        stage.arrive("mpi", session=9, rank=0, size=2)

        assert stage.arrive("mpi", **{"session": 9, "rank": 1, "size": 2, **other}).job == "mpi.2"

    def test_a_missing_rank_is_given_up(self, stage: Stage) -> None:
        """After the time for the job to be complete its place goes to those who came."""
        first = stage.arrive("mpi", session=9, size=2, max_cpus=8)

        assert stage.node.next_deadline() == 2.0
        assert stage.tick(1.9) == []
        assert kinds(stage.tick(0.2)) == [Publish]
        stage.settle()
        assert (first.granted, stage.node.next_deadline()) == (0xFF, None)

    def test_ranks_that_come_slowly_are_awaited(self, stage: Stage) -> None:
        """Each has its time from the one before on, as a launch of many takes long on a busy node."""
        for rank in range(4):
            stage.arrive("mpi", session=9, rank=rank, size=4)
            stage.settle()
            assert stage.tick(1.5) == []

        assert (stage.counts, stage.node.next_deadline()) == ({"mpi": 8}, None)

    def test_a_rank_that_comes_too_late_gets_its_place_back(self, stage: Stage) -> None:
        """From the others, which had it meanwhile: all ranks of a launch are one job."""
        first = stage.arrive("mpi", session=9, size=2, max_cpus=8)
        stage.tick(3.0)
        stage.settle()
        late = stage.arrive("mpi", session=9, rank=1, size=2, max_cpus=8)
        stage.settle()

        assert (late.job, late.rank) == ("mpi", 1)
        assert (first.granted.bit_count(), late.granted.bit_count()) == (4, 4)

    def test_a_rank_that_comes_too_late_is_a_new_job_where_there_is_no_room(self, stage: Stage) -> None:
        """It waits for cores of its own."""
        stage.arrive("mpi", session=9, size=2, min_cpus=4, max_cpus=4)
        stage.tick(3.0)
        stage.settle()
        stage.arrive("other", min_cpus=4, max_cpus=4, job_class="rigid")
        stage.settle()

        assert stage.arrive("mpi", session=9, rank=1, size=2, min_cpus=4, max_cpus=4).job == "mpi.2"

    def test_a_rank_that_ends_leaves_its_cores_to_the_job(self, stage: Stage) -> None:
        """The cores of one rank return to their owner: the other one."""
        ranks = [stage.arrive("mpi", session=9, rank=rank, size=2, max_cpus=8) for rank in range(2)]
        stage.end(ranks[1])

        assert ranks[0].granted == 0xFF

    def test_a_rank_without_a_number_can_use_its_part_of_the_node(self, stage: Stage) -> None:
        """Of two ranks that asked for no number each can use half the node, also when the other has ended."""
        ranks = [stage.arrive("mpi", session=9, rank=rank, size=2) for rank in range(2)]
        stage.end(ranks[0])

        assert ranks[1].granted.bit_count() == 4

    def test_ranks_shrink_alike(self, stage: Stage) -> None:
        """Tasks of a job differ by at most one core."""
        for rank in range(3):
            stage.arrive("mpi", session=9, rank=rank, size=3)
        stage.arrive("b", max_cpus=3)
        stage.settle()

        assert [mask.bit_count() for mask in stage.masks.values()] == [2, 2, 1, 3]

    def test_a_waiting_job_waits_as_one(self, stage: Stage) -> None:
        """Ranks that wait all start when there is room for all."""
        a = stage.arrive("a", job_class="rigid", max_cpus=8)
        for rank in range(2):
            stage.arrive("mpi", session=9, rank=rank, size=2)
        actions = stage.end(a)

        assert kinds(actions) == [FreeSlot, Publish, Start, Publish, Start]


class TestWhatCanNotBeMet:
    """Jobs that wait for what the node does not hand out any more."""

    def test_nobody_waits_behind_one_that_needs_more_than_is_handed_out(self, stage: Stage) -> None:
        """The waiting job gives the reason, others start, and it comes first once there is enough again."""
        stage.take(stage.node.set_usable_cpus(0xFE, 0.0, 0))
        large, small = stage.arrive("large", min_cpus=8), stage.arrive("small", uid=2, min_cpus=1)
        assert stage.counts == {"large": 0, "small": 7}
        assert stage.node.grants.why_waiting(large) == "needs at least 8 CPUs: this node hands out 7 now."
        stage.take(stage.node.set_usable_cpus(0xFF, 0.0, 0))
        stage.settle()
        stage.end(small)
        assert stage.counts == {"large": 8}

    def test_cpus_that_are_busy_come_back(self, stage: Stage) -> None:
        """Who needs those that only others' load keeps from being handed out keeps its place in the queue."""
        stage.take(stage.node.set_usable_cpus(0xFE, 0.0, 0, 0x01))
        stage.arrive("large", min_cpus=8)
        small = stage.arrive("small", uid=2, min_cpus=1)
        assert stage.node.grants.why_waiting(small) == "others arrived before it."

    def test_a_cap_that_is_lowered_holds_nobody_else_up(self, stage: Stage) -> None:
        """A job that insists on more than its user may have does not keep that user's other jobs waiting."""
        stage.arrive("rigid", uid=2, job_class="rigid", max_cpus=4)
        waits = stage.arrive("waits", min_cpus=6)
        stage.take(stage.node.configure(SiteRules(max_cpus_per_user=4), 0, 1.0, stage.node.plan.layout, 0.0))
        stage.arrive("starts", min_cpus=1)
        why = "needs at least 6 CPUs: the jobs of one user get 4 together here now."
        assert stage.node.grants.why_waiting(waits) == why
        assert stage.counts == {"rigid": 4, "waits": 0, "starts": 4}


class TestCoresOfDifferentWidth:
    """Two cores of two threads and four of one."""

    def test_a_program_that_can_use_all_threads_has_all_cores(self) -> None:
        """What programs wish for is counted in threads, whichever cores they get."""
        stage = Stage([0b11, 0b1100, 0x10, 0x20, 0x40, 0x80])
        a = stage.arrive("a")
        stage.take(stage.node.demands_reported({a.slot: Demand(0, 8)}, 0.0))
        assert a.granted == 0xFF

    @pytest.mark.parametrize(("cpus", "least"), [(8, 8), (4, 4), (2, 2)])
    def test_an_order_is_rounded_up(self, cpus: int, least: int) -> None:
        """A job that is held at a number of threads has no fewer."""
        stage = Stage([0b11, 0b1100, 0x10, 0x20, 0x40, 0x80])
        a = stage.arrive("a")
        stage.resize("a", cpus)
        assert least <= a.granted.bit_count() <= 8


class TestAcknowledgements:
    """What programs say, and what they leave unsaid."""

    @pytest.mark.parametrize("epoch", [0, 1, 3, 99, (1 << 64) - 1])
    def test_forged_epochs_change_nothing(self, stage: Stage, epoch: int) -> None:
        """Only a published grant that is still pending can be acknowledged."""
        a = stage.arrive("a")
        stage.arrive("b")
        before = stage.state()

        assert a.epoch == 2
        assert stage.node.grants.applied(a.slot, epoch, 0.0) == []
        assert stage.node.grants.applied(77, 2, 0.0) == []
        assert stage.state() == before

    def test_an_older_pending_grant_may_be_acknowledged(self, stage: Stage) -> None:
        """A program that is one grant behind gives up what only the oldest one held."""
        a = stage.arrive("a")
        stage.node.resize("a", 4, 0.0)
        stage.node.resize("a", 2, 0.0)

        stage.take(stage.node.grants.applied(a.slot, 2, 0.0))

        assert (a.applied.bit_count(), a.held.bit_count(), len(a.grants)) == (4, 4, 2)

    def test_a_change_in_force_is_told_with_its_times(self, stage: Stage) -> None:
        """The report has both masks, what kind of change it was, who did it and when."""
        a = stage.arrive("a")
        stage.arrive("b")
        stage.now = 0.4
        done = stage.ack(a)[0]

        assert done == Settled(a, 2, 0xFF, 0x0F, "shrink", "applied", 0.0, 0.4)

    def test_after_the_grace_time_the_agent_binds(self, stage: Stage) -> None:
        """A program that stays silent is bound, the change counts as enforced, and the guest starts."""
        a, b = stage.arrive("a"), stage.arrive("b")

        assert stage.tick(0.9) == []
        assert stage.tick(0.2) == [Bind(a, 2, 0x0F)]
        stage.take(stage.node.grants.bound(a.slot, 2, stage.now))
        assert (stage.node.grants.state(a), b.started) == ("enforced", True)

    def test_what_is_published_when_the_grace_time_ends_is_bound(self, stage: Stage) -> None:
        """A wish that counts from that moment on does not put the binding off."""
        a = stage.arrive("a")
        stage.arrive("b")
        stage.take(stage.node.demands_reported({a.slot: Demand(0, 3)}, stage.now))
        stage.now = 0.5
        stage.take(stage.node.demands_reported({a.slot: Demand(0, 2)}, stage.now))
        before = a.epoch
        assert stage.tick(0.5)[-1] == Bind(a, a.epoch, a.granted)
        assert a.epoch > before

    def test_newer_grants_do_not_put_the_grace_time_off(self, stage: Stage) -> None:
        """A program that stays silent is bound to its newest grant when the time of its oldest one is over."""
        a, b = stage.arrive("a"), stage.arrive("b")
        for cpus in (3, 2, None, 3):
            assert stage.tick(0.24) == []
            stage.take(stage.node.resize("a", cpus, stage.now))
        assert stage.tick(0.04) == [Bind(a, a.epoch, a.granted)]
        assert len(a.grants) > 2
        stage.take(stage.node.grants.bound(a.slot, a.epoch, stage.now))
        assert (stage.node.grants.state(a), b.started) == ("enforced", True)

    def test_a_program_that_follows_slowly_has_its_grace_time_for_each_grant(self, stage: Stage) -> None:
        """Who applies one of several grants in time has the time of the next one for that."""
        a = stage.arrive("a")
        stage.arrive("b")
        stage.tick(0.9)
        stage.take(stage.node.resize("a", 2, stage.now))
        stage.take(stage.node.grants.applied(a.slot, a.grants[1].epoch, stage.now))
        assert stage.tick(0.9) == []
        assert stage.tick(0.1) == [Bind(a, a.epoch, a.granted)]

    def test_an_enforced_program_that_wakes_up_is_running_again(self, stage: Stage) -> None:
        """The mark goes with the next grant the program applies itself."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.take(stage.node.grants.bound(a.slot, 2, 1.0))
        stage.end(b)

        assert stage.node.grants.state(a) == "running"

    def test_a_program_without_a_responder_is_bound_at_once(self, stage: Stage) -> None:
        """Nobody is waited for who cannot answer."""
        a = stage.knock("a")
        stage.arrive("b")

        assert stage.actions == [Publish(a, 2, 0x0F, "share"), Bind(a, 2, 0x0F)]
        done = stage.take(stage.node.grants.bound(a.slot, 2, 0.0))[0]
        assert isinstance(done, Settled)
        assert done.outcome == "bound"

    def test_a_responder_that_leaves_is_bound_at_once(self, stage: Stage) -> None:
        """A task whose responder leaves before it applies a grant is bound at once, and has no responder."""
        a = stage.arrive("a")
        stage.arrive("b")

        assert stage.take(stage.node.responder_left(a.slot, stage.now)) == [Bind(a, 2, 0x0F)]
        assert stage.node.grants.set_responder(a.slot, 4711, 1)

    def test_a_responder_that_owes_nothing_leaves_its_task_bound(self, stage: Stage) -> None:
        """The other processes of a task get the whole grant, once, when its responder ends, and it has no responder."""
        a = stage.arrive("a")

        assert stage.take(stage.node.responder_left(a.slot, stage.now)) == [Bind(a, 1, 0xFF)]
        stage.node.grants.bind_failed(a.slot, stage.now)
        assert stage.take(stage.node.grants.bound(a.slot, 1, stage.now)) == []
        assert (a.mode, a.deadline) == ("bind-only", None)

    def test_a_task_has_one_responder(self, stage: Stage) -> None:
        """A second process does not replace the responder."""
        a = stage.arrive("a")

        assert not stage.node.grants.set_responder(a.slot, 4711, 1)
        assert stage.node.grants.set_responder(a.slot, a.arrival.pid, 7)

    def test_what_may_not_be_bound_is_tried_again(self, stage: Stage) -> None:
        """EPERM makes a task unmanaged; each grace time it is tried again until it works."""
        a, b = stage.knock("a"), stage.knock("b")
        stage.node.grants.bind_failed(a.slot, stage.now)

        assert (a.mode, b.started) == ("unmanaged", False)
        for _ in range(3):
            assert stage.tick(1.0) == [Bind(a, 2, 0x0F)]
            stage.node.grants.bind_failed(a.slot, stage.now)
        stage.take(stage.node.grants.bound(a.slot, 2, stage.now))
        assert (a.mode, b.started) == ("bind-only", True)

    def test_there_is_no_deadline_when_all_is_in_force(self, stage: Stage) -> None:
        """The loop may sleep while nothing is pending."""
        a = stage.arrive("a")

        assert stage.node.next_deadline() is None
        stage.arrive("b")
        assert stage.node.next_deadline() == 1.0
        stage.ack(a)
        assert stage.node.next_deadline() is None


class TestRestart:
    """A new agent in the place of one that was killed."""

    def test_nobody_moves(self, stage: Stage) -> None:
        """Tasks keep what they have, owners what they own, and nothing is published."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.settle()
        new, actions = restarted(stage.node, 5.0)

        assert actions == []
        assert {t.job: t.granted for t in new.tasks.values()} == stage.masks
        assert [new.plan.owned(t) for t in new.tasks.values()] == [stage.node.plan.owned(a), stage.node.plan.owned(b)]

    def test_a_pending_shrink_stays_pending(self, stage: Stage) -> None:
        """What was not acknowledged is still held, and the acknowledgement is still heard."""
        a = stage.arrive("a")
        stage.arrive("b")
        new, _ = restarted(stage.node, 5.0)

        assert new.tasks[a.slot].held == 0xFF
        assert kinds(new.grants.applied(a.slot, 2, 5.0)) == [Settled, Publish, Start]

    def test_waiting_tasks_still_wait_in_order(self, stage: Stage) -> None:
        """The queue survives."""
        a = stage.arrive("a", job_class="rigid", max_cpus=8)
        stage.arrive("b")
        stage.arrive("c")
        new, _ = restarted(stage.node, 5.0)

        assert new.jobs["c"].waits_for == "others arrived before it."
        assert kinds(new.ended(a.slot, 6.0)) == [FreeSlot, Publish, Start, Publish, Start]

    def test_orders_survive(self, stage: Stage) -> None:
        """A held job is still held and a pin still a pin, by the same user."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.settle()
        stage.resize("b", 2)
        stage.pin(a, 0b1)
        stage.node.jobs["b"].hold_by = 1234
        new, _ = restarted(stage.node, 5.0)

        assert (new.jobs["b"].hold, new.tasks[a.slot].pin) == (2, 1)
        assert (new.jobs["b"].hold_by, new.jobs["a"].hold_by) == (1234, stage.node.jobs["a"].hold_by)
        assert new.tasks[b.slot].granted == b.granted

    def test_an_order_on_its_way_is_given_again(self, stage: Stage) -> None:
        """A pin that was not published in full is made anew by the next agent."""
        a = stage.arrive("a")
        b = stage.arrive("b")
        stage.settle()
        stage.take(stage.node.pin(a.slot, 0b1100_0000, 4.0, 0))
        assert a.granted != 0b1100_0000
        new, _ = restarted(stage.node, 5.0)

        assert new.jobs["a"].hold_by == 0

        assert (new.tasks[a.slot].pin, new.plan.target(new.tasks[a.slot])) == (0b1100_0000, 0b1100_0000)
        assert new.plan.target(new.tasks[b.slot]) == 0b0011_1111

    def test_a_rank_that_had_not_started_is_placed_again(self, stage: Stage) -> None:
        """Of a job that the old agent had started in part the other ranks still get their cores."""
        a = stage.arrive("a")
        stage.resize("a", 4)
        stage.arrive("fill", max_cpus=2)
        stage.arrive("mpi", session=9, size=2, max_cpus=1)
        stage.node.resize("a", None, 0.0)
        late = stage.knock("mpi", session=9, rank=1, size=2, max_cpus=1)
        late.grants, late.epoch = [], 0
        new, _ = restarted(stage.node, 5.0)

        assert violations(new) == []
        assert new.jobs["mpi"].targets.keys() == {0, 1}
        assert new.tasks[a.slot].held

    def test_an_order_that_cannot_be_carried_out_any_more_holds_what_there_is(self, stage: Stage) -> None:
        """A number ordered for three ranks, of which one had come, is too much for that one alone: it keeps its own."""
        stage.arrive("mpi", session=9, size=3)
        stage.resize("mpi", 5)
        new, _ = restarted(stage.node, 5.0)
        job = new.jobs["mpi"]

        assert (job.hold, job.cores) == (job.cores, new.cores.count(new.tasks[0].granted))
        assert violations(new) == []

    def test_remembered_epochs_go_on(self) -> None:
        """A slot that was used before the restart goes on counting."""
        stage = Stage()
        stage.node.grants.remember({0: 41})

        assert stage.arrive("a").epoch == 42


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [(0, 3, "start"), (3, 1, "shrink"), (1, 3, "grow"), (3, 6, "move"), (3, 12, "move"), (3, 3, "keep")],
)
def test_changes_have_names(old: int, new: int, name: str) -> None:
    """A change is named by what it takes and gives."""
    assert action_name(old, new) == name


def kernel_of(words: str) -> PlacementKernel:
    """Return the distribution kernel as a plain function, which copies of a node share."""
    placer = CompiledKernel(synthetic_topology(words))
    placer.close()

    def place(requests: Sequence[RankRequest]) -> dict[RankKey, int] | None:
        return placer(requests)

    return place


@pytest.fixture(scope="module")
def kernels() -> dict[int, PlacementKernel]:
    """Return the distribution kernel for each of `MACHINES`; compiling it may take long, once."""
    distributor.kernel()
    return {n: kernel_of(words) for n, words in enumerate(WORDS)}


class TestWithTheKernel:
    """The same node with the kernel that keeps jobs on sockets of their own."""

    def test_the_words_describe_the_machines(self) -> None:
        """The kernel's cores are those of the state machine."""
        assert [[row[2] for row in usable_cores(synthetic_topology(words))] for words in WORDS] == MACHINES

    def test_a_guest_gets_a_socket_of_its_own(self, kernels: dict[int, PlacementKernel]) -> None:
        """H2: of a mate's two ranks one moves over, and the guest has a socket alone."""
        stage = Stage()
        stage.node = Node(EIGHT, kernels[2])
        ranks = [stage.arrive("mate", session=9, rank=rank, size=2) for rank in range(2)]
        homes = {task.granted for task in ranks}
        guest = stage.arrive("guest")
        stage.settle()

        assert homes == {0x0F, 0xF0}
        assert guest.granted in homes
        stage.end(guest)
        assert {task.granted for task in ranks} == homes

    @pytest.mark.timeout(600)
    def test_the_state_machine_holds(self, kernels: dict[int, PlacementKernel]) -> None:
        """Everything that `test_node_machine` says of a node is true of one with the real kernel."""

        class KernelMachine(NodeMachine):
            @initialize(
                machine=st.sampled_from(range(len(MACHINES))),
                rules=RULES,
                memory=st.sampled_from([0, 10]),
                many=st.sampled_from([0, MANY]),
            )
            def start(self, machine: Any, rules: SiteRules, memory: int, many: int) -> None:
                node = Node(sockets(MACHINES[machine]), kernels[machine], rules=rules, memory=memory, capacity=CAPACITY)
                self.begin(node, many)

        run_state_machine_as_test(
            KernelMachine, settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
        )


class TestFrozen:
    """The kill switch: nothing is published and nobody is bound until it is taken away."""

    def test_an_arrival_waits_until_the_thaw(self, stage: Stage) -> None:
        """After the thaw the arrival gets its cores as if it had just come."""
        a = stage.arrive("a")
        stage.node.freeze(1.0)
        b = stage.knock("b")

        assert (stage.actions, b.started, stage.masks["a"]) == ([], False, 0xFF)
        assert stage.take(stage.node.thaw(2.0)) == [Publish(a, 2, 0x0F, "share")]
        stage.settle()
        assert stage.masks == {"a": 0x0F, "b": 0xF0}

    def test_a_death_is_noted_and_its_cores_stay_free(self, stage: Stage) -> None:
        """Who is left grows at the thaw."""
        a, b = stage.arrive("a"), stage.arrive("b")
        stage.settle()
        stage.node.freeze(1.0)

        assert stage.take(stage.node.ended(b.slot, 1.0)) == [FreeSlot(b)]
        assert stage.masks == {"a": 0x0F}
        assert stage.take(stage.node.thaw(2.0)) == [Publish(a, 3, 0xFF, "return")]

    def test_the_grace_time_stands_still(self, stage: Stage) -> None:
        """Nobody is bound while frozen; afterwards a program has its whole grace time."""
        a = stage.arrive("a")
        stage.arrive("b")
        stage.node.freeze(0.5)

        assert stage.tick(100) == []
        assert stage.node.next_deadline() is None
        assert stage.take(stage.node.thaw(100.0)) == []
        assert stage.tick(0.5) == []
        assert stage.tick(0.5) == [Bind(a, 2, 0x0F)]

    def test_an_acknowledgement_frees_cores_for_nobody_yet(self, stage: Stage) -> None:
        """A program may still apply what it was granted."""
        a, b = stage.arrive("a"), stage.knock("b")
        stage.node.freeze(0.5)

        assert [type(action) for action in stage.ack(a)] == [Settled]
        assert (a.held, b.started) == (0x0F, False)
        assert stage.take(stage.node.thaw(1.0)) == [Publish(b, 1, 0xF0, "arrival"), Start(b)]

    def test_a_responder_that_left_meanwhile_is_bound_at_the_thaw(self, stage: Stage) -> None:
        """At once, for nobody is there to answer."""
        a = stage.arrive("a")
        stage.arrive("b")
        stage.node.freeze(0.5)

        assert stage.take(stage.node.responder_left(a.slot, 0.6)) == []
        assert stage.take(stage.node.thaw(0.7)) == [Bind(a, 2, 0x0F)]

    def test_orders_are_refused(self, stage: Stage) -> None:
        """With what to do; nothing is kept for later."""
        a = stage.arrive("a")
        stage.node.freeze(0.5)
        before = stage.state()

        refusal = r"^the node is frozen: .*\.$"
        with pytest.raises(Refused, match=refusal):
            stage.resize("a", 2)
        with pytest.raises(Refused, match=refusal):
            stage.resize("a", None)
        with pytest.raises(Refused, match=refusal):
            stage.pin(a, 1)
        assert stage.state() == before

    def test_freezing_twice_is_freezing_once(self, stage: Stage) -> None:
        """The first moment counts; a thaw without a frost does nothing."""
        stage.node.freeze(1.0)
        stage.node.freeze(2.0)

        assert stage.node.grants.frozen_since == 1.0
        assert stage.node.thaw(3.0) == stage.node.thaw(4.0) == []
