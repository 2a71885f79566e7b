# SPDX-License-Identifier: Apache-2.0
"""A simulated day of a node: random programs arrive, apply grants late or not at all, die and are resized.

The node is a pure `Node`.

Runtime model: a program has an amount of work, in core-seconds, and does it with linear speedup on the cores of its
grants in force, up to the number it asked for. A program that runs below its maximum takes longer, and no work is lost.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drom.agent.errors import Refused
from drom.agent.model.jobs import Action, Arrival, Bind, Publish, Reservation, Settled, Start, Task
from drom.agent.model.layouts import ANY, Layout
from drom.agent.node.invariants import violations
from drom.agent.node.node import Node
from drom.agent.policy import fair_share
from drom.agent.policy.fair_share import JobCores

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

DAY = 86400.0
"""Seconds."""
CLASSES = ("malleable",) * 14 + ("moldable",) * 3 + ("rigid",) * 3
LAYOUTS = (ANY,) * 16 + (Layout("compact"), Layout("spread"), Layout("spread", strict=True), Layout("compact"))


@dataclass(frozen=True, slots=True)
class Program:
    """One launch: `tasks` of at most `cores` cores each, `work` core-seconds together, `memory` bytes a task.

    `latency`: seconds from a grant to its acknowledgement, None without a responder. `missing`: ranks that never come.
    """

    number: int
    at: float
    user: int
    job_class: str
    tasks: int
    cores: int
    least: int
    work: float
    memory: int = 0
    layout: Layout = ANY
    latency: float | None = None
    missing: int = 0

    @property
    def most(self) -> int:
        """The cores it can use."""
        return self.cores * self.tasks

    @property
    def alone(self) -> float:
        """The seconds it takes on all the cores it asked for."""
        return self.work / self.most


def programs(
    rng: random.Random, cores: int, *, seconds: float = DAY, load: float = 0.5, users: int = 6, memory: int = 0
) -> list[Program]:
    """Draw the programs of a day on a node of `cores` cores, in the order of arrival.

    Arrivals are Poisson with a daily cycle (busiest in the middle, a fifth of that at its ends); their total work is
    the part `load` of the node's capacity. Cores (at most half the node) and run times are log-normal (medians 6
    cores, 2 minutes); user k submits 1/k as many programs as the first.
    """
    drawn: list[Program] = []
    at, mean = 0.0, _mean_work(cores)
    peak = load * cores / mean / 0.6
    weights = [1 / k for k in range(1, users + 1)]
    for number in itertools.count():
        while True:
            at += rng.expovariate(peak)
            if rng.random() < 0.6 - 0.4 * math.cos(2 * math.pi * at / seconds):
                break
        if at >= seconds:
            return drawn
        user = rng.choices(range(1, users + 1), weights)[0]
        drawn.append(_draw(rng, number, at, user, cores=cores, memory=memory))
    return drawn


def _draw(rng: random.Random, number: int, at: float, user: int, *, cores: int, memory: int) -> Program:
    most, duration = _size(rng, cores), _duration(rng)
    tasks = rng.choice((1,) * 8 + (2, 4)) if most >= 4 else 1
    each = most // tasks
    job_class = rng.choice(CLASSES)
    return Program(
        number,
        at,
        user,
        job_class,
        tasks,
        each,
        least=each if job_class == "rigid" else rng.choice((0, 0, 1, max(1, each // 4), max(1, each // 2))),
        work=duration * each * tasks,
        memory=int(memory * min(0.5, rng.lognormvariate(-3, 1)) / tasks) if memory and rng.random() < 0.3 else 0,
        layout=rng.choice(LAYOUTS),
        latency=None if rng.random() < 0.2 else rng.lognormvariate(-3, 1.5),
        missing=rng.choice((0,) * 19 + (1,)) if tasks > 1 else 0,
    )


def _size(rng: random.Random, cores: int) -> int:
    return max(1, min(cores // 2, round(rng.lognormvariate(math.log(6), 0.9))))


def _duration(rng: random.Random) -> float:
    return min(2 * 3600.0, max(5.0, rng.lognormvariate(math.log(120), 1.3)))


def _mean_work(cores: int) -> float:
    """Return the mean work of a program, from the same distributions."""
    import random

    rng = random.Random(1)  # noqa: S311 - a simulation
    return sum(_size(rng, cores) * _duration(rng) for _ in range(4000)) / 4000


@dataclass(slots=True)
class Outcome:
    """The outcome of a program: the times of the start of its first task and of its end (seconds)."""

    program: Program
    started: float = math.inf
    ended: float = math.inf
    refused: str = ""

    @property
    def response(self) -> float:
        """Seconds from arrival to end."""
        return self.ended - self.program.at

    @property
    def slowdown(self) -> float:
        """Response over the time alone, both at least ten seconds (bounded slowdown)."""
        return max(1.0, self.response / max(10.0, self.program.alone))


@dataclass(slots=True)
class Accounts:
    """The totals of a run: core-seconds worked, those received and due by user, resizes.

    `busy_seconds`: the time with any program present; `job_seconds`: the sum of the run times of all programs.
    """

    worked: float = 0.0
    received: dict[int, float] = field(default_factory=dict)
    due: dict[int, float] = field(default_factory=dict)
    busy_seconds: float = 0.0
    job_seconds: float = 0.0
    resizes: int = 0
    events: int = 0

    def enter(self, seconds: float, rates: dict[int, float], present: Sequence[Program], cores: int) -> None:
        """Add a period of `seconds` in which the `present` programs worked on the cores in `rates`, by number."""
        wishes = [JobCores(str(p.number), p.user, p.tasks, p.tasks, p.most) for p in present]
        shares = fair_share.equal_shares(wishes, cores)
        self.busy_seconds += seconds * bool(present)
        for program in present:
            got = rates.get(program.number, 0.0)
            self.worked += got * seconds
            self.job_seconds += seconds * (got > 0)
            self.received[program.user] = self.received.get(program.user, 0.0) + got * seconds
            self.due[program.user] = self.due.get(program.user, 0.0) + shares[str(program.number)] * seconds

    @property
    def fairness(self) -> float:
        """Jain's index of received over due, among users: 1 when all users got the same part of their equal share."""
        ratios = [self.received[user] / due for user, due in self.due.items() if due > 0]
        return sum(ratios) ** 2 / (len(ratios) * sum(r * r for r in ratios)) if any(ratios) else 1.0


class Day:
    """Simulates programs on a node by events, if `troubled` with orders, lost cores, sudden deaths and a restart."""

    def __init__(
        self, node: Node, drawn: Sequence[Program], rng: random.Random, *, troubled: bool = True, check: bool = True
    ) -> None:
        self.node = node
        self.rng = rng
        self.check = check
        self.now = 0.0
        self.book = Accounts()
        self.outcomes = {program.number: Outcome(program) for program in drawn}
        self.left: dict[int, float] = {}
        """Core-seconds still to do, by program, from its arrival to its end."""
        self._slots: dict[int, set[int]] = {}
        self._program_of: dict[int, int] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count(1)
        for program in drawn:
            for rank in range(program.tasks - program.missing):
                self._at(program.at + 0.1 * rank, self._arrival(program, rank))
        if troubled and drawn:
            self._trouble(drawn[-1].at)

    def run(self) -> list[Outcome]:
        """Simulate the day until every program has ended; return the outcomes in the order of arrival."""
        while self._queue or self.left:
            rates = {number: self._rate(number) for number in self.left}
            self._pass_time(min(self._next_end(rates), self._next_event()), rates)
            self._act()
            self.book.events += 1
            if self.check and (wrong := violations(self.node)):
                msg = f"at {self.now:.1f} s: {wrong[0]}"
                raise AssertionError(msg)
        return list(self.outcomes.values())

    # --- time -----------------------------------------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._ids), what))

    def _next_event(self) -> float:
        deadline = self.node.next_deadline()
        return min(self._queue[0][0] if self._queue else math.inf, math.inf if deadline is None else deadline)

    def _next_end(self, rates: dict[int, float]) -> float:
        return min((self.now + self.left[n] / rate for n, rate in rates.items() if rate), default=math.inf)

    def _pass_time(self, until: float, rates: dict[int, float]) -> None:
        if until == math.inf:
            msg = f"at {self.now:.1f} s nothing will ever happen again, and programs wait: {self._waiting()}"
            raise AssertionError(msg)
        seconds, self.now = max(0.0, until - self.now), max(self.now, until)
        self.book.enter(seconds, rates, [self.outcomes[n].program for n in self.left], len(self.node.cores))
        for number, rate in rates.items():
            self.left[number] -= rate * seconds

    def _waiting(self) -> list[str]:
        return [f"{job.name}: {job.waits_for}" for job in self.node.jobs.values() if job.waits_for]

    def _rate(self, number: int) -> float:
        """Return the cores that a program works on now."""
        program = self.outcomes[number].program
        cores = sum(self.node.cores.count(self.node.tasks[slot].applied) for slot in self._slots.get(number, ()))
        return min(cores, program.most)

    def _act(self) -> None:
        for number in [n for n, left in self.left.items() if left <= 1e-6 * self.outcomes[n].program.work]:
            self._end(number)
        while self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()
        self._do(self.node.tick(self.now))

    # --- programs -------------------------------------------------------------------------------------------------

    def _arrival(self, program: Program, rank: int) -> Callable[[], None]:
        def arrive() -> None:
            if rank and program.number not in self.left:
                return
            width = self.node.cores.widest
            arrival = Arrival(
                next(self._ids),
                1,
                program.user,
                f"p{program.number}",
                program.job_class,
                session=program.number + 1 if program.tasks > 1 else 0,
                min_cpus=program.least * width,
                max_cpus=program.cores * width,
                rank=rank,
                size=program.tasks,
                layout=program.layout,
                memory=program.memory,
            )
            try:
                task, actions = self.node.arrive(arrival, self.now)
            except Refused as refusal:
                self.outcomes[program.number].refused = str(refusal)
                return
            self.left.setdefault(program.number, program.work)
            self._slots.setdefault(program.number, set()).add(task.slot)
            self._program_of[task.slot] = program.number
            self._do(actions)

        return arrive

    def _end(self, number: int) -> None:
        self.outcomes[number].ended = self.now
        del self.left[number]
        for slot in sorted(self._slots.pop(number)):
            del self._program_of[slot]
            self._do(self.node.ended(slot, self.now))

    def _do(self, actions: list[Action]) -> None:
        """Carry out actions as an agent does, with programs that acknowledge after their latency."""
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            if isinstance(action, Start):
                self._start(action.task)
            elif isinstance(action, Publish) and action.task.responder:
                self._acknowledge_later(action.task, action.epoch)
            elif isinstance(action, Bind) and action.epoch == action.task.epoch:
                queue += self.node.grants.bound(action.task.slot, action.epoch, self.now)
            elif isinstance(action, Settled):
                self.book.resizes += 1

    def _start(self, task: Task) -> None:
        outcome = self.outcomes[self._program_of[task.slot]]
        outcome.started = min(outcome.started, self.now)
        if outcome.program.latency is not None:
            self.node.grants.set_responder(task.slot, task.arrival.pid, 1)

    def _acknowledge_later(self, task: Task, epoch: int) -> None:
        number = self._program_of[task.slot]

        def acknowledge() -> None:
            if self._program_of.get(task.slot) == number:
                self._do(self.node.grants.applied(task.slot, epoch, self.now))

        self._at(self.now + (self.outcomes[number].program.latency or 0.0), acknowledge)

    # --- trouble --------------------------------------------------------------------------------------------------

    def _trouble(self, until: float) -> None:
        """Plan orders twice an hour, a death an hour, lost cores every few hours and one restart."""
        for what, mean in ((self._order, 1800.0), (self._kill, 3600.0), (self._lose_cores, 4 * 3600.0)):
            for at in self._poisson(mean, until):
                self._at(at, what)
        self._at(self.rng.uniform(0.3, 0.7) * until, self._restart)

    def _poisson(self, mean: float, until: float) -> Iterator[float]:
        at = self.rng.expovariate(1 / mean)
        while at < until:
            yield at
            at += self.rng.expovariate(1 / mean)

    def _order(self) -> None:
        running = [job.name for job in self.node.jobs.values() if job.cores]
        if running:
            name, cpus = self.rng.choice(running), self.rng.randint(1, len(self.node.cores) * self.node.cores.widest)
            try:
                self._do(self.node.resize(name, cpus, self.now, self.now + self.rng.uniform(60, 1800)))
            except Refused:
                return

    def _kill(self) -> None:
        if self.left:
            number = self.rng.choice(sorted(self.left))
            program = self.outcomes[number].program
            # It has done less than it was to do: what it did is its work.
            self.outcomes[number].program = replace(program, work=max(1e-3, program.work - self.left[number]))
            self._end(number)

    def _lose_cores(self) -> None:
        cores = self.node.cores
        lost = sum(self.rng.sample(list(cores), max(1, len(cores) // 8)))
        self._do(self.node.set_usable_cpus(cores.all & ~lost, self.now))
        self._at(
            self.now + self.rng.uniform(300, 1800), lambda: self._do(self.node.set_usable_cpus(cores.all, self.now))
        )

    def _restart(self) -> None:
        held = {slot: task.held for slot, task in self.node.tasks.items()}
        self.node, actions = restarted(self.node, self.now)
        if any(held[slot] & task.held != held[slot] for slot, task in self.node.tasks.items()):
            raise AssertionError("a restart changed what a task holds.")
        for task in self.node.tasks.values():
            if task.responder and len(task.grants) > 1:
                self._acknowledge_later(task, task.epoch)
        self._do(actions)


def restarted(node: Node, now: float, reserved: Sequence[Reservation] = ()) -> tuple[Node, list[Action]]:
    """Return the node as a new agent adopts it from an old one, and the actions to carry out first.

    `reserved` are the reservations of schedulers according to the spool.
    """
    old = node.copy()
    new = Node(old.cores, old.plan.place, rules=old.plan.rules, memory=old.plan.memory, grace=old.grants.grace)
    new.plan.many = old.plan.many
    new.set_usable_cpus(old.plan.usable, now, old.plan.gone)
    if old.grants.frozen:
        new.freeze(now)
    described = []
    owned: dict[str, int] = {}
    for task in sorted(old.tasks.values(), key=lambda t: old.jobs[t.job].arrived):
        job = old.jobs[task.job]
        owned[job.name] = owned.get(job.name, 0) | old.plan.owned(task)
    for job in old.jobs.values():
        present = job.present
        job.ranks, job.targets, job.cores, job.complete_by, job.rest_until = {}, {}, 0, None, None
        job.reserved = job.first = 0
        described += [(task, job) for task in present]
    return new, new.adopt(described, owned, old.plan.arrivals, now, reserved)


def first_come(drawn: Sequence[Program], cores: int, memory: int = 0) -> tuple[list[Outcome], Accounts]:
    """Return the same day with rigid programs that get their requested cores and start in the order of arrival."""
    outcomes, book = [Outcome(program) for program in drawn], Accounts()
    waiting, running = list(outcomes), list[Outcome]()
    now = 0.0
    while waiting or running:
        free = cores - sum(o.program.most for o in running)
        room = (memory or math.inf) - sum(o.program.memory * o.program.tasks for o in running)
        first = waiting[0].program if waiting else None
        if first and first.at <= now and first.most <= free and first.memory * first.tasks <= room:
            outcome = waiting.pop(0)
            outcome.started, outcome.ended = now, now + first.alone
            running.append(outcome)
            continue
        later = [o.ended for o in running] + [o.program.at for o in waiting if o.program.at > now][:1]
        until = min(later)
        present = [o.program for o in running] + [o.program for o in waiting if o.program.at <= now]
        book.enter(until - now, {o.program.number: float(o.program.most) for o in running}, present, cores)
        now = until
        running = [o for o in running if o.ended > now]
    return outcomes, book
