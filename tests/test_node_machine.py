# SPDX-License-Identifier: Apache-2.0
"""The node's state machine, driven through arrivals, acknowledgements, deaths, orders and restarts in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from agent import layouts
from agent.day import restarted
from agent.invariants import violations
from agent.jobs import Action, Arrival, Bind, Done, Forget, Publish, Refused, Start
from agent.layouts import ANY, Layout
from agent.registry import kept
from agent.rules import Rules
from agent.seating import MANY
from agent.wishes import Wish
from tests.nodes import MACHINES, make_node

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from agent.cores import Cores
    from agent.jobs import Job, Task


RULES = st.builds(
    Rules,
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
    return all(layouts.is_as_asked(job.layout, amounts, cores.sizes) for amounts in groups)


def sockets_of(cores: Cores) -> list[int]:
    """Return the CPUs of each socket."""
    pairs = list(zip(cores, cores.socket_of, strict=True))
    return [sum(core for core, socket in pairs if socket == n) for n in range(len(cores.sizes))]


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
        self.in_use: dict[int, int] = {}
        self.strict: dict[str, tuple[AbstractSet[int], bool]] = {}
        self.file: dict[int, dict[str, int]] = {}
        self.node = make_node(MACHINES[0])

    @initialize(
        machine=st.sampled_from(MACHINES), rules=RULES, memory=st.sampled_from([0, 10]), many=st.sampled_from([0, MANY])
    )
    def start(self, machine: Any, rules: Rules, memory: int, many: int) -> None:
        self.node = make_node(machine, rules=rules, memory=memory)
        self.node.plan.many = many

    def carry_out(self, actions: list[Action]) -> None:
        """Do as the shell does, first come first done: bind what has no responder, and keep a book of who is where."""
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            if isinstance(action, Publish):
                others = 0
                for slot, mask in self.in_use.items():
                    others |= mask if slot != action.task.slot else 0
                assert not self.node.frozen, "a frozen node publishes"
                assert not action.mask & others, "a grant meets CPUs that another program may still be on"
                self.in_use[action.task.slot] = self.in_use.get(action.task.slot, 0) | action.mask
            elif isinstance(action, Bind):
                assert not self.node.frozen, "a frozen node binds"
                if action.epoch == action.task.epoch:
                    queue += self.node.bound(action.task.slot, action.epoch, self.now)
            elif isinstance(action, Done):
                self.in_use[action.task.slot] = action.task.held
            elif isinstance(action, Forget):
                self.in_use.pop(action.task.slot, None)
            else:
                assert isinstance(action, Start)

    @rule(
        target=slots,
        uid=st.integers(1, 3),
        job_class=st.sampled_from(["malleable", "malleable", "moldable", "rigid"]),
        asked=st.tuples(st.integers(0, 5), st.integers(0, 9)),
        size=st.sampled_from([1, 1, 1, 2, 3]),
        layout=st.sampled_from(LAYOUTS),
        memory=st.sampled_from([0, 0, 3, 6]),
    )
    def arrive(
        self, *, uid: int, job_class: str, asked: tuple[int, int], size: int, layout: Layout, memory: int
    ) -> Any:
        self.pids += 1
        session = self.pids if size > 1 else 0
        asks = {"min_cpus": min(asked), "max_cpus": asked[1], "size": size, "layout": layout, "memory": memory}
        arrival = Arrival(self.pids, 1, uid, "j", job_class, session, **asks)  # type: ignore[arg-type]
        answer = said(lambda: self.node.arrive(arrival, self.now))
        if isinstance(answer, str):
            assert answer.endswith(".")
            return multiple()
        task, actions = answer
        self.carry_out(actions)
        return task.slot

    @rule(slot=slots)
    def next_rank_arrives(self, slot: int) -> None:
        task = self.node.tasks.get(slot)
        if task is None or not task.arrival.session:
            return
        rank = next((r for r, t in self.node.jobs[task.job].ranks.items() if t is None), None)
        if rank is not None:
            self.pids += 1
            again = replace(task.arrival, pid=self.pids, rank=rank)
            other, actions = self.node.arrive(again, self.now)
            assert other.job == task.job
            self.carry_out(actions)

    @rule(slot=slots)
    def sits_down(self, slot: int) -> None:
        task = self.node.tasks.get(slot)
        if task and task.started:
            self.node.seat(slot, task.arrival.pid, 1)

    @rule(slot=slots)
    def responder_leaves(self, slot: int) -> None:
        if slot in self.node.tasks:
            self.carry_out(self.node.unseat(slot, self.now))

    @rule(slot=slots, back=st.integers(0, 3))
    def applies(self, slot: int, back: int) -> None:
        task = self.node.tasks.get(slot)
        if task and task.started:
            self.carry_out(self.node.applied(slot, task.epoch - back, self.now))

    @rule(slot=slots, wish=st.builds(Wish, st.sampled_from([0, 1, 2, 5, 2**32 - 1]), st.sampled_from([0, 1, 2, 3, 9])))
    def wishes(self, slot: int, wish: Wish) -> None:
        """A wish takes cores from nobody but who says it, unless it is for more than the last one."""
        task = self.node.tasks.get(slot)
        if task and task.responder:
            before = {job.name: job.cores for job in self.node.jobs.values()}
            smaller = not wish.is_met_by_more_than(task.wish)
            self.carry_out(self.node.wished({slot: wish}, self.now))
            for job in self.node.jobs.values():
                assert not smaller or job.name == task.job or job.cores >= before[job.name]

    @rule(slot=slots)
    def lies_about_the_future(self, slot: int) -> None:
        task = self.node.tasks.get(slot)
        if task:
            assert self.node.applied(slot, task.epoch + 1, self.now) == []

    @rule()
    def freezes(self) -> None:
        self.node.freeze(self.now)

    @rule()
    def thaws(self) -> None:
        self.carry_out(self.node.thaw(self.now))

    @rule(slot=consumes(slots))
    def dies(self, slot: int) -> None:
        if slot in self.node.tasks:
            self.carry_out(self.node.ended(slot, self.now))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(self.node.tick(self.now))
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
        self.carry_out(answer)
        assert self.node.jobs[task.job].cores == self.node.cores.needed_for(cpus)

    @rule(slot=slots, mask=st.integers(1, 255))
    def is_pinned_with_effect(self, slot: int, mask: int) -> None:
        """A set that is not refused makes just these CPUs the target."""
        task = self.node.tasks.get(slot)
        if task is None or isinstance(answer := said(lambda: self.node.pin(slot, mask, self.now)), str):
            return
        self.carry_out(answer)
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

    @rule(left_alone=st.sampled_from([0, 0, 1, 2, 3, 0b110, 0b10001, 0b1111, 0b11100000, 0xFF]))
    def others_use_cores(self, left_alone: int) -> None:
        """Some CPUs are to be left alone from now on: nobody new is to have them."""
        before = {job.name: job.planned for job in self.node.jobs.values()}
        self.carry_out(self.node.use(~left_alone, self.now))
        plan = self.node.plan
        for job in self.node.jobs.values():
            assert not job.planned & plan.avoided & ~before[job.name], f"{job.name} gets CPUs that are to be left alone"
            assert bool(plan.why_stays(job)) == bool(job.planned & plan.avoided)

    @rule(gone=st.sampled_from([0, 0, 1, 2, 0b110, 0b1001, 0b1111, 0b01010101, 0b11100000, 0x7F, 0xFF]))
    def cpus_go_and_come_back(self, gone: int) -> None:
        """Grants leave out what is gone; who is on nothing else has a reason, and gets its own back."""
        self.carry_out(self.node.use(-1, self.now, gone))
        plan = self.node.plan
        for task in self.node.tasks.values():
            lost = bool(plan.target(task) & plan.gone)
            assert not lost or " gone, and there is no room" in plan.why_stays(self.node.jobs[task.job])

    @rule()
    def agent_restarts(self) -> None:
        held = {t.slot: t.held for t in self.node.tasks.values() if t.started}
        self.node, actions = restarted(self.node, self.now)
        self.strict = {job: (set(), False) for job in self.node.jobs}
        self.in_use = dict(held)
        assert held == {t.slot: t.held & held.get(t.slot, 0) for t in self.node.tasks.values() if t.slot in held}
        self.carry_out(actions)

    @invariant()
    def invariants_hold(self) -> None:
        assert violations(self.node) == []
        for task in self.node.tasks.values():
            assert task.held == self.in_use.get(task.slot, 0)

    @invariant()
    def the_file_lacks_nothing(self) -> None:
        """Whoever saves only the tasks that changed has the same records as who saves all of them."""
        self.file |= {task.slot: self.record(task) for task in self.node.take_unsaved()}
        assert {slot: self.file.get(slot) for slot in self.node.tasks} == {
            task.slot: self.record(task) for task in self.node.tasks.values()
        }

    def record(self, task: Task) -> dict[str, int]:
        plan = self.node.plan
        return kept(task, self.node.jobs[task.job], plan.target(task), plan.owned(task))

    @invariant()
    def strict_layouts_hold(self) -> None:
        """A strict job starts as asked and stays so, but for exact orders, the death of a task and a new agent."""
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
        copy = self.node.fork()
        copy.thaw(self.now)
        for task in copy.tasks.values():
            task.responder = (task.arrival.pid, 1)
        targets = {t.slot: copy.plan.target(t) for t in copy.tasks.values()}
        for _ in range(50):
            pending = [t for t in copy.tasks.values() if len(t.grants) > 1]
            if not pending:
                break
            for task in pending:
                copy.applied(task.slot, task.epoch, self.now)
        started_or_absent = {t.slot: t.granted for t in copy.tasks.values() if copy.plan.target(t)}
        assert started_or_absent == {slot: mask for slot, mask in targets.items() if mask}


NodeMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestNodeMachine = NodeMachine.TestCase
