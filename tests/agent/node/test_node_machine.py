# SPDX-License-Identifier: Apache-2.0
"""The node's state machine, driven through arrivals, acknowledgements, deaths, orders and restarts in any order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from drom.agent.errors import ControlError, Refused
from drom.agent.model import layouts
from drom.agent.model.caller import Caller
from drom.agent.model.jobs import Arrival, Demand, Reservation
from drom.agent.model.layouts import ANY, Layout
from drom.agent.node import orders
from drom.agent.node.foreign import cores_of_foreign_jobs
from drom.agent.node.invariants import violations
from drom.agent.node.plan import MANY
from drom.agent.policy.site_rules import SiteRules
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.support.node_model import CAPACITY, World
from tests.support.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from drom.agent.model.cores import Cores
    from drom.agent.model.jobs import Action, Job
    from drom.agent.node.node import Node


RULES = st.builds(
    SiteRules,
    sharing_factor=st.sampled_from([0.25, 0.5, 1.0]),
    max_cpus_per_user=st.sampled_from([0, 0, 4, 5]),
    max_min=st.sampled_from([0, 0, 3]),
    max_rigid=st.sampled_from([0, 0, 3]),
    margin=st.sampled_from([0.0, 0.3, 1.0]),
    residence=st.sampled_from([0.0, 0.0, 1.0, 4.0]),
)


def said(ask: Callable[[], Any]) -> Any:
    """Return the answer, or the sentence of a refusal."""
    try:
        return ask()
    except Refused as refusal:
        return str(refusal)


def lies_as_asked(job: Job, cores: Cores) -> bool:
    """Say whether the targets of a job lie as its layout asks: each by itself if it is compact, else together."""
    per_task = [[cores.count(mask & socket) for socket in sockets_of(cores)] for mask in job.targets.values()]
    groups = per_task if job.layout.kind == "compact" else [list(map(sum, zip(*per_task, strict=True)))]
    return all(layouts.is_satisfied(job.layout, amounts, cores.sizes) for amounts in groups)


def sockets_of(cores: Cores) -> list[int]:
    """Return the CPUs of each socket."""
    pairs = list(zip(cores, cores.socket_of, strict=True))
    return [sum(core for core, socket in pairs if socket == n) for n in range(len(cores.sizes))]


ORDERS: st.SearchStrategy[Callable[[str], orders.Resize | orders.Release]] = st.one_of(
    st.builds(lambda cpus: lambda job: orders.Resize(job, cpus, None), st.one_of(st.none(), st.integers(1, 5))),
    st.just(orders.Release),
)
LAYOUTS = [ANY] * 6 + [
    Layout(kind, per_socket, strict)
    for kind, per_socket in (("compact", 0), ("spread", 0), ("per_socket", 1), ("per_socket", 2))
    for strict in (False, True)
]


class NodeMachine(RuleBasedStateMachine):
    """A node whose programs acknowledge, stay silent, die and are resized as hypothesis likes."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pids = 1000
        self.strict: dict[str, tuple[AbstractSet[int], bool]] = {}
        self.folder = TemporaryDirectory()
        self.world = World(Path(self.folder.name), make_node(MACHINES[0], capacity=CAPACITY))
        self.seen = self.world.node

    def teardown(self) -> None:
        self.world.close()
        self.folder.cleanup()

    @property
    def node(self) -> Node:
        """The node of the present agent."""
        return self.world.node

    @property
    def reserved(self) -> dict[str, Reservation]:
        """What schedulers have ordered."""
        return self.world.reserved

    @initialize(
        machine=st.sampled_from(MACHINES), rules=RULES, memory=st.sampled_from([0, 10]), many=st.sampled_from([0, MANY])
    )
    def start(self, machine: Any, rules: SiteRules, memory: int, many: int) -> None:
        self.begin(make_node(machine, rules=rules, memory=memory, capacity=CAPACITY), many)

    def begin(self, node: Node, many: int) -> None:
        """Begin with a node; from so many jobs on it is not asked where the best place is."""
        node.plan.many = many
        self.world.close()
        self.world = World(Path(self.folder.name), node)

    def carry_out(self, actions: list[Action]) -> bool:
        """Do as the agent does, in a real registry; say whether it lived through it."""
        return self.world.do(actions, self.now)

    @rule(
        target=slots,
        uid=st.integers(1, 3),
        job_class=st.sampled_from(["malleable", "malleable", "moldable", "rigid"]),
        asked=st.tuples(st.integers(0, 5), st.integers(0, 9)),
        size=st.sampled_from([1, 1, 1, 2, 3]),
        layout=st.sampled_from(LAYOUTS),
        memory=st.sampled_from([0, 0, 3, 6]),
        responds=st.sampled_from([True, True, False]),
        cpuset=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 0b110, 0b1100, 0b1111, 0b111100, 0xF0, 0xFF]),
        batch=st.sampled_from([("", 0), ("", 0), ("slurm-1", 0), ("slurm-2", 0b1111), ("slurm-3", 0xFF)]),
    )
    def arrive(
        self,
        *,
        uid: int,
        job_class: str,
        asked: tuple[int, int],
        size: int,
        layout: Layout,
        memory: int,
        responds: bool,
        cpuset: int,
        batch: tuple[str, int],
    ) -> Any:
        self.pids += 1
        session = self.pids if size > 1 else 0
        asks = {"min_cpus": min(asked), "max_cpus": asked[1], "size": size, "layout": layout, "memory": memory}
        asks |= {"cpuset": cpuset, "batch_job": batch[0], "batch_cpuset": batch[1] and cpuset and batch[1] | cpuset}
        arrival = Arrival(self.pids, 1, uid, "j", job_class, session, **asks)  # type: ignore[arg-type]
        answer = said(lambda: self.world.arrive(arrival, self.now))
        if isinstance(answer, str):
            assert answer.endswith(".")
            return multiple()
        if answer is None:
            return multiple()
        if responds:
            self.sits_down(answer.slot)
        return answer.slot

    @rule(slot=slots)
    def next_rank_arrives(self, slot: int) -> None:
        task = self.node.tasks.get(slot)
        if task is None or not task.arrival.session or task.job in self.reserved:
            return
        job = self.node.jobs[task.job]
        rank = next((r for r, t in job.ranks.items() if t is None and r >= job.first), None)
        if rank is not None:
            self.pids += 1
            cpuset = job.cpusets.get(rank, job.cpuset)
            again = replace(task.arrival, pid=self.pids, session=job.session, rank=rank - job.first, cpuset=cpuset)
            other = self.world.arrive(replace(again, batch_cpuset=job.cpuset), self.now)
            assert other is None or other.job == task.job

    @rule(
        uid=st.integers(1, 3),
        cores=st.integers(1, 9),
        tasks=st.integers(1, 3),
        job_class=st.sampled_from(["malleable", "malleable", "moldable", "rigid"]),
        memory=st.sampled_from([0, 0, 3, 6]),
        rests=st.sampled_from([False, False, True]),
    )
    def a_scheduler_reserves(
        self, *, uid: int, cores: int, tasks: int, job_class: str, memory: int, rests: bool
    ) -> None:
        """A job of a scheduler has its cores at once, and before any of its tasks is there."""
        self.pids += 1
        if rests:
            cores, job_class = min(cores - 1, tasks), "malleable"
        most = tasks if rests else cores + 2
        wanted = Reservation(f"drom-{self.pids}", uid, cores, most, tasks, job_class, memory, rests)
        if isinstance(answer := said(lambda: self.node.reservations.reserve(wanted, self.now)), str):
            assert answer.endswith(".")
            assert wanted.name not in self.node.jobs
            return
        self.reserved[wanted.name] = wanted
        self.carry_out(answer)

    @rule(
        target=slots,
        number=st.integers(0, 9),
        size=st.sampled_from([1, 1, 2, 3]),
        stranger=st.sampled_from([0, 0, 0, 7]),
        again=st.booleans(),
    )
    def a_task_of_it_arrives(self, *, number: int, size: int, stranger: int, again: bool) -> Any:
        """The task joins that job if their users are the same; no other job makes it wait."""
        if not self.reserved:
            return multiple()
        wanted = self.reserved[sorted(self.reserved)[number % len(self.reserved)]]
        job = self.node.jobs[wanted.name]
        self.pids += 1
        session, rank = self.pids, 0
        if again and job.session and not stranger:
            vacant = [place - job.first for place, task in job.ranks.items() if task is None and place >= job.first]
            session, rank, size = job.session, min(vacant, default=0), max(job.ranks) - job.first + 1
        arrival = Arrival(self.pids, 1, wanted.uid + stranger, wanted.name, "malleable", session, rank=rank, size=size)
        task = said(lambda: self.world.arrive(arrival, self.now))
        if isinstance(task, str):
            assert task.endswith(".")
            return multiple()
        if task is None:
            return multiple()
        assert (task.job == wanted.name) == (not stranger)
        assert stranger or wanted.rests or self.node.plan.target(task)
        return task.slot

    @rule(number=st.integers(0, 9), cores=st.integers(1, 9))
    def a_scheduler_orders(self, number: int, cores: int) -> None:
        """A reserved job is held at just what was ordered, if that is not refused."""
        if self.reserved:
            name = sorted(self.reserved)[number % len(self.reserved)]
            if not isinstance(answer := said(lambda: self.node.reservations.order(name, cores, self.now)), str):
                self.reserved[name] = replace(self.reserved[name], cores=cores)
                self.carry_out(answer)

    @rule(number=st.integers(0, 9))
    def a_job_of_it_is_over(self, number: int) -> None:
        if self.reserved:
            name = sorted(self.reserved)[number % len(self.reserved)]
            if not self.node.jobs[name].present:
                del self.reserved[name]
                self.carry_out(self.node.reservations.cancel(name, self.now))

    @rule(slot=slots)
    def comes_to_a_point(self, slot: int) -> None:
        self.sits_down(slot)

    def sits_down(self, slot: int) -> None:
        """Make the first process of a task its responder, if it has started."""
        task = self.node.tasks.get(slot)
        if task and task.started:
            self.node.grants.set_responder(slot, task.arrival.pid, 1)
            self.carry_out([])

    @rule(slot=slots)
    def responder_leaves(self, slot: int) -> None:
        if slot in self.node.tasks:
            self.carry_out(self.node.responder_left(slot, self.now))

    @rule(slot=slots, back=st.integers(0, 3))
    def applies(self, slot: int, back: int) -> None:
        task = self.node.tasks.get(slot)
        if task and task.started:
            self.carry_out(self.node.grants.applied(slot, task.epoch - back, self.now))

    @rule(
        slot=slots, wish=st.builds(Demand, st.sampled_from([0, 1, 2, 5, 2**32 - 1]), st.sampled_from([0, 1, 2, 3, 9]))
    )
    def wishes(self, slot: int, wish: Demand) -> None:
        """A wish takes cores from nobody but who says it, unless it is for more than the last one."""
        task = self.node.tasks.get(slot)
        if task and task.responder:
            before = {job.name: job.cores for job in self.node.jobs.values()}
            smaller = not wish.is_met_by_more_than(task.wish)
            lived = self.carry_out(self.node.demands_reported({slot: wish}, self.now))
            for job in self.node.jobs.values() if lived else ():
                assert not smaller or job.name == task.job or job.cores >= before[job.name]

    @rule(slot=slots, min_tasks=st.sampled_from([0, 1, 1, 2, 9]))
    def may_rest(self, slot: int, min_tasks: int) -> None:
        """All programs of a job say that its tasks may do without CPUs, or no longer may."""
        task = self.node.tasks.get(slot)
        ranks = self.node.jobs[task.job].present if task else []
        said = {one.slot: replace(one.said, min_tasks=min_tasks) for one in ranks if one.responder}
        self.carry_out(self.node.demands_reported(said, self.now))

    @rule(slot=slots)
    def lies_about_the_future(self, slot: int) -> None:
        task = self.node.tasks.get(slot)
        if task:
            assert self.node.grants.applied(slot, task.epoch + 1, self.now) == []

    @rule(frozen=st.sampled_from([False, False, True]))
    def freezes_or_thaws(self, frozen: bool) -> None:
        if frozen:
            self.node.freeze(self.now)
        else:
            self.carry_out(self.node.thaw(self.now))

    @rule(slot=consumes(slots))
    def dies(self, slot: int) -> None:
        if slot in self.node.tasks:
            self.world.ended(slot, self.now)

    @rule(newest=st.integers(1, 4))
    def leave_the_queue(self, newest: int) -> None:
        """Waiting programs are gone, which is seen when they are to be told of their first grants."""
        waiting = [task.arrival.pid for task in self.node.tasks.values() if not task.started]
        self.world.leaving.update(sorted(waiting)[-newest:])

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        while not self.carry_out(self.node.tick(self.now)):
            """The next agent does what was due."""
        deadline = self.node.next_deadline()
        assert deadline is None or deadline > self.now, "something should have been done by now"

    @rule(slot=slots, cpus=st.one_of(st.none(), st.integers(1, 9)), seconds=st.sampled_from([None, None, 1.0, 5.0]))
    def is_resized(self, slot: int, cpus: int | None, seconds: float | None) -> None:
        task = self.node.tasks.get(slot)
        if task:
            until = seconds and self.now + seconds
            self.ordered(lambda: self.node.resize(task.job, cpus, self.now, until))

    @rule(slot=slots, cpus=st.integers(1, 9))
    def is_resized_with_effect(self, slot: int, cpus: int) -> None:
        """A resize that is not refused changes the target to just that many whole cores."""
        task = self.node.tasks.get(slot)
        if task is None or isinstance(answer := said(lambda: self.node.resize(task.job, cpus, self.now)), str):
            return
        if self.carry_out(answer):
            assert self.node.jobs[task.job].cores == self.node.cores.needed_for(cpus)

    @rule(slot=slots, mask=st.integers(1, 255))
    def is_pinned_with_effect(self, slot: int, mask: int) -> None:
        """A set that is not refused makes just these CPUs the target."""
        task = self.node.tasks.get(slot)
        if task is None or isinstance(answer := said(lambda: self.node.pin(slot, mask, self.now)), str):
            return
        if self.carry_out(answer):
            assert self.node.plan.target(task) == mask

    @rule(slot=slots, mask=st.integers(1, 255))
    def is_pinned(self, slot: int, mask: int) -> None:
        if slot in self.node.tasks:
            self.ordered(lambda: self.node.pin(slot, mask, self.now))

    def ordered(self, order: Any) -> None:
        before = {t.slot: (t.held, self.node.plan.target(t)) for t in self.node.tasks.values()}
        answer = said(order)
        if isinstance(answer, str):
            assert answer.endswith(".")
            assert before == {t.slot: (t.held, self.node.plan.target(t)) for t in self.node.tasks.values()}
            return
        self.carry_out(answer)

    @rule(slot=slots, uid=st.integers(1, 3), wanted=ORDERS)
    def a_user_orders(self, slot: int, uid: int, wanted: Callable[[str], orders.Resize | orders.Release]) -> None:
        """Users change what is theirs, and take nothing from others that the policy would not give the job anyway."""
        task = self.node.tasks.get(slot)
        if task is None:
            return
        order, mine = wanted(task.job), task.arrival.uid == uid
        before = {job.name: job.cores for job in self.node.jobs.values()}
        try:
            orders.check_right(order, Caller(1, uid), self.node, master=False, masters="root")
            assert mine, "somebody else's job is changed"
            actions = orders.apply(order, self.node, self.now, uid)
        except ControlError:
            return
        if isinstance(order, orders.Release):
            self.world.let_go(task.arrival.pid)
        if self.carry_out(actions):
            begun = any(job.cores and not before[job.name] for job in self.node.jobs.values())
            shared_anew = begun or (isinstance(order, orders.Resize) and order.cpus is None)
            for job in [] if shared_anew else self.node.jobs.values():
                assert job.user == uid or job.cores >= before[job.name], f"{job.name} of another user has less"

    @rule(
        gone=st.sampled_from([0, 0, 0, 0, 1, 2, 0b110, 0b1001, 0b1111, 0b01010101, 0b11100000, 0x7F, 0xFF]),
        quota=st.sampled_from([None, None, None, 1, 2, 3, 7]),
        left_alone=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 0b110, 0b10001, 0b1111, 0b11100000, 0xFF]),
        foreign=st.lists(st.sampled_from([0b11, 0b1100, 0x0F, 0x3C, 0xFF]), max_size=2),
    )
    def what_may_be_used_changes(self, gone: int, quota: int | None, left_alone: int, foreign: list[int]) -> None:
        """A cpuset, the quota of our container in cores, what others use, and the CPUs of jobs of a batch system.

        Nobody new gets what is beyond the quota or others'; grants leave out what is gone, and who is on nothing else
        has a reason, and gets its own back.
        """
        cores = [core for core in self.node.cores if core & ~gone]
        within = sum(cores[:quota]) & ~gone
        before = {job.name: job.planned for job in self.node.jobs.values()}
        plan = self.node.plan
        theirs = within & cores_of_foreign_jobs(plan, {f"slurm-{n}": cpus for n, cpus in enumerate(foreign, 90)})
        busy = within & left_alone & ~theirs
        actions = self.node.set_usable_cpus(within & ~(busy | theirs), self.now, gone, busy, theirs)
        for job in self.node.jobs.values():
            assert not job.planned & plan.avoided & ~before[job.name], f"{job.name} gets CPUs that are to be left alone"
            assert job.planned & plan.gone or bool(plan.why_kept(job)) == bool(job.planned & plan.avoided)
        for task in self.node.tasks.values():
            lost = bool(plan.target(task) & plan.gone)
            assert not lost or " gone, and there is no room" in plan.why_kept(self.node.jobs[task.job])
        self.carry_out(actions)

    @precondition(lambda self: self.node.tasks)
    @rule(
        sharing_factor=st.sampled_from([0.25, 0.5, 1.0]),
        margin=st.sampled_from([0.0, 1.0]),
        residence=st.sampled_from([0.0, 4.0]),
    )
    def agent_restarts(self, sharing_factor: float, margin: float, residence: float) -> None:
        """The next agent adopts what the file says, perhaps with another configuration: nobody's CPUs change."""
        held = {t.slot: t.held for t in self.node.tasks.values() if t.started}
        old = self.node.plan.rules
        rules = replace(old, sharing_factor=sharing_factor, margin=margin, residence=residence)
        self.world.restart(self.now, rules, act=False)
        assert held == {t.slot: t.held & held.get(t.slot, 0) for t in self.node.tasks.values() if t.slot in held}
        self.world.go_on(self.now)

    @precondition(lambda self: self.node.tasks)
    @rule(stores=st.integers(0, 8))
    def agent_will_be_killed(self, stores: int) -> None:
        """The agent dies some stores into the registry from now on, whatever these are for."""
        self.world.book.fuse = stores

    @invariant()
    def invariants_hold(self) -> None:
        assert violations(self.node) == []
        for task in self.node.tasks.values():
            assert task.held == self.world.book.in_use.get(task.slot, 0)

    @invariant()
    def schedulers_have_what_they_ordered(self) -> None:
        """A reserved job has the cores that were ordered, whatever happens to its tasks and to others."""
        found = {name: job.cores for name, job in self.node.jobs.items() if job.reserved}
        assert found == {name: wanted.cores for name, wanted in self.reserved.items()}
        for name in [] if self.node.plan.gone else found:
            assert (
                not self.node.reservations.has_settled(name) or self.node.reservations.cores_held(name) == found[name]
            )

    @invariant()
    def the_file_lacks_nothing(self) -> None:
        """An agent may die at any moment: what the next one needs to know stands in the file."""
        assert self.world.unsaved() == []

    @invariant()
    def strict_layouts_hold(self) -> None:
        """A strict job starts as asked and stays so, but for exact orders, the death of a task and a new agent."""
        if self.node is not self.seen:
            self.seen, self.strict = self.node, {job: (set(), False) for job in self.node.jobs}
        found: dict[str, tuple[AbstractSet[int], bool]] = {}
        for job in self.node.jobs.values():
            if job.cores and job.layout.strict:
                judged = not job.frozen and not job.pinned
                as_asked = judged and lies_as_asked(job, self.node.cores)
                ranks, before = self.strict.get(job.name, (job.targets.keys(), True))
                assert as_asked or not judged or not before or ranks != job.targets.keys(), f"{job.name} is broken"
                found[job.name] = (job.targets.copy().keys(), as_asked)
        self.strict = found

    @invariant()
    def the_end_is_reached_by_acknowledgements_alone(self) -> None:
        """If everybody acknowledges and nothing else happens, every task ends with its target."""
        copy = self.node.copy()
        copy.thaw(self.now)
        for task in copy.tasks.values():
            task.responder = (task.arrival.pid, 1)
        targets = {t.slot: copy.plan.target(t) for t in copy.tasks.values()}
        for _ in range(50):
            pending = [t for t in copy.tasks.values() if len(t.grants) > 1]
            if not pending:
                break
            for task in pending:
                copy.grants.applied(task.slot, task.epoch, self.now)
        started_or_absent = {t.slot: t.granted for t in copy.tasks.values() if copy.plan.target(t)}
        assert started_or_absent == {slot: mask for slot, mask in targets.items() if mask}


NodeMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestNodeMachine = NodeMachine.TestCase
