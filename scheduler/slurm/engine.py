# SPDX-License-Identifier: Apache-2.0
"""Slurm's jobs and nodes as events of a policy, and the policy's decisions as orders to Slurm. Pure.

Jobs of one partition wait at a gate, the licence `GATE`, which no job can get while the daemon lives. A job that the
policy starts is released to its nodes. The agents of these divide the cores between a job and its guest by the policy's
own rule, and lengthen time limits, so that the engine gives no other orders.

What Slurm reports counts. Where it differs from what was decided, as after the gate was open, the policy's state is
made anew from it.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.errors import SlurmError
from drom.agent.text import counted
from drom.scheduler.interface import MALLEABLE, RIGID
from drom.scheduler.live.cluster.controller import ANYWHERE, Controller, JobRequest
from drom.scheduler.slurm.records import ENDED, GATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.slurm.records import Job, Node

PATIENCE = 3.0
"""Seconds in which Slurm has to start a released job, whose nodes it keeps from others meanwhile."""
PAUSE = 30.0
"""Seconds for which a job that did not start, and the nodes to which it was sent, are left alone."""
MOST_ATTEMPTS = 2
"""Releases to nodes on which Slurm does not start a job, before the job is left to Slurm."""
MOST_TASKS = 64
"""Waiting tasks of one array that the policy sees at a time."""
ENDLESS = 10 * 365 * 86400
"""Seconds that stand for no time limit."""
MOST_ON_A_NODE = 2
"""Jobs that share a node at most (OverSubscribe=YES:2)."""
WAITING, RELEASED, RUNNING = "waiting", "released", "running"


class Asked(NamedTuple):
    """What a job had before it was released: its licences and nodes as Slurm writes them, and its nice value."""

    licences: str
    nodes: str
    nice: int


class Release(NamedTuple):
    """The order that a job may start, on `nodes` (none: where Slurm likes), with only these `licences`.

    `job` is its name for Slurm, and `mates` are the jobs with which it shares nodes.
    """

    job: str
    nodes: tuple[str, ...]
    licences: str
    mates: tuple[str, ...] = ()


class TakeBack(NamedTuple):
    """The order that a released job waits at the gate again, as it was before."""

    job: str
    asked: Asked


Order = Release | TakeBack


@dataclass(slots=True)
class _Known:
    """A job that the policy knows by its `number`. `nodes` are those to which it was sent, at `since`."""

    number: int
    record: Job
    phase: str = WAITING
    nodes: tuple[str, ...] = ()
    since: float = 0.0


class Engine:
    """The jobs of `partition`, as `policy` decides on them.

    `sent` are the jobs that were released to nodes, by name, with what they had before: the caller stores them, and
    gives them to the next engine. Raises SchedulerError for a policy that cannot decide here.
    """

    def __init__(self, policy: Policy, partition: str, sent: Mapping[str, Asked] | None = None) -> None:
        self.faults: list[str] = []
        """Sentences on decisions of the last look that could not be carried out."""
        self.sent = dict(sent or {})
        self._policy = policy
        self._partition = partition
        self._controller = Controller(policy, 1)
        self._indices: dict[str, int] = {}
        self._jobs: dict[str, _Known] = {}
        self._numbers = itertools.count(1)
        self._paused: dict[str, float] = {}
        """Until when jobs and nodes are left alone, by name."""
        self._attempts: Counter[str] = Counter()
        """How often each waiting job was released to nodes in vain, by name."""
        self._excess: set[str] = set()
        """Jobs that run as a third one on a node, of which the policy cannot be told."""

    def look(self, jobs: Iterable[Job], nodes: Iterable[Node], now: float) -> list[Order]:
        """Update the jobs by what Slurm reports at `now` (seconds since 1970), and return the orders to it.

        Raises SlurmError if the nodes of the partition differ in cores, or if there is none.
        """
        mine = {node.name: node for node in nodes if self._partition in node.partitions}
        self._check_nodes(mine)
        seen = dict(itertools.chain.from_iterable(map(_named, jobs)))
        self._paused = {name: until for name, until in self._paused.items() if until > now}
        self._attempts = Counter({name: count for name, count in self._attempts.items() if _waits(seen.get(name))})
        orders: list[Order] = [*self._take_back(seen, now)]
        if self._is_surprised(seen):
            self._begin_anew(seen)
        self._set_nodes(mine, seen)
        self._follow(seen, now)
        orders += self._admit(seen, now)
        waiting = sorted(
            (known for known in self._jobs.values() if known.phase == WAITING),
            key=lambda known: _rank(known.record),
        )
        self._controller.arrange([known.number for known in waiting])
        orders += self._start(now)
        return orders

    def waiting(self) -> list[str]:
        """Return the names of the jobs that wait for a decision, in the order of the queue."""
        names = {known.number: name for name, known in self._jobs.items()}
        return [names[number] for number in self._controller.waiting]

    # --- nodes ----------------------------------------------------------------------------------------------------

    def _check_nodes(self, mine: Mapping[str, Node]) -> None:
        sizes = Counter(node.usable_cpus for node in mine.values())
        if not sizes:
            msg = f"partition {self._partition} has no node: name another one with --partition."
            raise SlurmError(msg)
        if len(sizes) > 1:
            differ = ", ".join(f"{counted(count, 'node')} of {size} CPUs" for size, count in sorted(sizes.items()))
            msg = f"the nodes of partition {self._partition} differ ({differ}): give each kind a partition of its own."
            raise SlurmError(msg)
        if self._controller.cores != (cores := next(iter(sizes))):
            self._controller, self._jobs = Controller(self._policy, cores), {}
        for name in mine:
            self._indices.setdefault(name, len(self._indices))

    def _set_nodes(self, mine: Mapping[str, Node], seen: Mapping[str, Job]) -> None:
        """Report to the policy the nodes that it may use: those without jobs that it does not know."""
        others = [job for name, job in seen.items() if job.runs and not self._is_ours(name, job)]
        strange = {node for job in others for node in job.nodes}
        for name, index in self._indices.items():
            if name in mine and mine[name].is_usable and name not in strange and name not in self._paused:
                self._controller.node_up(index)
            else:
                self._controller.node_down(index)

    def _is_ours(self, name: str, job: Job) -> bool:
        """Return whether a job that runs has whole nodes of the partition, as the policy plans."""
        is_whole = job.cpus >= self._controller.cores * len(job.nodes) and name not in self._excess
        return job.partitions == (self._partition,) and is_whole and all(node in self._indices for node in job.nodes)

    # --- jobs that run --------------------------------------------------------------------------------------------

    def _is_surprised(self, seen: Mapping[str, Job]) -> bool:
        """Return whether a job runs that was not sent to its nodes."""
        for name, job in seen.items():
            if job.runs and self._is_ours(name, job):
                known = self._jobs.get(name)
                if not known or {*known.nodes} != {*job.nodes}:
                    return True
        return False

    def _begin_anew(self, seen: Mapping[str, Job]) -> None:
        """Make the policy's state from what runs and what was released; jobs that wait are admitted afterwards."""
        old, self._jobs, self._excess = self._jobs, {}, set()
        self._controller = Controller(self._policy, self._controller.cores)
        here: dict[str, _Known] = {}
        for name, job in seen.items():
            known = old.get(name)
            if job.runs and self._is_ours(name, job):
                here[name] = _Known(next(self._numbers), job, RUNNING, job.nodes, float(job.started or 0))
            elif known and known.phase == RELEASED and job.waits:
                here[name] = replace(known, record=job)
        residents: dict[str, list[str]] = defaultdict(list)
        for name, known in sorted(here.items(), key=lambda item: (item[1].since, item[1].number)):
            if all(len(residents[node]) < MOST_ON_A_NODE for node in known.nodes):
                self._jobs[name] = known
                for node in known.nodes:
                    residents[node].append(name)
            else:
                self._excess.add(name)
        for name, known in self._jobs.items():
            cores = {self._indices[node]: self._share(residents[node], name) for node in known.nodes}
            request = self._request(known.record)
            self._controller.restore(known.number, request, cores, int(known.since), request.requested)

    def _share(self, residents: list[str], name: str) -> int:
        """Return the cores that the agent of a node gives to one of its residents, the owner of the node first."""
        guest = self._guest_cores() if len(residents) > 1 else 0
        return self._controller.cores - guest if name == residents[0] else guest

    def _guest_cores(self) -> int:
        """Return the cores of a node that its owner gives up for a guest."""
        return int(self._controller.cores * self._policy.options.get("sharing_factor", 0.5))

    def _follow(self, seen: Mapping[str, Job], now: float) -> None:
        """Report starts and ends to the policy, and the jobs that do not wait at the gate any more."""
        for name, known in list(self._jobs.items()):
            job = seen.get(name)
            if known.phase == WAITING:
                if not job or not self._is_ready(job) or _demand(job) != _demand(known.record):
                    self._controller.withdraw(known.number)
                    del self._jobs[name]
                else:
                    known.record = job
            elif not job or job.states & ENDED or (known.phase == RUNNING and job.waits):
                self._leave(name, now)
            elif known.phase == RELEASED and job.runs:
                known.phase = RUNNING
                self._controller.launched(known.number, int(now))

    def _leave(self, name: str, now: float) -> None:
        self._controller.ended(self._jobs.pop(name).number, int(now))

    # --- jobs that wait -------------------------------------------------------------------------------------------

    def _is_ready(self, job: Job) -> bool:
        """Return whether a job waits for nothing but the policy."""
        return job.waits and job.holds(GATE) and job.priority > 0 and not job.dependency

    def _admit(self, seen: Mapping[str, Job], now: float) -> Iterator[Release]:
        """Report new jobs at the gate to the policy. Those that it can never place are left to Slurm.

        So are jobs that Slurm did not start where they were sent: their users may have changed what they ask for.
        """
        active = Counter(known.record.array for known in self._jobs.values() if known.phase != WAITING)
        for name, job in seen.items():
            if name in self._jobs or name in self._paused or not self._is_ready(job):
                continue
            if job.eligible is not None and job.eligible > now:
                continue
            if (most := _most_at_once(job)) is not None:
                if active[job.array] >= most:
                    continue
                active[job.array] += 1
            if not self._can_place(job) or self._attempts[name] >= MOST_ATTEMPTS:
                self._paused[name] = now + PAUSE
                yield Release(name, (), _licences(job))
                continue
            known = self._jobs[name] = _Known(next(self._numbers), job)
            request = self._request(job)
            if request.group != ANYWHERE:
                self._controller.allow(request.group, [self._indices[node] for node in job.requested_nodes])
            self._controller.submit(known.number, request, int(job.submitted or now))

    def _can_place(self, job: Job) -> bool:
        asked = job.requested_nodes
        is_here = all(name in self._indices for name in asked) and len(asked) in (0, job.least_nodes)
        return job.partitions == (self._partition,) and is_here and job.least_nodes <= len(self._indices)

    def _request(self, job: Job) -> JobRequest:
        """Return a job as the policy sees it. Jobs that do not share, or cannot use less, are rigid."""
        seconds = ENDLESS if job.limit_min is None else min(ENDLESS, max(60, 60 * job.limit_min))
        tasks = -(-max(1, job.tasks) // job.least_nodes)
        can_share = job.shares and job.malleable is not None and job.malleable[0] * tasks <= self._guest_cores()
        group = ",".join(sorted(job.requested_nodes)) or ANYWHERE
        return JobRequest(job.least_nodes, seconds, MALLEABLE if can_share else RIGID, 0, group)

    def _start(self, now: float) -> Iterator[Release]:
        """Call the policy, and release what it starts."""
        names = {known.number: name for name, known in self._jobs.items()}
        by_index = {index: name for name, index in self._indices.items()}
        controller = self._controller
        for number in controller.turn(int(now)):
            known = self._jobs[names[number]]
            placed = controller.nodes_of(number)
            known.nodes, known.phase, known.since = tuple(by_index[node] for node in placed), RELEASED, now
            mates = dict.fromkeys(names[other] for node in placed for other in controller.residents(node))
            job = known.record
            self.sent[names[number]] = Asked(_shown(job.licences), ",".join(job.requested_nodes), job.nice)
            yield Release(
                names[number], known.nodes, _licences(job), tuple(mate for mate in mates if mate != names[number])
            )
        self.faults = [
            f"job {names[fault.job]}: {fault.text}" if fault.job else fault.text for fault in controller.faults
        ]

    def _take_back(self, seen: Mapping[str, Job], now: float) -> Iterator[TakeBack]:
        """Take back the jobs that Slurm did not start in time, was asked to start by an earlier daemon, or requeued."""
        for name, asked in list(self.sent.items()):
            job, known = seen.get(name), self._jobs.get(name)
            is_sent = known is not None and known.phase == RELEASED
            if not job or job.states & ENDED:
                del self.sent[name]
            elif job.waits and job.holds(GATE) and not job.tasks_left:  # the order was refused, or the job is back
                del self.sent[name]
                if is_sent:
                    self._leave(name, now)
                    self._paused[name] = now + PAUSE
                    self._attempts[name] += 1
            elif job.waits and not (known and is_sent and now - known.since < PATIENCE):
                yield TakeBack(name, asked)
                if job.tasks_left:  # squeue shows a released task with those of its array that wait at the gate
                    del self.sent[name]
                if known and is_sent:
                    self._paused |= dict.fromkeys((name, *known.nodes), now + PAUSE)
                    self._leave(name, now)
                    self._attempts[name] += 1


def _named(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the names that Slurm accepts for a job, or for the next waiting tasks of an array, each with its record."""
    if job.het is not None:
        return
    if job.tasks_left:
        for task in itertools.islice(_tasks(job.tasks_left), MOST_TASKS):
            one = replace(job, task=task)
            yield one.identifier, one
    else:
        yield job.identifier, job


def _tasks(text: str) -> Iterator[int]:
    """Yield the numbers in a list of array tasks such as ``1,4-9%2`` or ``0-8:4``, up to the first that is cut off."""
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part, re.ASCII)
        if not match:
            return
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        yield from range(first, last + 1, max(1, step))


def _most_at_once(job: Job) -> int | None:
    """Return how many tasks of a job's array may run at once; None if any number may."""
    most = job.tasks_left.partition("%")[2]
    return int(most) if most.isdecimal() else None


def _waits(job: Job | None) -> bool:
    return job is not None and job.waits


def _rank(job: Job) -> tuple[int, int, int]:
    """Return a key that sorts jobs as Slurm does: by priority, and jobs of the same priority by number."""
    return -job.priority, job.number if job.array is None else job.array, job.task or 0


def _demand(job: Job) -> tuple[object, ...]:
    return job.least_nodes, job.limit_min, job.requested_nodes, job.partitions, job.shares, job.malleable, job.tasks


def _licences(job: Job) -> str:
    """Return the licences of a job without that of the gate, as Slurm writes them."""
    return _shown(tuple((name, count) for name, count in job.licences if name != GATE))


def _shown(licences: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"{name}:{count}" for name, count in licences)
