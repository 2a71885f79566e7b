# SPDX-License-Identifier: Apache-2.0
"""The driver of policies that allot processors of one pool: the cores of all nodes together.

It has the interface of `Controller`. A policy decides how many processors each job has; this module decides on which
nodes they are. An adaptive job, one with fewer least than most processors, has ranks on every node that is up when it
starts, as many as it could have cores there, so that any free core is one that it can use; those beyond its processors
rest. A rigid job has a rank for each of its cores, and keeps these. Adaptive jobs move away from a closed node, as far
as the minima of all fit on the others, and may join nodes later, by new ranks. Times are whole seconds that never
decrease, jobs are identified by their numbers, nodes by 0-based indices. No I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.engine import compiler
from drom.scheduler.engine.policy_errors import policy_errors_as_sentences
from drom.scheduler.engine.state import (
    BAD_SHARE,
    NO_FAULT,
    NO_ROOM,
    NOT_RUNNING,
    TOO_MANY_ROWS,
    UNLIMITED,
    WRONG_CLASS,
    WRONG_MACHINE,
)
from drom.scheduler.interface import (
    ALLOT,
    DEMAND_CHANGED,
    JOB_ENDED,
    MALLEABLE,
    NEVER,
    NOBODY,
    NODE_DOWN,
    NODE_UP,
    RESIZE_FAILED,
    RUNNING,
    SUBMITTED,
    TICK,
    WAITING,
    Actions,
    Event,
    Jobs,
    Nodes,
    State,
)
from drom.scheduler.live.cluster import policy_call
from drom.scheduler.live.cluster.controller import OVERRUN, Fault, JobRequest
from drom.scheduler.simulator.adaptive import speeds
from drom.scheduler.simulator.simulation import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.interface import Ints

NO_CONTRACT = (NEVER, NEVER, 0, 0)
"""The row of a job without one, where others have contracts."""


@dataclass(slots=True, eq=False)
class _Job:
    """A job that waits or runs. `cores` are those planned for it by node, on each where it has ranks."""

    number: int
    request: JobRequest
    submitted: int
    cores: dict[int, int] = field(default_factory=dict)
    start: int = NEVER
    limit: int = 0
    end: int = NEVER
    """When it is expected to end."""
    lent: int = 0
    lost: int = 0
    since: int = 0
    """The second up to which `lost` is counted."""

    @property
    def held(self) -> int:
        """The processors that it has."""
        return sum(self.cores.values())


class PoolController:
    """The cluster as a policy of processors sees it. Raises SchedulerError for a policy that cannot be compiled."""

    cores = 0
    """Nodes have no common number of cores."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.faults: list[Fault] = []
        """Decisions of the policy's last call that could not be carried out."""
        self.late: list[int] = []
        """Jobs that reach their limits within this second, until the caller empties the list."""
        self._program = compiler.compile_program(policy)
        self._options = compiler.values(policy.options)
        self._waiting: dict[int, _Job] = {}
        """The waiting jobs in order."""
        self._running: dict[int, _Job] = {}
        """The running jobs in the order in which they started."""
        self._capacity: dict[int, int] = {}
        self._free: dict[int, int] = {}
        """The cores of each node, and those that no job has."""
        self._up: set[int] = set()
        self._closed: set[int] = set()
        """The nodes that jobs are to leave."""
        self._changed: set[int] = set()
        """The nodes on which planned cores have changed since `changes` was called."""
        self._speed = _linear(1)
        self._kinds, self._subjects, self._wake = 0, list[int](), NEVER
        """The events since the policy was last called, with their jobs, and when it is to be called without one."""
        self._ask(0, TICK, [])  # compiles what is not in the cache, before a request waits for it

    # --- looking --------------------------------------------------------------------------------------------------

    @property
    def wake(self) -> int:
        """The second by which the policy must be called or a job reaches its limit; NEVER if neither is set."""
        return min(self._wake, *(job.end for job in self._running.values())) if self._running else self._wake

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of waiting and of running jobs."""
        return len(self._waiting), len(self._running)

    @property
    def waiting(self) -> list[int]:
        """The waiting jobs in the order of the queue."""
        return list(self._waiting)

    @property
    def running(self) -> list[int]:
        """The jobs that have nodes."""
        return list(self._running)

    @property
    def has_news(self) -> bool:
        """Whether an event has happened since the policy was last called."""
        return bool(self._kinds)

    @property
    def spare(self) -> tuple[int, int]:
        """The cores that the minima of running jobs leave, and all cores on which jobs may start."""
        kept = sum(self._least(job) for job in self._running.values())
        total = self._total()
        return total - kept, total

    def is_first(self, number: int) -> bool:
        """Return whether a waiting job is the head of the queue."""
        return next(iter(self._waiting)) == number

    def place(self, number: int) -> int:
        """Return the place of a waiting job in the queue, from 1."""
        return list(self._waiting).index(number) + 1

    def fault_of(self, number: int) -> str:
        """Return what was wrong with the policy's last decision for a job; empty if nothing was."""
        return next((fault.text for fault in self.faults if fault.job == number), "")

    def waits(self, number: int) -> bool:
        """Return whether a job is in the queue."""
        return number in self._waiting

    def runs(self, number: int) -> bool:
        """Return whether a job has nodes."""
        return number in self._running

    def planned(self, _number: int) -> int:
        """Return when the policy expects a waiting job to start: it plans no starts."""
        return NEVER

    def soonest(self) -> Callable[[int], int]:
        """Return a function from a waiting job's number to the second of its start: it is unknown."""
        return self.planned

    def size(self, number: int) -> int:
        """Return the most cores that a waiting job can use."""
        return self._waiting[number].request.nodes

    def limit(self, number: int) -> int:
        """Return how many seconds a running job may take."""
        return self._running[number].limit

    def nodes_of(self, number: int) -> list[int]:
        """Return the nodes on which a running job has ranks; the first one has a core when the job starts."""
        return list(self._running[number].cores)

    def cores_on(self, number: int, node: int) -> int:
        """Return the cores planned for a running job on one of its nodes."""
        return self._running[number].cores[node]

    def ranks_of(self, number: int) -> dict[int, int]:
        """Return the ranks of an adaptive job by node; empty for a rigid one, which has a rank for each core."""
        job = self._running[number]
        return {node: self._ranks(job, node) for node in job.cores} if _is_adaptive(job.request) else {}

    def can_leave(self, number: int, node: int) -> bool:
        """Return whether an adaptive job has no cores on a node, and ranks enough for its least on those not closed."""
        job = self._running[number]
        return not job.cores.get(node) and self._ranks_left(job) >= self._least(job)

    def residents(self, node: int) -> dict[int, int]:
        """Return the jobs with cores on a node, and these cores."""
        return {number: cores for number, job in self._running.items() if (cores := job.cores.get(node, 0))}

    # --- what happens ---------------------------------------------------------------------------------------------

    def submit(self, number: int, demand: JobRequest, now: int) -> None:
        """Put a job into the queue, behind all jobs of its priority with smaller numbers."""
        last = next(reversed(self._waiting.values()), None)
        self._waiting[number] = job = _Job(number, demand, now)
        if last and _rank(last) > _rank(job):
            self._waiting = {job.number: job for job in sorted(self._waiting.values(), key=_rank)}
        self._note(SUBMITTED, number)

    def withdraw(self, number: int) -> None:
        """Remove a waiting job from the queue for good."""
        del self._waiting[number]
        self._note(JOB_ENDED)

    def ended(self, number: int, _now: int) -> None:
        """Record that a job has left all its nodes."""
        self._leave(number)
        self._note(JOB_ENDED)

    def refused(self, number: int, now: int) -> None:
        """Put a job that could not be started, as others have not shrunk, back into the queue."""
        job = self._leave(number)
        self.submit(number, job.request, now)
        self._waiting[number].submitted = job.submitted
        self._note(RESIZE_FAILED, number)

    def measured(self, number: int, rates: Mapping[int, float]) -> None:
        """Record how fast a job is: policies of processors do not use that."""

    def set_range(self, number: int, least: int, most: int) -> None:
        """Set the fewest and most processors that a running job can use from now on."""
        job = self._running[number]
        job.request = job.request._replace(least=least, most=most)
        self._note(DEMAND_CHANGED, number)

    def launched(self, number: int, now: int) -> None:
        """Record that a job was asked to start, or has really started: its time counts from now on."""
        job = self._running[number]
        if job.start < now:
            job.start = job.since = now
            job.end = now + job.limit

    def extend(self, number: int, seconds: int, now: int) -> bool:
        """Move the limit of a running job by `seconds`; return whether it was done: a limit may not be over already."""
        job = self._running[number]
        if job.start + job.limit + seconds <= now:
            return False
        job.limit += seconds
        job.end = job.start + job.limit
        self.late = [one for one in self.late if one != number]
        return True

    def describe(self, node: int, cores: int, _memory: int, _resources: Mapping[str, int]) -> None:
        """Record how many cores a node has."""
        self._free[node] = self._free.get(node, 0) + cores - self._capacity.get(node, 0)
        self._capacity[node] = cores
        self._note(NODE_UP)

    def node_up(self, node: int) -> None:
        """Record that jobs may start on a node from now on."""
        if node not in self._up:
            self._up.add(node)
            self._note(NODE_UP)

    def node_down(self, node: int, kind: int = NODE_DOWN) -> None:
        """Record that no job may start on a node from now on; `kind` is the reason. The jobs on the node stay."""
        if node in self._up:
            self._up.remove(node)
            self._note(kind)

    def close(self, node: int, *, is_closed: bool) -> None:
        """Set whether jobs are to leave a node."""
        (self._closed.add if is_closed else self._closed.discard)(node)

    def joins(self, number: int, node: int) -> None:
        """Record that a running adaptive job can have ranks on one more node."""
        self._running[number].cores.setdefault(node, 0)
        self._note(NODE_UP)

    def left(self, number: int, node: int) -> None:
        """Record that a running job can have no cores of a node any more; those planned for it there are free."""
        job = self._running[number]
        if job.cores.get(node):
            self._note(RESIZE_FAILED, number)
        self._set(job, node, 0)
        del job.cores[node]

    def allow(self, _group: str, _nodes: Iterable[int]) -> list[str]:
        """Set the nodes on which the jobs of a group may run: all nodes are equal here."""
        return []

    def allow_on(self, node: int, groups: Iterable[str]) -> None:
        """Set the groups of jobs that may run on a node: any may."""

    def restore(self, number: int, demand: JobRequest, cores: dict[int, int], start: int, limit: int) -> None:
        """Restore a job that has run since `start`, after a restart of the scheduler; `cores` are its cores by node."""
        job = _Job(number, demand, start, {}, start, limit, start + limit, since=start)
        self._running[number] = job
        for node, held in cores.items():
            self._set(job, node, held)

    def arrange(self, numbers: Sequence[int]) -> None:
        """Reorder the queue; `numbers` are all its jobs in the new order."""
        if list(numbers) != list(self._waiting):
            self._waiting = {number: self._waiting[number] for number in numbers}
            self._note(TICK)

    # --- the policy -----------------------------------------------------------------------------------------------

    def turn(self, now: int) -> list[int]:
        """Call the policy if there were events or its wake-up is due; return the jobs that it has started."""
        for job in self._running.values():
            if job.end <= now:
                self.late.append(job.number)
                job.end = now + OVERRUN
        if self._wake <= now:
            self._note(TICK)
        if not self._kinds:
            return []
        self._move_away()
        before, kinds, subjects = set(self._running), self._kinds, self._subjects
        self._kinds, self._subjects = 0, []
        self._ask(now, kinds, subjects)
        return [number for number in self._running if number not in before]

    def changes(self) -> dict[int, dict[int, int]]:
        """Return each node on which planned cores of a job have changed since the last call, with all its jobs."""
        changed, self._changed = self._changed, set()
        running = self._running.items()
        return {node: {n: job.cores[node] for n, job in running if node in job.cores} for node in sorted(changed)}

    def _move_away(self) -> None:
        """Take from adaptive jobs, in the order of their start, their cores of closed nodes, if all keep their minima.

        The policy then gives each its least on the other nodes, and divides what is left.
        """
        adaptive = [job for job in self._running.values() if _is_adaptive(job.request)]
        spare = sum(self._free[node] for node in self._up)
        spare += sum(max(0, self._kept(job) - self._least(job)) for job in adaptive)
        for job in adaptive:
            kept, least = self._kept(job), self._least(job)
            if kept == job.held or least - kept > spare or self._ranks_left(job) < least:
                continue
            spare -= max(0, least - kept)
            for node in self._closed & job.cores.keys():
                self._set(job, node, 0)

    def _kept(self, job: _Job) -> int:
        """Return the cores that a job has on nodes that are not closed."""
        return sum(cores for node, cores in job.cores.items() if node not in self._closed)

    def _ranks_left(self, job: _Job) -> int:
        """Return how many cores a job can have on the nodes on which jobs may start."""
        return sum(self._ranks(job, node) for node in job.cores if node in self._up)

    def _ask(self, now: int, kinds: int, subjects: list[int]) -> None:
        """Call the policy, and carry out each of its actions that can be carried out."""
        jobs = [*self._running.values(), *self._waiting.values()]
        found = [at for at, job in enumerate(jobs) if [job.number] == subjects]
        state, event = self._state(jobs, now), Event(kinds, found[0] if found else NOBODY)
        actions = Actions(np.zeros((4 * len(jobs) + 16, 5), np.int64), np.zeros(16, np.int64), np.zeros(2, np.int64))
        with policy_errors_as_sentences(self.policy, lambda: now):
            self._wake = self._answer(self._program.decide, state, event, self._options, actions)
        if self._wake <= now:
            self._wake = NEVER
        used, wrong = int(actions.used[0]), list[tuple[int, int]]()
        if used > len(actions.rows):
            used, wrong = 0, [(NOBODY, TOO_MANY_ROWS)]
        for kind, at, _, _, processors in actions.rows[:used].tolist():
            job = jobs[at] if 0 <= at < len(jobs) else None
            fault = WRONG_MACHINE if kind != ALLOT else self._allot(job, processors, now)
            wrong += [(job.number if job else NOBODY, fault)] if fault else []
        named = [(None if number == NOBODY else number, FAULTS[fault]) for number, fault in wrong]
        self.faults = [Fault(number, f"policy {self.policy.name} {text}") for number, text in named]

    def _answer(self, *arguments: object) -> int:
        if not self._program.compiled:
            return policy_call.ask(*arguments)  # type: ignore[arg-type]
        return int(compiler.compile_part(policy_call.ask, arguments, (policy_call,))(*arguments))

    def _state(self, jobs: Sequence[_Job], now: int) -> State:
        """Return what the policy sees, as the simulator shows it: jobs of a pool have no limit there."""
        most = max([self._total(), *(job.request.nodes for job in jobs)])
        if len(self._speed) <= most:
            self._speed = _linear(2 * most)
        running, count = len(self._running), len(jobs)
        free = sum(self._free[node] for node in self._up)

        def column(value: Callable[[_Job], int]) -> Ints:
            return np.array([value(job) for job in jobs], np.int64)

        start, size, nothing = (
            column(lambda job: job.start),
            column(lambda job: job.request.nodes),
            np.zeros(0, np.int64),
        )
        zeros = np.zeros(count, np.int64)
        columns = Jobs(
            submit=column(lambda job: job.submitted),
            requested=column(lambda job: job.request.requested),
            nodes=size,
            cores=size,
            cls=column(lambda job: job.request.cls),
            partition=np.full(count, NOBODY, np.int64),
            priority=column(lambda job: job.request.priority),
            state=np.array([RUNNING] * running + [WAITING] * (count - running), np.int64),
            start=start,
            limit=np.full(count, UNLIMITED, np.int64),
            ends=np.where(start == NEVER, NEVER, start + UNLIMITED),
            planned=np.full(count, NEVER, np.int64),
            lent=column(lambda job: job.lent),
            lost=column(lambda job: job.lost),
            since=column(lambda job: job.since),
            leaves=zeros,
            shared=zeros,
            least=column(lambda job: job.request.least),
            most=column(lambda job: job.request.most),
            held=column(lambda job: job.held),
            least_cores=np.ones(count, np.int64),
        )
        up = np.ones(self._total(), np.int64)
        table = np.zeros((0, 2), np.int64)
        nodes = Nodes(np.zeros(count + 1, np.int64), nothing, table, table, up, np.zeros((0, len(up)), np.int64))
        at = np.arange(count)
        has_contracts = any(job.request.contract for job in jobs)
        terms = [job.request.contract or NO_CONTRACT for job in jobs] if has_contracts else []
        contracts, rates = np.array(terms, np.int64).reshape(-1, len(NO_CONTRACT)), np.zeros((0, 0), np.int64)
        return State(now, free, 1, at[running:], at[:running], columns, nodes, self._speed, contracts, rates)

    def _allot(self, job: _Job | None, processors: int, now: int) -> int:
        """Give a job this many processors, as far as they are where it has ranks; return the fault, or NO_FAULT."""
        if job is None:
            return NOT_RUNNING
        starts, before = job.number in self._waiting, job.held
        if processors < 1:
            return BAD_SHARE
        if processors - before > sum(self._free[node] for node in self._up):
            return NO_ROOM
        rigid = not _is_adaptive(job.request)
        if (rigid and processors != job.request.nodes) or (job.request.cls != MALLEABLE and not starts):
            return WRONG_CLASS
        if starts:
            self._start(job, processors, now)
        elif processors != before:
            full = int(self._speed[job.request.nodes])
            job.lost += (full - int(self._speed[before])) * (now - job.since)
            job.since = now
            job.lent += processors < before
            self._shrink(job, before - processors)
            self._grow(job, processors - before)
        return NO_FAULT

    def _start(self, job: _Job, processors: int, now: int) -> None:
        """Put a waiting job on nodes: it has ranks on all that are up, or on those of its cores if it is rigid."""
        del self._waiting[job.number]
        self._running[job.number] = job
        job.start = job.since = now
        job.limit = job.request.requested
        job.end = now + job.limit
        job.cores = dict.fromkeys(sorted(self._up), 0)
        self._grow(job, processors)
        kept = (node for node, held in job.cores.items() if held or _is_adaptive(job.request))
        job.cores = {node: job.cores[node] for node in sorted(kept, key=lambda node: not job.cores[node])}

    def _grow(self, job: _Job, more: int) -> None:
        """Give a job `more` cores: where it has some, then on the node that they fill best, or else the emptiest."""

        def rank(room: tuple[int, int]) -> tuple[bool, bool, int]:
            node, amount = room
            return not job.cores[node], amount < more, self._free[node] if amount >= more else -amount

        while more > 0:
            rooms = [(node, room) for node in sorted(job.cores) if (room := self._room(job, node)) > 0]
            if not rooms:
                return
            node, room = min(rooms, key=rank)
            taken = min(room, more)
            self._set(job, node, job.cores[node] + taken)
            more -= taken

    def _shrink(self, job: _Job, fewer: int) -> None:
        """Take `fewer` cores from a job: where jobs may start, then where it has fewest."""
        for node in sorted(job.cores, key=lambda node: (node not in self._up, job.cores[node], -node)):
            taken = max(0, min(fewer, job.cores[node]))
            self._set(job, node, job.cores[node] - taken)
            fewer -= taken

    def _room(self, job: _Job, node: int) -> int:
        """Return how many more cores of a node a job can have."""
        if node not in self._up:
            return 0
        return min(self._free[node], self._ranks(job, node) - job.cores[node])

    def _ranks(self, job: _Job, node: int) -> int:
        """Return how many cores of a node a job can use."""
        return min(job.request.nodes, self._capacity[node])

    # --- bookkeeping ----------------------------------------------------------------------------------------------

    def _set(self, job: _Job, node: int, cores: int) -> None:
        """Plan so many cores of a node for a job."""
        before = job.cores.get(node, 0)
        if node not in job.cores or cores != before:
            job.cores[node] = cores
            self._free[node] = self._free.get(node, 0) + before - cores
            self._changed.add(node)

    def _leave(self, number: int) -> _Job:
        """Remove a running job from its nodes, and return it."""
        job = self._running.pop(number)
        for node, cores in job.cores.items():
            self._free[node] += cores
        return job

    def _least(self, job: _Job) -> int:
        """Return the fewest processors that a running job keeps."""
        return min(job.held, job.request.least) if job.request.cls == MALLEABLE else job.held

    def _total(self) -> int:
        """Return the processors of the pool: the cores of nodes on which jobs may start, and those of running jobs."""
        free = sum(self._free[node] for node in self._up)
        return max(1, free + sum(job.held for job in self._running.values()))

    def _note(self, kind: int, subject: int = NOBODY) -> None:
        self._kinds |= kind
        self._subjects.append(subject)


def _rank(job: _Job) -> tuple[int, int]:
    return -job.request.priority, job.number


def _linear(processors: int) -> Ints:
    """Return the speeds of jobs that are as fast as they have processors."""
    return speeds(processors, math.inf, 1.0)


def _is_adaptive(request: JobRequest) -> bool:
    return request.cls == MALLEABLE
