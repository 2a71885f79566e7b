# SPDX-License-Identifier: Apache-2.0
"""The driver of a policy in real time: events go in; the jobs of each node and their cores come out. No I/O.

It carries out the policy's answers with the simulator's own functions, on a world that does not know when jobs end: the
caller reports their ends. Times are whole seconds that never decrease. Jobs are identified by their numbers, nodes by
0-based indices.
"""

from __future__ import annotations

from bisect import bisect
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.engine import compiler
from drom.scheduler.engine.end_order import insert_predicted, move, pop, remove_predicted
from drom.scheduler.engine.node_shares import (
    add_resident,
    begin,
    end_job,
    full_rate,
    note_change,
    note_neighbours,
    note_presence,
    pass_cores,
    set_limit,
    update_ends,
)
from drom.scheduler.engine.policy_errors import policy_errors_as_sentences
from drom.scheduler.engine.state import BLOCK_BITS, FREE, NO_FAULT, NOW, QUEUED, RUNNERS, STARTS, WAKE, make_actions
from drom.scheduler.interface import (
    AGENT_GONE,
    DEMAND_CHANGED,
    ENDED,
    JOB_ENDED,
    NEVER,
    NOBODY,
    NODE_DOWN,
    NODE_UP,
    RESIZE_FAILED,
    RIGID,
    RUNNING,
    SUBMITTED,
    TICK,
    WAITING,
)
from drom.scheduler.live.cluster import live_state, policy_call
from drom.scheduler.live.cluster.partitions import EXPECTED_WAIT
from drom.scheduler.simulator.measurement import row_of
from drom.scheduler.simulator.simulation import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.engine.state import World
    from drom.scheduler.interface import Ints

ROOM = 256
"""Initial capacity for jobs, places and nodes."""
GROUPS = 8
"""Initial capacity for groups."""
MOST_FAULTS = 16
"""The most faults of one answer of the policy that are reported."""
OVERRUN = 30
"""Seconds within which a job that is past its limit is expected to end."""
ANYWHERE = ""
"""The name of the group of all nodes."""


class JobRequest(NamedTuple):
    """What a policy knows of a job. `requested` is in seconds; `group` names the set of nodes on which it may run.

    Under a policy over resources `nodes` are units, each of which asks for `amounts` of resources by name (memory in
    MiB), and of which a node may have `most`. Policy `cp` divides the wait by `expected_wait` seconds. A filler may be
    saved at any time, and goes on best on its `home` node; its last saves took `save_times` ms. Under a policy of
    processors `nodes` are the most of these that a job can ever use; now it can use from `least` to `most`. Under one
    of whole nodes it can run on `least` nodes (0: on no fewer than it asks for), and shares them if it keeps
    `least_cores` of each. `contract` is a row of `State.contracts`; empty: the job has none.
    """

    nodes: int
    requested: int
    cls: int = RIGID
    priority: int = 0
    group: str = ANYWHERE
    most: int = 1
    amounts: tuple[tuple[str, int], ...] = ()
    expected_wait: int = EXPECTED_WAIT
    fills: bool = False
    home: int = NOBODY
    least: int = 0
    contract: tuple[int, ...] = ()
    least_cores: int = 1
    save_times: tuple[int, ...] = ()


class Fault(NamedTuple):
    """A decision of the policy that could not be carried out: the job that it concerns, if any, and a clause."""

    job: int | None
    text: str


class _Before(NamedTuple):
    """The jobs of each node and their cores, the limits of jobs and how often they lent cores, before a call."""

    resident: Ints
    share: Ints
    limit: Ints
    lent: Ints


class Controller:
    """The cluster as a policy sees it. Every node has `cores` cores.

    Raises SchedulerError for a policy that cannot be compiled.
    """

    def __init__(self, policy: Policy, cores: int) -> None:
        self.policy = policy
        self.cores = cores
        self.program = compiler.compile_program(policy)
        self.faults: list[Fault] = []
        """Decisions of the policy's last call that could not be carried out."""
        self.late: list[int] = []
        """Jobs that reach their limits within this second, until the caller empties the list."""
        self._options = compiler.values(policy.options)
        self._world = live_state.empty_state(ROOM, ROOM, ROOM, cores, policy.layers, measured=policy.measures)
        self._actions = make_actions(self._world)
        self._found = np.zeros((MOST_FAULTS, 2), np.int64)
        self._numbers: list[int] = []
        self._index: dict[int, int] = {}
        self._limits: dict[int, int] = {}
        """The limits of jobs that have reached them and are expected to end soon."""
        self._groups: dict[str, int] = {}
        """The row of each group in the policy's table of allowed nodes."""
        self._rows: list[int] = []
        """Rows that no group uses."""
        self._kinds, self._subject, self._count = 0, NOBODY, 0
        self._told = self._shares()
        self._pending: set[int] = set()
        self._call_policy(TICK, NOBODY)  # compiles what is not in the cache, before a request waits for it

    # --- looking --------------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """The state, for reading. It identifies jobs by index: see `number`."""
        return self._world

    @property
    def wake(self) -> int:
        """The second by which the policy must be called or a job reaches its limit; NEVER if neither is set."""
        world = self._world
        first = world.running[0] if world.scalars[RUNNERS] else NOBODY
        return int(min(world.scalars[WAKE], NEVER if first == NOBODY else world.jobs.ends[first]))

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of waiting and of running jobs."""
        return int(self._world.scalars[QUEUED]), int(self._world.scalars[RUNNERS])

    @property
    def head(self) -> int:
        """The first waiting job, if any waits."""
        return self._numbers[int(self._world.queue[0])]

    def is_first(self, number: int) -> bool:
        """Return whether a waiting job is the head of the queue."""
        return bool(self._world.queue[0] == self._index[number])

    def place(self, number: int) -> int:
        """Return the place of a waiting job in the queue, from 1."""
        queue = self._world.queue[: self._world.scalars[QUEUED]]
        return int(np.flatnonzero(queue == self._index[number])[0]) + 1

    @property
    def waiting(self) -> list[int]:
        """The waiting jobs in the order of the queue."""
        return [self._numbers[job] for job in self._world.queue[: self._world.scalars[QUEUED]]]

    @property
    def running(self) -> list[int]:
        """The jobs that have nodes."""
        return [self._numbers[job] for job in self._world.running[: self._world.scalars[RUNNERS]]]

    @property
    def has_news(self) -> bool:
        """Whether an event has happened since the policy was last called."""
        return bool(self._kinds)

    def fault_of(self, number: int) -> str:
        """Return what was wrong with the policy's last decision for a job; empty if nothing was."""
        return next((fault.text for fault in self.faults if fault.job == number), "")

    def waits(self, number: int) -> bool:
        """Return whether a job is in the queue."""
        return number in self._index and self._world.jobs.state[self._index[number]] == WAITING

    def runs(self, number: int) -> bool:
        """Return whether a job has nodes."""
        return number in self._index and self._world.jobs.state[self._index[number]] == RUNNING

    def planned(self, number: int) -> int:
        """Return when the policy expects a waiting job to start; NEVER if it has planned no start."""
        return int(self._world.jobs.planned[self._index[number]])

    def soonest(self) -> Callable[[int], int]:
        """Return a function from a waiting job's number to the second at which enough nodes for it are free.

        That holds as long as nothing else happens. The function returns NEVER for jobs that may start on too few nodes.
        It reads the nodes once for all jobs of a group.
        """
        left: dict[int, Ints] = {}

        def soonest_of(number: int) -> int:
            job = self._index[number]
            needed, group = int(self._world.jobs.nodes[job]), int(self._world.jobs.partition[job])
            if group not in left:
                left[group] = self._ends(group)
            return int(left[group][needed - 1]) if needed <= len(left[group]) else NEVER

        return soonest_of

    def _ends(self, group: int) -> Ints:
        """Return the seconds at which the last jobs of the nodes of a group end, in order."""
        world, house = self._world, self._world.nodes
        usable = house.up if group == NOBODY else house.up * house.allowed[group]
        residents = house.resident[np.flatnonzero(usable)]
        ends: Ints = np.where(residents == NOBODY, world.scalars[NOW], world.jobs.ends[residents]).max(axis=1)
        return np.sort(ends)

    def size(self, number: int) -> int:
        """Return the cores that a waiting job asks for."""
        return int(self._world.jobs.cores[self._index[number]])

    def limit(self, number: int) -> int:
        """Return how many seconds a running job may take."""
        return self._limits.get(number, int(self._world.jobs.limit[self._index[number]]))

    def nodes_of(self, number: int) -> list[int]:
        """Return the nodes of a running job, in the order in which it got them."""
        job, house = self._index[number], self._world.nodes
        return [int(node) for node in house.place[house.first[job] : house.first[job + 1]]]

    def cores_on(self, number: int, node: int) -> int:
        """Return the cores planned for a running job on one of its nodes."""
        house, job = self._world.nodes, self._index[number]
        return int(house.share[node][house.resident[node] == job].sum())

    def residents(self, node: int) -> dict[int, int]:
        """Return the jobs on a node with the cores planned for them, the owner first."""
        house = self._world.nodes
        rows = zip(house.resident[node], house.share[node], strict=True)
        return {self._numbers[job]: int(cores) for job, cores in rows if job != NOBODY}

    # --- what happens ---------------------------------------------------------------------------------------------

    def submit(self, number: int, demand: JobRequest, now: int) -> None:
        """Put a job into the queue, behind all jobs of its priority with smaller numbers."""
        job = self._enter(number, demand, now)
        self._join(job)
        self._note(SUBMITTED, job)

    def withdraw(self, number: int) -> None:
        """Remove a waiting job from the queue for good."""
        job, s = self._index.pop(number), self._world.scalars
        queue = self._world.queue
        rest = queue[: s[QUEUED]][queue[: s[QUEUED]] != job]
        queue[: len(rest)] = rest
        s[QUEUED] = len(rest)
        self._world.jobs.state[job] = ENDED
        self._note(JOB_ENDED, job)

    def ended(self, number: int, now: int) -> None:
        """Record that a job has left all its nodes; the owners of these get the cores that it had, if they can."""
        job = self._index.pop(number)
        self._limits.pop(number, None)
        self._leave(job, now)
        self._note(JOB_ENDED, job)

    def refused(self, number: int, now: int) -> None:
        """Record that the mates of a job have not shrunk for it: it waits again, now as a rigid job, never a guest."""
        job, jobs = self._index[number], self._world.jobs
        self._limits.pop(number, None)
        self._leave(job, now)
        jobs.limit[job] = jobs.requested[job]
        for column in (jobs.start, jobs.ends, jobs.planned, self._world.end):
            column[job] = NEVER
        jobs.lost[job] = jobs.lent[job] = 0
        jobs.cls[job] = RIGID
        self._join(job)
        self._note(RESIZE_FAILED, job)

    def keep(self, number: int, nodes: int, cores: int) -> None:
        """Set how many nodes a running job keeps at least, as it may leave the others, and how many cores of each."""
        job, jobs = self._index[number], self._world.jobs
        before = jobs.least[job], jobs.least_cores[job]
        jobs.least[job], jobs.least_cores[job] = nodes, cores
        if nodes < before[0] or cores < before[1]:
            self._note(DEMAND_CHANGED, job)

    def measured(self, number: int, rates: Mapping[int, float]) -> None:
        """Record the work that a job was measured to do per second, by its number of cores on each of its nodes."""
        if self.policy.measures and number in self._index:
            self._world.rates[self._index[number]] = row_of(rates, self.cores)

    def launched(self, number: int, now: int) -> None:
        """Record that a job was asked to start, or has really started: its time counts from now on."""
        job, world = self._index[number], self._world
        if world.jobs.start[job] >= now:
            return
        remove_predicted(world, job)
        world.jobs.limit[job] = self._limits.pop(number, world.jobs.limit[job])
        world.jobs.start[job], world.jobs.ends[job] = now, now + world.jobs.limit[job]
        world.jobs.since[job] = now
        insert_predicted(world, job)
        note_neighbours(world, job)
        update_ends(world, now)

    def describe(self, node: int, cores: int, memory: int, resources: Mapping[str, int]) -> None:
        """Record what a node has: nodes are equal here, and groups have those that suffice for jobs."""

    def extend(self, number: int, seconds: int, now: int) -> bool:
        """Move the limit of a running job by `seconds`; return whether that was done: a limit may not be over already.

        What it requested moves with the limit, so that what it got for lending cores stays.
        """
        job, world = self._index[number], self._world
        now = max(now, int(world.scalars[NOW]))
        if set_limit(world, job, self.limit(number) + seconds, now) != NO_FAULT:
            return False
        world.jobs.requested[job] += seconds
        self._limits.pop(number, None)
        self.late = [one for one in self.late if one != number]
        update_ends(world, now)
        self._note(TICK, NOBODY)
        return True

    def node_up(self, node: int) -> None:
        """Record that jobs may start on a node from now on."""
        self._reach(node)
        if not self._world.nodes.up[node]:
            self._world.nodes.up[node] = 1
            self._count_free(node, 1)
            self._note(NODE_UP, node)

    def node_down(self, node: int, kind: int = NODE_DOWN) -> None:
        """Record that no job may start on a node from now on; `kind` is the reason. The jobs on the node stay."""
        self._reach(node)
        if self._world.nodes.up[node]:
            self._count_free(node, -1)
            self._world.nodes.up[node] = 0
            self._note(kind, node)

    def allow(self, group: str, nodes: Iterable[int]) -> list[str]:
        """Set the nodes on which the jobs of a group may run; return the groups dropped because they have no jobs."""
        allowed_nodes = list(nodes)
        self._reach(max(allowed_nodes, default=0))
        forgotten = [] if group in self._groups or self._rows else self._reuse_rows()
        if group not in self._groups:
            self._groups[group] = self._rows.pop()
        row = self._world.nodes.allowed[self._groups[group]]
        row[:] = 0
        row[allowed_nodes] = 1
        return forgotten

    def allow_on(self, node: int, groups: Iterable[str]) -> None:
        """Set the groups of jobs that may run on a node; jobs of other groups may not."""
        self._reach(node)
        allowed = self._world.nodes.allowed
        allowed[:, node] = 0
        allowed[[self._groups[group] for group in groups if group in self._groups], node] = 1

    def restore(self, number: int, demand: JobRequest, cores: dict[int, int], start: int, limit: int) -> None:
        """Restore a job that has run since `start`, after a restart of the scheduler; `cores` are its cores by node.

        The owner of a node comes before its guests.
        """
        self._reach(max(cores))
        job, world = self._enter(number, demand, start), self._world
        world.jobs.limit[job] = limit
        world.nodes.place[world.nodes.first[job] : world.nodes.first[job + 1]] = list(cores)
        for node, share in cores.items():
            self._uncounted(node, 1)
            add_resident(world, job, node, share)
            note_presence(world, job, self.cores, share)
        world.charged[job] = world.away[job]
        world.scalars[NOW] = max(world.scalars[NOW], start)
        begin(world, job, min(cores.values()), start)
        # The work that it lost is not stored; its limit was extended by at most as much.
        world.jobs.lost[job] = max(0, limit - demand.requested) * full_rate(world, job)
        note_neighbours(world, job)
        update_ends(world, int(world.scalars[NOW]))

    # --- the policy -----------------------------------------------------------------------------------------------

    def turn(self, now: int) -> list[int]:
        """Call the policy if there were events or its wake-up is due; return the jobs that it has started."""
        world = self._world
        s = world.scalars
        now = max(now, int(s[NOW]))
        s[NOW] = now
        self._extend_overrun(now)
        if s[WAKE] <= now:
            self._note(TICK, NOBODY)
        before = int(s[STARTS])
        if self._kinds:
            self.faults = []
        while self._kinds:
            subject = self._subject if self._count == 1 else NOBODY
            kinds, self._kinds, self._subject, self._count = self._kinds, 0, NOBODY, 0
            self._call_policy(kinds, subject)
            if s[WAKE] <= now:
                self._note(TICK, NOBODY)
        running = world.running[: s[RUNNERS]]
        return [self._numbers[job] for job in running[world.order[running] >= before]]

    def changes(self) -> dict[int, dict[int, int]]:
        """Return each node on which the planned cores of a job have changed since the last call, with all its jobs."""
        changed = self._pending | self._changed()
        self._pending, self._told = set(), self._shares()
        return {node: self.residents(node) for node in sorted(changed)}

    def _call_policy(self, kinds: int, subject: int) -> None:
        world, found = self._world, self._found
        before = _Before(*self._shares(), world.jobs.limit.copy(), world.jobs.lent.copy())
        with policy_errors_as_sentences(self.policy, lambda: int(world.scalars[NOW])):
            wrong = self._answer(self.program.decide, world, self._options, self._actions, kinds, subject, found)
        if wrong:
            self.faults += [self._fault(int(job), int(fault)) for job, fault in found[:wrong]]
            self._give_back(before)

    def _fault(self, job: int, fault: int) -> Fault:
        number = self._numbers[job] if 0 <= job < len(self._numbers) else None
        return Fault(number, f"policy {self.policy.name} {FAULTS[fault]}")

    def _give_back(self, before: _Before) -> None:
        """Return to jobs the cores that the policy took from them for a job that it then could not place.

        On a node with the same jobs as `before` each has the cores that it had. On others, where a job of the same
        answer has been placed, the first that may grow gets those that are left. A job that had cores taken from it on
        nodes of the first kind alone has its earlier limit again.
        """
        world, house = self._world, self._world.nodes
        same = (house.resident == before.resident).all(axis=1)
        restored: set[int] = set()
        kept: set[int] = set()
        for node in np.flatnonzero(before.share.sum(axis=1) > house.share.sum(axis=1)):
            jobs = house.resident[node][house.resident[node] != NOBODY]
            if same[node]:
                restored.update(jobs[(house.share[node] < before.share[node])[: len(jobs)]].tolist())
                for job, share, earlier in zip(jobs, house.share[node], before.share[node], strict=False):
                    note_presence(world, job, share, earlier)
                house.share[node] = before.share[node]
            else:
                kept.update(jobs.tolist())
                pass_cores(world, int(node), int(before.share[node].sum() - house.share[node].sum()))
            for job in jobs:
                note_change(world, job)
        now = int(world.scalars[NOW])
        for job in restored - kept:
            world.jobs.lent[job] = before.lent[job]
            if world.jobs.limit[job] != before.limit[job]:
                set_limit(world, job, int(before.limit[job]), now)
        update_ends(world, now)

    def _answer(self, *arguments: object) -> int:
        if not self.program.compiled:
            return policy_call.call_policy(*arguments)  # type: ignore[arg-type]
        return int(compiler.compile_part(policy_call.call_policy, arguments, (policy_call,))(*arguments))

    # --- keeping the arrays ---------------------------------------------------------------------------------------

    def _enter(self, number: int, demand: JobRequest, now: int) -> int:
        """Store what is known of a job and return its index."""
        self._make_room(demand.nodes)
        world, job = self._world, len(self._numbers)
        jobs, first = world.jobs, world.nodes.first
        self._numbers.append(number)
        self._index[number] = job
        jobs.submit[job], jobs.requested[job], jobs.limit[job] = now, demand.requested, demand.requested
        jobs.nodes[job], jobs.cores[job], jobs.cls[job] = demand.nodes, demand.nodes * self.cores, demand.cls
        jobs.least[job], jobs.most[job] = demand.least or demand.nodes, demand.nodes
        jobs.least_cores[job] = demand.least_cores
        jobs.priority[job] = demand.priority
        jobs.partition[job] = self._groups.get(demand.group, NOBODY)
        world.run[job] = demand.requested
        first[job + 1 :] = first[job] + demand.nodes
        return job

    def _join(self, job: int) -> None:
        """Put a job into the queue, which is ordered by descending priority, then by number."""
        queue, s = self._world.queue, self._world.scalars
        last, rank = int(s[QUEUED]), self._rank(job)
        is_last = not last or self._rank(int(queue[last - 1])) <= rank
        place = last if is_last else bisect(queue[:last], rank, key=self._rank)
        queue[place + 1 : s[QUEUED] + 1] = queue[place : s[QUEUED]].copy()
        queue[place] = job
        s[QUEUED] += 1
        self._world.jobs.state[job] = WAITING

    def arrange(self, numbers: Sequence[int]) -> None:
        """Reorder the queue; `numbers` are all its jobs in the new order."""
        queue = self._world.queue[: self._world.scalars[QUEUED]]
        new = [self._index[number] for number in numbers]
        if (queue != new).any():
            queue[:] = new
            self._note(TICK, NOBODY)

    def _rank(self, job: int) -> tuple[int, int]:
        return -int(self._world.jobs.priority[job]), self._numbers[job]

    def _leave(self, job: int, now: int) -> None:
        """Remove a job from its nodes."""
        world, house = self._world, self._world.nodes
        nodes = house.place[house.first[job] : house.first[job + 1]].copy()
        move(world, job, -1)  # to the top, for pop
        pop(world)
        end_job(world, job, now)
        update_ends(world, now)
        for node in nodes:
            self._uncounted(int(node), -1)

    def _uncounted(self, node: int, change: int) -> None:
        """Correct the count of free nodes for a node that is down, which the simulator's functions count as up."""
        if not self._world.nodes.up[node]:
            self._count_free(node, change)

    def _count_free(self, node: int, change: int) -> None:
        if live_state.is_empty(self._world, node):
            self._world.scalars[FREE] += change
            self._world.free_in_block[node >> BLOCK_BITS] += change

    def _note(self, kind: int, subject: int) -> None:
        self._kinds |= kind
        self._subject = subject
        self._count += 1

    def _extend_overrun(self, now: int) -> None:
        """Extend the expected ends of jobs that have reached their limits, and list these jobs as late."""
        world = self._world
        while world.scalars[RUNNERS] and world.jobs.ends[world.running[0]] <= now:
            job = int(world.running[0])
            self.late.append(self._numbers[job])
            self._limits.setdefault(self._numbers[job], int(world.jobs.limit[job]))
            set_limit(world, job, now - int(world.jobs.start[job]) + OVERRUN, now)
            update_ends(world, now)

    def _shares(self) -> tuple[Ints, Ints]:
        return self._world.nodes.resident.copy(), self._world.nodes.share.copy()

    def _changed(self) -> set[int]:
        house, (resident, share) = self._world.nodes, self._told
        differs = (house.resident != resident).any(axis=1) | (house.share != share).any(axis=1)
        return {int(node) for node in np.flatnonzero(differs)}

    def _reach(self, node: int) -> None:
        """Enlarge the arrays until they have room for a node."""
        while node >= len(self._world.nodes.up):
            self._move(2 * len(self._world.nodes.up))

    def _reuse_rows(self) -> list[str]:
        """Drop and return the groups of which no job waits or runs, to reuse their rows; add rows if few remain."""
        house = self._world.nodes
        active = live_state.active_jobs(self._world, len(self._numbers))
        used, size = set(self._world.jobs.partition[active].tolist()), len(house.allowed)
        forgotten = [group for group, row in self._groups.items() if row not in used]
        self._rows += [self._groups.pop(group) for group in forgotten]
        if 2 * len(self._groups) >= size:
            more = np.zeros((max(GROUPS, size), len(house.up)), np.int64)
            self._rows += range(size, size + len(more))
            self._world = self._world._replace(nodes=house._replace(allowed=np.vstack([house.allowed, more])))
        return forgotten

    def _make_room(self, nodes: int) -> None:
        world, known = self._world, len(self._numbers)
        if known == len(world.queue) or world.nodes.first[known] + nodes > len(world.nodes.place):
            self._move(len(world.nodes.up), nodes)

    def _move(self, nodes: int, more: int = 0) -> None:
        """Move to arrays for `nodes` nodes, with an eighth more room than jobs need now and `more` places."""
        world = self._world
        self._pending |= self._changed()
        active = live_state.active_jobs(world, len(self._numbers))
        places = int(world.jobs.nodes[active].sum()) + more
        self._world = live_state.resized(world, active, _roomy(len(active)), _roomy(places), nodes)
        if self._count == 1 and self._kinds & ~(NODE_UP | NODE_DOWN | AGENT_GONE):
            self._count += 1  # the subject of the event has another index now
        self._numbers = [self._numbers[job] for job in active]
        self._index.update(zip(self._numbers, range(len(self._numbers)), strict=True))  # its jobs are the active ones
        self._actions = make_actions(self._world)
        self._told = self._shares()


def _roomy(count: int) -> int:
    """Return the capacity for `count` entries: slightly more, as one request pays for the whole move."""
    return count + max(ROOM, count // 8)
