# SPDX-License-Identifier: Apache-2.0
"""SD-Policy again, slow and plain, from docs/simulate.md alone: second by second, node by node.

All jobs are malleable. Parameters that are not named have their defaults, but that there is a pass at every event.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.reference_schedules import Job


class Sharing(NamedTuple):
    """A machine and its rules. `cutoff` is MAX_SLOWDOWN, None: DynAVGSD; `ideal` is the runtime model.

    `again` says whether a pass is made anew before the first malleable trial that is due after a static start. `least`
    are the fewest nodes of each job; a change of nodes costs `stall` seconds, and `transfer` seconds take the data of a
    node through a link. Speed is in proportion to nodes.
    """

    nodes: int
    cores: int
    guest: int
    """Cores of a node that a guest has."""
    cutoff: float | None = None
    ideal: bool = False
    depth: int = 100
    window: int = 86400
    resolution: int = 60
    again: bool = True
    least: Sequence[int] = ()
    stall: Fraction = Fraction(0)
    transfer: Fraction = Fraction(0)


@dataclass
class Run:
    """A job that runs: its start, its limit, its cores by node, and the work that is left."""

    job: Job
    start: int
    limit: int
    shares: dict[int, int]
    left: int = 0

    @property
    def end(self) -> int:
        """Its predicted end."""
        return self.start + self.limit

    @property
    def present(self) -> int:
        """On how many nodes it has cores."""
        return sum(cores > 0 for cores in self.shares.values())

    def rate(self, *, ideal: bool) -> int:
        """Return its work in a second."""
        cores = [cores for cores in self.shares.values() if cores]
        return sum(cores) if ideal else min(cores) * len(cores)


class Hold(NamedTuple):
    """Nodes that are taken from one time until before another."""

    begin: int
    end: int
    nodes: int


@dataclass
class World:
    """What happens; `residents` has the jobs of each node, its owner first."""

    rules: Sharing
    residents: list[list[Run]]
    now: int = 0
    queue: list[Job] = field(default_factory=list)
    running: list[Run] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def begin(self, job: Job, nodes: Sequence[int], cores: int, limit: int, delay: int = 0) -> None:
        """Start a job, after a delay; it has its nodes at once."""
        run = Run(job, self.now + delay, limit, dict.fromkeys(nodes, cores), job.run * job.nodes * self.rules.cores)
        for node in nodes:
            self.residents[node].append(run)
        self.running.append(run)
        self.queue.remove(job)
        self.starts[job.number] = run.start

    def work(self) -> None:
        """Let a second pass."""
        for run in self.running:
            run.left -= run.rate(ideal=self.rules.ideal) if run.start <= self.now else 0
        self.now += 1

    def end_those_that_are_done(self) -> bool:
        """End jobs, in the order of their starts; the owner of each node has what comes free."""
        ended = False
        while run := next((run for run in self.running if run.left <= 0 or run.end <= self.now), None):
            ended = True
            before = {id(one): one.present for one in self.running}
            self.running.remove(run)
            self.ends[run.job.number] = self.now
            for node, cores in run.shares.items():
                self.residents[node].remove(run)
                if self.residents[node]:
                    self.residents[node][0].shares[node] += cores
            for one in self.running:
                self.charge(one, before[id(one)])
        return ended

    def charge(self, run: Run, before: int) -> None:
        """Add to the work of a job what a change from so many nodes costs it."""
        run.left += math.floor(self.cost(run.job.nodes, before, run.present) * run.rate(ideal=self.rules.ideal))

    def cost(self, size: int, before: int, after: int) -> Fraction:
        """Return the seconds that a change of nodes costs a job of this size."""
        if before == after:
            return Fraction(0)
        small, large = min(before, after), max(before, after)
        most = max(Fraction(1, large), Fraction(1, small) - Fraction(1, large))
        return self.rules.stall + self.rules.transfer * size * most

    def is_alone(self, run: Run) -> bool:
        """Return whether a job shares none of its nodes."""
        return all(len(self.residents[node]) == 1 for node in run.shares)


def simulate(jobs: Sequence[Job], rules: Sharing) -> tuple[list[int], list[int]]:
    """Return the start and the end of each job."""
    world, coming = World(rules, [[] for _ in range(rules.nodes)]), list(jobs)
    while coming or world.queue or world.running:
        happened = world.end_those_that_are_done()
        while coming and coming[0].submit == world.now:
            world.queue.append(coming.pop(0))
            happened = True
        while happened and Pass(world).go():
            pass
        world.work()
    return [world.starts[job.number] for job in jobs], [world.ends[job.number] for job in jobs]


class Pass:
    """A pass over the queue. The cut-off is that of its begin."""

    def __init__(self, world: World) -> None:
        self.world, self.rules, self.now = world, world.rules, world.now
        runs, cutoff = world.running, self.rules.cutoff
        mean = sum((run.end - run.job.submit) / run.job.requested for run in _by_end(runs)) / max(1, len(runs))
        self.cutoff = mean if cutoff is None else cutoff
        started = [run.job.number for run in runs if run.start == self.now]
        self.latest = max(started, default=-1)
        self.tried = world.queue[: max(0, self.rules.depth - len(started))]
        ends = [max(run.end for run in there) for there in world.residents if there]
        self.holds = [Hold(self.now, end, 1) for end in ends]
        self.starts_static = False
        self.free = sum(not there for there in world.residents)
        self.left = sum(map(self.leaves, world.running))
        self.known = list(world.running)

    def go(self) -> bool:
        """Try one job after the other; return whether another pass is to be made at this second."""
        for job in self.tried:
            begin = self.earliest(job)
            if begin == self.now:
                free = [node for node, there in enumerate(self.world.residents) if not there]
                self.world.begin(job, free[: job.nodes], self.rules.cores, job.requested)
                self.holds.append(Hold(begin, begin + job.requested, job.nodes))
                self.starts_static = True
                continue
            shares, leaves = self.is_due(job, begin), self.may_have_left(job)
            if (shares or leaves) and self.starts_static and self.rules.again:
                return True
            if shares and (mates := self.mates(job)):
                self.share(job, mates)
                return True
            if leaves and self.starts_on_left_nodes(job, begin):
                return True
            if begin <= self.now + self.rules.window:
                end, coarse = begin + job.requested, self.rules.resolution
                self.holds.append(Hold(begin // coarse * coarse, end // coarse * coarse, job.nodes))
        return False

    def earliest(self, job: Job) -> int:
        """Return the first time from which on a job fits for as long as it asks."""
        changes = defaultdict(int, {self.now: self.taken(self.now)})
        for hold in self.holds:
            if hold.begin > self.now:
                changes[hold.begin] += hold.nodes
            if hold.end > self.now:
                changes[hold.end] -= hold.nodes
        begin, free = math.inf, self.rules.nodes
        for at in sorted(changes):
            if at >= begin + job.requested:
                break
            free -= changes[at]
            begin = min(begin, at) if job.nodes <= free else math.inf
        return int(begin)

    def taken(self, at: int) -> int:
        """Return how many nodes are held at a time."""
        return sum([one.nodes for one in self.holds if one.begin <= at < one.end])

    def stretched(self, length: int) -> int:
        """Return how long a guest takes."""
        return -(-length * self.rules.cores // self.rules.guest)

    def cost(self, length: int) -> int:
        """Return what a guest costs its mates."""
        return -(-self.stretched(length) * self.rules.guest // self.rules.cores)

    def is_due(self, job: Job, begin: int) -> bool:
        """Return whether the malleable trial of a job is to be made."""
        static_end = begin + job.requested if begin <= self.now + self.rules.window else math.inf
        if not self.rules.guest or job.number <= self.latest or static_end <= self.now + self.stretched(job.requested):
            return False
        hosts = [run.job.nodes for run in self.world.running if self.might_host(run, job.requested)]
        return any(sum(some) == job.nodes for size in (1, 2) for some in itertools.combinations(hosts, size))

    def might_host(self, run: Run, length: int) -> bool:
        """Return whether a job might take a guest of so many seconds."""
        guest, rest = self.rules.guest, self.rules.cores - self.rules.guest
        bound = (run.end - self.now + 2) * guest // rest + 1
        if self.cutoff < math.inf:
            waited = min(run.start, self.now) - run.job.submit
            bound = min(bound, int(self.cutoff * run.job.requested) + 1 - waited - run.limit)
        return self.world.is_alone(run) and length <= bound

    def mates(self, job: Job) -> list[Run]:
        """Return the jobs that shrink for a guest."""
        found: list[tuple[float, int, Run]] = []
        for run in self.world.running:
            cost = self.cost(job.requested)
            penalty = (run.start - run.job.submit + run.limit + cost) / run.job.requested
            outlasts = run.end + cost >= self.now + self.stretched(job.requested)
            if self.world.is_alone(run) and outlasts and penalty < self.cutoff:
                found.append((penalty, run.job.number, run))
        found.sort(key=lambda one: one[:2])
        best, chosen = math.inf, []
        for size in (1, 2):
            for some in itertools.combinations(found, size):
                impact = sum(penalty for penalty, _, _ in some)
                if sum(run.job.nodes for _, _, run in some) == job.nodes and impact < best:
                    best, chosen = impact, [run for _, _, run in some]
        return chosen

    def share(self, job: Job, mates: list[Run]) -> None:
        """Start a job as guest of its mates, which may take longer then."""
        for mate in mates:
            mate.limit += self.cost(job.requested)
            for node in mate.shares:
                mate.shares[node] -= self.rules.guest
        nodes = [node for mate in mates for node in mate.shares]
        self.world.begin(job, nodes, self.rules.guest, self.stretched(job.requested))

    def spare(self, run: Run) -> int:
        """Return how many nodes a job may leave at most, as it declares."""
        return run.job.nodes - self.rules.least[run.job.number] if self.rules.least else 0

    def may_have_left(self, job: Job) -> bool:
        """Return whether the trial of a job on nodes that others leave is due."""
        fresh = [run for run in self.world.running if run not in self.known]
        left = self.left + sum(map(self.spare, fresh))
        return left > 0 and job.number > self.latest and job.nodes <= self.free + left

    def starts_on_left_nodes(self, job: Job, begin: int) -> bool:
        """Start a job on nodes that others leave, and on free ones; return whether it can."""
        world, length = self.world, job.requested
        free = min(job.nodes - 1, self.room(length))
        need, found = job.nodes - free, list[tuple[int, float, int, Run]]()
        for run in world.running:
            count = min(need, self.leaves(run))
            if count > 0:
                p = (run.start - run.job.submit + run.limit + self.later(run, count, length)) / run.job.requested
                found += [(-count, p, run.job.number, run)] if p < self.cutoff else []
        mates = list[tuple[Run, int]]()
        for count, _, _, run in sorted(found, key=lambda one: one[:3])[:2]:
            if given := min(-count, need):
                mates.append((run, given))
                need -= given
        if need or not mates:
            return False
        delay = max(self.away(run, count) for run, count in mates)
        static_end = begin + length if begin <= self.now + self.rules.window else math.inf
        if static_end <= self.now + delay + length or (free and self.room(delay + length) < free):
            return False
        nodes = [node for node, there in enumerate(world.residents) if not there][:free]
        for run, count in mates:
            run.limit += self.later(run, count, length, delay)
            left = [node for node, cores in run.shares.items() if cores][-count:]
            before = run.present
            run.shares.update(dict.fromkeys(left, 0))
            world.charge(run, before)
            nodes += left
        world.begin(job, nodes, self.rules.cores, length, delay)
        return True

    def room(self, length: int) -> int:
        """Return how many nodes are free, and not reserved, for so many seconds."""
        begins = [hold.begin for hold in self.holds if self.now < hold.begin < self.now + length]
        return max(0, self.rules.nodes - max(map(self.taken, [self.now, *begins])))

    def leaves(self, run: Run) -> int:
        """Return how many nodes a job may leave now."""
        house, there = self.world.residents, [node for node, cores in run.shares.items() if cores]
        alone = all(house[node] == [run] and run.shares[node] == self.rules.cores for node in there)
        owns = all(house[node][0] is run for node in run.shares)
        if not (self.spare(run) and run.start <= self.now and alone and owns):
            return 0
        return len(there) - self.rules.least[run.job.number]

    def away(self, run: Run, count: int) -> int:
        """Return in how many seconds the data of a job are off nodes."""
        return math.ceil(self.world.cost(run.job.nodes, run.present, run.present - count))

    def later(self, run: Run, count: int, length: int, delay: int | None = None) -> int:
        """Return how much longer a job takes at most that leaves nodes for a guest."""
        away, least = self.away(run, count), self.rules.least[run.job.number]
        back = math.ceil(self.world.cost(run.job.nodes, least, least + count))
        gone = length + (away if delay is None else delay)
        return math.ceil(Fraction(gone * count, run.job.nodes)) + away + back


def _by_end(runs: list[Run]) -> list[Run]:
    """Return running jobs in the order in which their slowdowns are added: of predicted end, then of start."""
    return sorted(runs, key=lambda run: run.end)
