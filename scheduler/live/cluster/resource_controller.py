# SPDX-License-Identifier: Apache-2.0
"""The driver of policies that give jobs cores, memory and counted resources of any node, instead of whole nodes.

It has the interface of `Controller`. Jobs are never resized; several share a node, each with its own amounts. Times are
whole seconds that never decrease, jobs are identified by their numbers, nodes by 0-based indices. No I/O.

Policy `cp` is asked elsewhere: after events that let a job start, `take_question` returns what to ask, and nothing
starts before `answered` brings the plan, or `PATIENCE` has passed: then a rule decides. About events meanwhile the next
question asks.

Fillers come last in the queue, and the policy does not know of them: they run in the gaps that its jobs leave
(`drom.scheduler.allocation.filling`). `fillers_to_save` returns those that have to go, each its lead in ms before.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.allocation.backfill import Held, Machine, Requests, decide, fitting, suited_nodes
from drom.scheduler.allocation.filling import Reserved, allowance, leaving, slot_end
from drom.scheduler.allocation.gaps import STAY, Gaps
from drom.scheduler.allocation.snapshot import Snapshot
from drom.scheduler.interface import NEVER, NOBODY, NODE_DOWN
from drom.scheduler.live.cluster.controller import OVERRUN, Fault, JobRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from drom.scheduler.allocation.snapshot import PlannedStarts
    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.interface import Ints

CORES, MEMORY = "cores", "memory"
"""The resources that all nodes have; others are counted ones, as nodes name them."""
UNKNOWN = 1 << 40
"""The memory of a node that does not say how much it has, in MiB."""
PATIENCE = 5
"""Seconds after which a rule decides in place of a planner that has not answered."""
RULE = {"depth": 10.0, "order": 1.0}
"""The parameters of that rule: those of policy `resources`."""
MOST_PLANNED = 1000
"""The most waiting jobs that are planned at once, the first ones of the queue."""
MOST_CELLS = 1 << 25
"""The most numbers in a planner's profile; a rule decides where it would be larger."""
MOST_KINDS = 256
"""Groups of jobs, and kinds of requests, that are kept although no job of them waits."""
ROOM = 256
"""Initial rows of a table."""
NUMBER, FILLS, LEAD, PRIORITY, SUBMITTED, EXPECTED, UNITS, MOST, LENGTH, KIND, AMOUNTS = range(11)
"""Columns of waiting jobs; the amounts of a unit follow. The lead of a filler is in ms."""
END, NODE, PART = 3, 4, 5
"""Columns of the parts of running jobs, after `NUMBER`, `FILLS` and `LEAD`; the amounts of a part follow."""
PUNCTUAL = 2
"""Seconds after the beginning of a slot within which its first turn has to come for regular jobs to start in it."""
MOST_RUNS = 16
"""Most groups of fillers, one after the other in the queue, whose leads are told apart when they start."""


def _enlarged(table: Ints, rows: int, columns: int) -> Ints:
    """Return a table with so many more rows and columns of zeros, in a twentieth of the time of numpy.pad."""
    had, width = table.shape
    larger = np.zeros((had + rows, width + columns), np.int64)
    larger[:had, :width] = table
    return larger


class _Table:
    """Rows of whole numbers, the first of which is a job's number."""

    def __init__(self, width: int) -> None:
        self._all = np.zeros((ROOM, width), np.int64)
        self._size = 0

    @property
    def rows(self) -> Ints:
        """The rows in use, of shape ``(rows, width)``."""
        return self._all[: self._size]

    def insert(self, at: int, row: Sequence[int]) -> None:
        """Insert a row before the row `at`."""
        if self._size == len(self._all):
            self._all = np.concatenate((self._all, np.zeros_like(self._all)))
        self._all[at + 1 : self._size + 1] = self._all[at : self._size].copy()
        self._all[at] = row
        self._size += 1

    def append(self, row: Sequence[int]) -> None:
        """Add a row at the end."""
        self.insert(self._size, row)

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove the rows of jobs."""
        kept = self.rows[~np.isin(self.rows[:, NUMBER], numbers)]
        self._all[: len(kept)] = kept
        self._size = len(kept)

    def widen(self, more: int) -> None:
        """Add columns of zeros."""
        self._all = _enlarged(self._all, 0, more)

    def arrange(self, order: Ints) -> None:
        """Put the rows into another order."""
        self._all[: self._size] = self.rows[order]


@dataclass(slots=True, eq=False)
class _Running:
    """A job on nodes: its cores by node, when it started, its limit, and when it is expected to end."""

    request: JobRequest
    cores: dict[int, int]
    start: int
    limit: int
    end: int


class ResourceController:
    """The cluster as a policy over resources sees it."""

    cores = 0
    """Nodes have no common number of cores."""

    def __init__(self, policy: Policy, gaps: Gaps = Gaps()) -> None:  # noqa: B008 - immutable
        self.policy = policy
        self.faults: list[Fault] = []
        """Always empty: each decision can be carried out."""
        self.late: list[int] = []
        """Jobs that reach their limits within this second, until the caller empties the list."""
        self.save_at = NEVER
        """When a filler may have to go, in ms; NEVER if that depends on events alone."""
        self._gaps, self._leaving = gaps, set[int]()
        self._slot, self._fill_at = -1, NEVER
        """The last slot in which the policy was called, and when the next one begins."""
        self._reserved = Reserved(*(np.zeros(shape, np.int64) for shape in (0, 0, (0, 2))))
        rule = RULE | policy.options
        self._depth, self._by_walltime = int(rule["depth"]), bool(rule["order"])
        self._plans = policy.built_in == "cp"
        self._question: Snapshot | None = None
        """What the planner was asked, or is to be asked, last; None once it was answered."""
        self._handed = self._lost = False
        """Whether that was taken to the planner, and whether there will be no answer."""
        self._answer: PlannedStarts | None = None
        self._names = [CORES, MEMORY]
        """The resources, in the order of amounts."""
        self._capacity = self._free = np.zeros((0, len(self._names)), np.int64)
        self._up = np.zeros(0, np.int64)
        self._queue = _Table(AMOUNTS + len(self._names))
        """The waiting jobs in order."""
        self._held = _Table(PART + len(self._names))
        """The parts of running jobs."""
        self._requests: dict[int, JobRequest] = {}
        self._planned: dict[int, int] = {}
        """The seconds of reservations, by waiting job."""
        self._running: dict[int, _Running] = {}
        self._ends: list[tuple[int, int]] = []
        """The expected ends of running jobs, in order, with their numbers."""
        self._groups: dict[str, set[int]] = {}
        """The nodes of each group but `ANYWHERE`."""
        self._kinds: dict[tuple[str, tuple[bool, ...]], int] = {}
        """A number for each group and set of requested resources."""
        self._most_kinds = MOST_KINDS
        self._suited: Ints | None = None
        """The nodes that suit each kind; None after a change."""
        self._news = self._fill_news = False
        self._decide(0)  # compiles what is not in the cache, before a request waits for it

    # --- looking --------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> Ints:
        """The amounts of resources of each node, of shape ``(nodes, resources)``; memory in MiB."""
        return self._capacity

    @property
    def free(self) -> Ints:
        """The amounts that no regular job holds, likewise."""
        return self._free

    @property
    def wake(self) -> int:
        """The next second at which `turn` has something to do although nothing happens; NEVER without one."""
        slot = self._gaps.slot
        if self._answer or self._lost or (self._news and not self._question and not slot):
            return 0
        opens = (self._slot + 1) * slot if slot else NEVER
        first = min(self._ends[0][0] if self._ends else NEVER, self._fill_at, opens)
        return min(first, self._question.now + PATIENCE) if self._question else first

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of waiting and of running jobs."""
        return len(self._requests), len(self._running)

    @property
    def waiting(self) -> list[int]:
        """The waiting jobs in the order of the queue."""
        numbers: list[int] = self._queue.rows[:, NUMBER].tolist()
        return numbers

    @property
    def running(self) -> list[int]:
        """The jobs that have nodes, by expected end."""
        return [number for _, number in self._ends]

    @property
    def has_news(self) -> bool:
        """Whether an event has happened since the policy was last called."""
        return self._news

    def is_first(self, number: int) -> bool:
        """Return whether a waiting job is the head of the queue."""
        return bool(self._queue.rows[0, NUMBER] == number)

    def place(self, number: int) -> int:
        """Return the place of a waiting job in the queue, from 1."""
        return int(np.flatnonzero(self._queue.rows[:, NUMBER] == number)[0]) + 1

    def fault_of(self, _number: int) -> str:
        """Return what was wrong with the policy's last decision for a job: nothing."""
        return ""

    def waits(self, number: int) -> bool:
        """Return whether a job is in the queue."""
        return number in self._requests

    def runs(self, number: int) -> bool:
        """Return whether a job has nodes."""
        return number in self._running

    def planned(self, number: int) -> int:
        """Return the second of a waiting job's reservation; NEVER if it has none."""
        return self._planned.get(number, NEVER)

    def soonest(self) -> Callable[[int], int]:
        """Return a function from a waiting job's number to the second of its reservation; NEVER without one."""
        return self.planned

    def size(self, number: int) -> int:
        """Return the cores that a waiting job asks for."""
        return _cores(self._requests[number])

    def room(self, number: int) -> tuple[int, int]:
        """Return for how many units of a waiting job there is room now, and would be if no job were running."""
        demand = self._requests[number]
        asked = np.array(self._amounts(demand), np.int64)
        which = asked > 0
        nodes = self._row_of(demand.group, tuple(which.tolist()))
        nodes = nodes[nodes >= 0]
        free = self._free - self._filled() if demand.fills else self._free
        now, ever = (
            (np.maximum(of[nodes][:, which], 0) // asked[which]).min(axis=1, initial=demand.most).sum()
            for of in (free, self._capacity)
        )
        return int(now), int(ever)

    def limit(self, number: int) -> int:
        """Return how many seconds a running job may take."""
        return self._running[number].limit

    def nodes_of(self, number: int) -> list[int]:
        """Return the nodes of a running job, in the order in which it got them."""
        return list(self._running[number].cores)

    def cores_on(self, number: int, node: int) -> int:
        """Return the cores of a running job on one of its nodes."""
        return self._running[number].cores[node]

    def residents(self, node: int) -> dict[int, int]:
        """Return the jobs on a node with their cores."""
        held = self._held.rows
        return {number: self._running[number].cores[node] for number in held[held[:, NODE] == node, NUMBER].tolist()}

    # --- what happens ---------------------------------------------------------------------------------------------

    def submit(self, number: int, demand: JobRequest, now: int) -> None:
        """Put a job into the queue, behind all jobs of its priority with smaller numbers; fillers behind all others."""
        self._requests[number] = demand
        self._name(dict(demand.amounts))
        amounts, queue = self._amounts(demand), self._queue.rows
        kind = self._kind_of(demand.group, amounts)
        size = demand.nodes, demand.most, demand.requested
        about = number, demand.fills, self._lead(demand), demand.priority
        row = (*about, now, demand.expected_wait, *size, kind, *amounts)
        later = (queue[:, PRIORITY] > demand.priority) | (
            (queue[:, PRIORITY] == demand.priority) & (queue[:, NUMBER] < number)
        )
        behind = (queue[:, FILLS] < demand.fills) | ((queue[:, FILLS] == demand.fills) & later)
        self._queue.insert(int(behind.sum()), row)
        self._note()

    def withdraw(self, number: int) -> None:
        """Remove a waiting job from the queue for good."""
        self._forget([number])
        self._note()

    def ended(self, number: int, _now: int) -> None:
        """Record that a job has left all its nodes."""
        held = self._held.rows
        for row in held[(held[:, NUMBER] == number) & (held[:, FILLS] == 0)]:
            self._free[row[NODE]] += row[PART:]
        self._held.remove([number])
        self._ends.remove((self._running.pop(number).end, number))
        self._leaving.discard(number)
        self._note()

    def refused(self, number: int, now: int) -> None:
        """Put a job that could not be started back into the queue."""
        demand = self._running[number].request
        self.ended(number, now)
        self.submit(number, demand, now)

    def measured(self, number: int, rates: Mapping[int, float]) -> None:
        """Record how fast a job is: policies over resources do not use that."""

    def launched(self, number: int, now: int) -> None:
        """Record that a job was asked to start, or has really started: its time counts from now on."""
        job = self._running[number]
        if job.start < now:
            job.start = now
            self._expect(number, now + job.limit)

    def extend(self, number: int, seconds: int, now: int) -> bool:
        """Move the limit of a running job by `seconds`; return whether it was done: a limit may not be over already."""
        job = self._running[number]
        if job.start + job.limit + seconds <= now:
            return False
        job.limit += seconds
        self._expect(number, job.start + job.limit)
        self.late = [one for one in self.late if one != number]
        self._note()
        return True

    def describe(self, node: int, cores: int, memory: int, resources: Mapping[str, int]) -> None:
        """Record what a node has; `memory` is in bytes, 0 if it is unknown."""
        self._reach(node)
        self._name(resources)
        has = {**resources, CORES: cores, MEMORY: (memory >> 20) or UNKNOWN}
        amounts = np.array([has.get(name, 0) for name in self._names], np.int64)
        self._free[node] += amounts - self._capacity[node]
        self._capacity[node] = amounts
        self._nodes_changed()

    def node_up(self, node: int) -> None:
        """Record that jobs may start on a node from now on."""
        self._switch(node, 1)

    def node_down(self, node: int, _kind: int = NODE_DOWN) -> None:
        """Record that no job may start on a node from now on. The jobs on the node stay."""
        self._switch(node, 0)

    def allow(self, group: str, nodes: Iterable[int]) -> list[str]:
        """Set the nodes on which the jobs of a group may run; return the groups dropped because they have no jobs."""
        dropped = [] if group in self._groups or len(self._groups) < MOST_KINDS else self._drop_groups()
        self._groups[group] = set(nodes)
        self._reach(max(self._groups[group], default=0))
        self._nodes_changed()
        return dropped

    def allow_on(self, node: int, groups: Iterable[str]) -> None:
        """Set the groups of jobs that may run on a node; jobs of other groups may not."""
        may = set(groups)
        for group, nodes in self._groups.items():
            (nodes.add if group in may else nodes.discard)(node)
        self._nodes_changed()

    def restore(self, number: int, demand: JobRequest, cores: dict[int, int], start: int, limit: int) -> None:
        """Restore a job that has run since `start`, after a restart of the scheduler; `cores` are its cores by node."""
        self._reach(max(cores))
        self._name(dict(demand.amounts))
        each = max(1, dict(demand.amounts)[CORES])
        units = {node: max(1, amount // each) for node, amount in cores.items()}
        self._run(number, _Running(demand, dict(cores), start, limit, start + limit), units)

    def arrange(self, numbers: Sequence[int]) -> None:
        """Reorder the queue; `numbers` are all its jobs in the new order. Fillers stay behind the others."""
        place = {number: at for at, number in enumerate(self.waiting)}
        order = np.array([place[number] for number in numbers], np.int64)
        order = order[np.argsort(self._queue.rows[order, FILLS], kind="stable")]
        if (np.diff(order) < 0).any():
            self._queue.arrange(order)
            self._note()

    # --- the policy -----------------------------------------------------------------------------------------------

    def turn(self, now: int) -> list[int]:
        """Call the policy if there were events, and fill gaps; return the jobs that start."""
        while self._ends and self._ends[0][0] <= now:
            self.late.append(self._ends[0][1])
            self._expect(self._ends[0][1], now + OVERRUN)
        is_open = self._opens(now)
        if self._plans:
            found = self._planned_starts(now)
        elif self._news and is_open:
            self._news = False
            found = self._decide(now)
        else:
            found = {}
        self._start(found, now)
        filled = {}
        if found or self._fill_news or now >= self._fill_at:
            filled = self._fill(now)
            self._start(filled, now)
        return [*found, *filled]

    def _opens(self, now: int) -> bool:
        """Return whether regular jobs may start: at any time, or in the first turn of each slot."""
        if not self._gaps.slot:
            return True
        last, (self._slot, late) = self._slot, divmod(now, self._gaps.slot)
        return self._slot != last and late <= PUNCTUAL

    def _start(self, found: Mapping[int, Mapping[int, int]], now: int) -> None:
        """Put waiting jobs on nodes, with so many units on each."""
        for number, units in found.items():
            demand = self._requests[number]
            each = dict(demand.amounts)[CORES]
            cores = {node: count * each for node, count in units.items()}
            self._run(number, _Running(demand, cores, now, demand.requested, now + demand.requested), units)
        self._forget(list(found))

    # --- fillers ----------------------------------------------------------------------------------------------------

    def fillers_to_save(self, now_ms: int) -> list[int]:
        """Return the fillers that are to be saved, or put back, now; a call of `turn` for this second comes before."""
        if now_ms < self.save_at:
            return []
        rows = self._held.rows
        stays = rows[(rows[:, FILLS] == 1) & ~np.isin(rows[:, NUMBER], list(self._leaving))]
        begins = self._begins(now_ms // 1000)
        looks = begins[:, None] - np.unique(stays[:, LEAD])
        self.save_at = int(looks[looks > now_ms].min(initial=NEVER))
        reach = np.searchsorted(begins, now_ms + stays[:, LEAD], "right")
        goes = np.zeros(len(stays), bool)
        for near in np.unique(reach):
            left = np.flatnonzero(~goes)
            most = self._allowed(begins[:near], now_ms // 1000)
            found = left[leaving(most, stays[left, NODE], stays[left, PART:])]
            goes[found[reach[found] >= near]] = True  # others are saved later, nearer to what needs their place
        numbers: list[int] = stays[goes, NUMBER].tolist()
        self._leaving.update(numbers)
        return numbers

    def _fill(self, now: int) -> dict[int, dict[int, int]]:
        """Return the fillers that start now, each with its node."""
        self._fill_news, self._fill_at, self.save_at = False, slot_end(self._gaps.slot, now), 0
        waiting = self._queue.rows[len(self._regular) :]
        begins = self._begins(now)
        reach = np.searchsorted(begins, 1000 * (now + 1) + STAY * waiting[:, LEAD], "right")
        filled = self._filled()
        most = {int(near): self._allowed(begins[:near], now) for near in np.unique(reach)}
        if not any((allowed > filled)[:, 0].any() for allowed in most.values()):
            return {}
        allowed = [most[near] for near in reach.tolist()]
        turn = np.isin(waiting[:, NUMBER], list(self._in_order(waiting, allowed, reach, filled.copy(), now)))
        found = self._at_home(waiting[turn], [one for one, has in zip(allowed, turn, strict=True) if has], filled)
        rest = np.flatnonzero(~np.isin(waiting[:, NUMBER], list(found)))
        return found | self._in_order(waiting[rest], [allowed[row] for row in rest], reach[rest], filled, now)

    def _in_order(
        self, waiting: Ints, most: Sequence[Ints], reach: Ints, filled: Ints, now: int
    ) -> dict[int, dict[int, int]]:
        """Return the fillers for which there is room in the order of the queue, which is added to `filled`.

        `most` has what fillers may hold of each node for as long as each has to stay, which is equal for equal `reach`.
        """
        found: dict[int, dict[int, int]] = {}
        nothing = Held(*(np.zeros(shape, np.int64) for shape in (0, 0, (0, len(self._names)))))
        ends = (np.flatnonzero(np.diff(reach)) + 1)[: MOST_RUNS - 1]
        for run in np.split(np.arange(len(waiting)), ends) if len(waiting) else ():
            room = np.maximum(most[int(run[reach[run].argmax()])] - filled, 0)
            machine = Machine(self._capacity, room, self._suited_nodes())
            for row, node, _ in decide(now, machine, _requests_of(waiting[run]), nothing, 0).rows.tolist():
                found[int(waiting[run[row], NUMBER])] = {node: 1}
                filled[node] += waiting[run[row], AMOUNTS:]
        return found

    def _at_home(self, waiting: Ints, most: Sequence[Ints], filled: Ints) -> dict[int, dict[int, int]]:
        """Return those of the next fillers for which there is room where their images are, which is added to `filled`.

        `most` has what fillers may hold of each node for as long as each of those that wait has to stay.
        """
        found: dict[int, dict[int, int]] = {}
        suited = self._suited_nodes()
        for row, allowed in zip(waiting, most, strict=True):
            number, home = int(row[NUMBER]), self._requests[int(row[NUMBER])].home
            if home == NOBODY or not (suited[row[KIND]] == home).any():
                continue
            asked = row[AMOUNTS:]
            if (np.maximum(allowed[home] - filled[home], 0) >= asked).all():
                filled[home] += asked
                found[number] = {home: 1}
        return found

    def _begins(self, now: int) -> Ints:
        """Return when regular jobs may need the places of fillers, in ms: reservations, and the end of the slot."""
        begins = np.unique(np.append(self._reserved.begin, slot_end(self._gaps.slot, now)))
        return 1000 * begins[begins < NEVER]

    def _allowed(self, begins: Ints, now: int) -> Ints:
        """Return the most that fillers may hold of each node until after the last of these times in ms."""
        last = int(begins.max(initial=-1)) // 1000
        if last >= slot_end(self._gaps.slot, now):
            return np.zeros_like(self._free)
        return allowance(self._free, self._held_by_regular(now), self._reserved, last + 1)

    def _filled(self) -> Ints:
        """Return what fillers hold of each node."""
        found, held = np.zeros_like(self._free), self._held.rows
        fillers = held[held[:, FILLS] == 1]
        np.add.at(found, fillers[:, NODE], fillers[:, PART:])
        return found

    # --- a planner that is asked elsewhere ------------------------------------------------------------------------

    def take_question(self) -> Snapshot | None:
        """Return what the planner is to be asked now; None if nothing, or if it was asked already."""
        if self._handed or not self._question:
            return None
        self._handed = True
        return self._question

    def answered(self, asked: Snapshot, answer: PlannedStarts | None) -> bool:
        """Take the plan for a snapshot; None: there is none, and a rule decides. Return False for a late answer."""
        if asked is not self._question:
            return False
        self._answer, self._lost = answer, answer is None
        return True

    def _planned_starts(self, now: int) -> dict[int, dict[int, int]]:
        """Return the jobs that start by the plan, or by the rule where there is none in time; ask for the next plan."""
        found: dict[int, dict[int, int]] = {}
        if self._question and (self._lost or now >= self._question.now + PATIENCE):
            self._news = False
            found = self._decide(now)
        elif self._question and self._answer:
            found = self._possible(self._answer, self._question.now)
        elif self._question or not self._news:
            return {}
        else:
            self._news = False
            self._question, self._handed = self._snapshot(now), False
            if self._question is None and self._regular.size:
                found = self._decide(now)
            return found
        self._question, self._answer, self._lost = None, None, False
        return found

    def _possible(self, plan: PlannedStarts, asked: int) -> dict[int, dict[int, int]]:
        """Return the starts of a plan of the second `asked` that are still possible; for the others a plan is asked."""
        self._planned = {number: start for number, start in plan.starts.items() if number in self._requests}
        free, found, parts = self._free.copy(), {}, []
        for number, units in plan.units.items():
            if number not in self._requests:
                continue
            each = np.array(self._amounts(self._requests[number]), np.int64)
            if plan.starts[number] > asked:
                parts += [[plan.starts[number], node, *(count * each)] for node, count in units.items()]
                continue
            left = {node: free[node] - count * each for node, count in units.items()}
            if all(self._up[node] and (left[node] >= 0).all() for node in left):
                found[number] = units
                for node, rest in left.items():
                    free[node] = rest
            else:
                self._note()
        later = np.array(parts, np.int64).reshape(len(parts), 2 + len(self._names))
        self._reserve(later[:, 0], later[:, 1], later[:, 2:])
        return found

    def _snapshot(self, now: int) -> Snapshot | None:
        """Return what to ask the planner; None if no job could start now, or if there is too much to plan."""
        machine, requests, held = self._problem(now)
        fits, ever = fitting(machine, requests)
        if not fits.any():
            return None
        chosen = np.flatnonzero(ever)[:MOST_PLANNED]
        steps = len(held.end) + len(chosen) + 1
        if steps * self._capacity.size > MOST_CELLS:
            return None
        asked = Requests(*(column[chosen] for column in requests))
        memory = self._names.index(MEMORY)
        enough = int((asked.units * asked.amount[:, memory]).sum() + held.amount[:, memory].sum())
        capacity = self._capacity.copy()
        capacity[capacity[:, memory] >= UNKNOWN, memory] = enough
        queue = self._queue.rows[chosen]
        numbers, submitted, expected = queue[:, NUMBER].tolist(), queue[:, SUBMITTED].copy(), queue[:, EXPECTED].copy()
        return Snapshot(now, capacity, machine.suited.copy(), numbers, submitted, expected, asked, held)

    def _problem(self, now: int) -> tuple[Machine, Requests, Held]:
        """Return the nodes, the regular jobs in the order of the queue, and what those that run hold."""
        machine = Machine(self._capacity, self._free, self._suited_nodes())
        return machine, _requests_of(self._regular), self._held_by_regular(now)

    def _held_by_regular(self, now: int) -> Held:
        """Return what the regular jobs that run hold."""
        held = self._held.rows[self._held.rows[:, FILLS] == 0]
        ends = np.maximum(held[:, END], now + 1)
        return Held(ends, np.ascontiguousarray(held[:, NODE]), np.ascontiguousarray(held[:, PART:]))

    def changes(self) -> dict[int, dict[int, int]]:
        """Return the nodes on which planned cores of jobs have changed: jobs are never resized here."""
        return {}

    def _decide(self, now: int) -> dict[int, dict[int, int]]:
        """Return the waiting jobs that start now, with their units by node, and remember the reservations of others."""
        machine, requests, held = self._problem(now)
        numbers = self._regular[:, NUMBER]
        if self._by_walltime:
            order = np.lexsort((requests.length, -self._regular[:, PRIORITY]))
            numbers, requests = numbers[order], Requests(*(column[order] for column in requests))
        answer = decide(now, machine, requests, held, self._depth)
        later = np.flatnonzero((answer.start > now) & (answer.start < NEVER))
        self._planned = dict(zip(numbers[later].tolist(), answer.start[later].tolist(), strict=True))
        job, node, units = answer.later.T
        self._reserve(answer.start[job], node.copy(), units[:, None] * requests.amount[job])
        found: dict[int, dict[int, int]] = {}
        for row, node, count in answer.rows.tolist():
            found.setdefault(int(numbers[row]), {})[node] = count
        return found

    def _reserve(self, begin: Ints, node: Ints, amount: Ints) -> None:
        """Record what reservations will take, for which fillers have to go."""
        self._reserved, self._fill_news = Reserved(begin, node, amount), True

    def _suited_nodes(self) -> Ints:
        """Return the nodes that suit each kind, of shape ``(kinds, nodes)``."""
        if self._suited is None:
            rows = [self._row_of(*kind) for kind in self._kinds]
            self._suited = np.array(rows, np.int64).reshape(len(rows), len(self._up))
        return self._suited

    def _row_of(self, group: str, used: tuple[bool, ...]) -> Ints:
        allowed = self._up.copy()
        if group in self._groups:
            allowed[:] = 0
            nodes = list(self._groups[group])
            allowed[nodes] = self._up[nodes]
        which = np.zeros(len(self._names), np.int64)
        which[: len(used)] = used
        return suited_nodes(np.where(self._capacity < UNKNOWN, self._capacity, 0), allowed, which)

    def _run(self, number: int, job: _Running, units: Mapping[int, int]) -> None:
        """Put a job on nodes."""
        self._running[number] = job
        insort(self._ends, (job.end, number))
        each = self._amounts(job.request)
        for node, count in units.items():
            part = [job.cores[node], *(count * amount for amount in each[1:])]
            self._held.append((number, job.request.fills, self._lead(job.request), job.end, node, *part))
            if not job.request.fills:
                self._free[node] -= part

    def _expect(self, number: int, end: int) -> None:
        """Expect a running job to end at another second."""
        job, held = self._running[number], self._held.rows
        self._ends.remove((job.end, number))
        job.end = end
        insort(self._ends, (end, number))
        held[held[:, NUMBER] == number, END] = end

    # --- keeping the arrays ---------------------------------------------------------------------------------------

    @property
    def _regular(self) -> Ints:
        """The rows of waiting jobs that are no fillers."""
        queue = self._queue.rows
        return queue[: len(queue) - int(queue[:, FILLS].sum())]

    def _forget(self, numbers: list[int]) -> None:
        """Remove waiting jobs."""
        self._queue.remove(numbers)
        for number in numbers:
            del self._requests[number]
            self._planned.pop(number, None)

    def _kind_of(self, group: str, amounts: list[int]) -> int:
        """Return the number of the kind of jobs of a group that ask for these resources."""
        key = group, tuple(amount > 0 for amount in amounts)
        if key not in self._kinds:
            if len(self._kinds) >= self._most_kinds:
                self._drop_kinds()
            self._kinds[key] = len(self._kinds)
            self._suited = None
        return self._kinds[key]

    def _drop_kinds(self) -> None:
        """Drop the kinds of which no job waits."""
        used, renumbered = np.unique(self._queue.rows[:, KIND], return_inverse=True)
        self._queue.rows[:, KIND] = renumbered.ravel()
        keys = list(self._kinds)
        self._kinds = {keys[old]: new for new, old in enumerate(used.tolist())}
        self._most_kinds = 2 * len(self._kinds) + MOST_KINDS

    def _drop_groups(self) -> list[str]:
        """Drop and return the groups of which no job waits or runs."""
        used = {demand.group for demand in self._requests.values()}
        used |= {job.request.group for job in self._running.values()}
        dropped = [group for group in self._groups if group not in used]
        for group in dropped:
            del self._groups[group]
        return dropped

    def _lead(self, demand: JobRequest) -> int:
        """Return the lead of a filler in ms; 0 for a regular job."""
        return self._gaps.lead_ms(demand.save_times) if demand.fills else 0

    def _amounts(self, demand: JobRequest) -> list[int]:
        """Return what a unit of a job asks for, in the order of the resources."""
        asked = dict(demand.amounts)
        return [asked.get(name, 0) for name in self._names]

    def _name(self, resources: Iterable[str]) -> None:
        """Add columns for resources that are new."""
        new = [name for name in resources if name not in self._names]
        if new:
            self._names += new
            self._capacity, self._free = (_enlarged(of, 0, len(new)) for of in (self._capacity, self._free))
            self._queue.widen(len(new))
            self._held.widen(len(new))
            begin, node, amount = self._reserved
            self._reserved = Reserved(begin, node, _enlarged(amount, 0, len(new)))
            self._nodes_changed()

    def _reach(self, node: int) -> None:
        """Enlarge the arrays until they have room for a node."""
        more = max(0, node + 1 - len(self._up))
        if more:
            self._capacity, self._free = (_enlarged(of, more, 0) for of in (self._capacity, self._free))
            self._up = np.append(self._up, np.zeros(more, np.int64))
            self._nodes_changed()

    def _switch(self, node: int, up: int) -> None:
        self._reach(node)
        if self._up[node] != up:
            self._up[node] = up
            self._nodes_changed()

    def _nodes_changed(self) -> None:
        self._suited = None
        self._note()

    def _note(self) -> None:
        """Record that an event has happened."""
        self._news = self._fill_news = True


def _requests_of(queue: Ints) -> Requests:
    """Return the requests in rows of waiting jobs."""
    units, most, length, kind = (np.ascontiguousarray(queue[:, at]) for at in (UNITS, MOST, LENGTH, KIND))
    return Requests(units, most, length, kind, np.ascontiguousarray(queue[:, AMOUNTS:]))


def _cores(demand: JobRequest) -> int:
    """Return the cores of all units of a job."""
    return demand.nodes * dict(demand.amounts)[CORES]
