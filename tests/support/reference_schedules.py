# SPDX-License-Identifier: Apache-2.0
"""The policies again, slow and plain, to compare schedules with: lists, and free nodes counted instant by instant."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Decide = Callable[["Cluster", int], list["Job"]]


class Job(NamedTuple):
    """A job: number in order, submit time, real and requested run time, nodes."""

    number: int
    submit: int
    run: int
    requested: int
    nodes: int


class Hold(NamedTuple):
    """Nodes that are taken from one time until before another."""

    begin: int
    end: int
    nodes: int


class Cluster:
    """Who waits and who runs, and what was promised."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.queue: list[Job] = []
        self.running: list[tuple[int, Job]] = []
        self.promised: dict[int, int] = {}

    def holds(self) -> list[Hold]:
        """Return what running jobs are predicted to hold."""
        return [Hold(start, start + job.requested, job.nodes) for start, job in self.running]

    def free(self, holds: Sequence[Hold], time: int) -> int:
        """Return the nodes that nobody holds at a time."""
        return self.nodes - sum(hold.nodes for hold in holds if hold.begin <= time < hold.end)

    def fits(self, holds: Sequence[Hold], job: Job, begin: int) -> bool:
        """Return whether a job could have its nodes from `begin` for as long as it asks."""
        moments = {begin} | {hold.begin for hold in holds if begin < hold.begin < begin + job.requested}
        return all(self.free(holds, moment) >= job.nodes for moment in moments)

    def earliest(self, holds: Sequence[Hold], job: Job, now: int) -> int:
        """Return the first time at which a job fits."""
        moments = {now} | {hold.end for hold in holds if hold.end > now}
        return min(moment for moment in moments if self.fits(holds, job, moment))


def simulate(jobs: Sequence[Job], nodes: int, decide: Decide, ticks: int = 0) -> list[int]:
    """Return the start of each job: ends, then submissions, then one decision per instant (or per tick, if given)."""
    cluster, starts, coming, now = Cluster(nodes), [0] * len(jobs), list(jobs), 0
    dirty = False
    while coming or cluster.queue or cluster.running:
        moments = [job.submit for job in coming[:1]]
        moments += [start + min(job.run, job.requested) for start, job in cluster.running]
        if ticks and dirty and cluster.queue:
            moments.append((now // ticks + 1) * ticks)
        now = min(moments)
        before = len(cluster.running) + len(cluster.queue)
        cluster.running = [(start, job) for start, job in cluster.running if start + min(job.run, job.requested) > now]
        happened = before != len(cluster.running) + len(cluster.queue)
        while coming and coming[0].submit == now:
            cluster.queue.append(coming.pop(0))
            happened = True
        dirty = dirty or happened
        if ticks and now % ticks:
            continue
        dirty = False
        for job in decide(cluster, now):
            starts[job.number] = now
            cluster.queue.remove(job)
            cluster.running.append((now, job))
    return starts


def fcfs(cluster: Cluster, now: int) -> list[Job]:
    """Start heads while they fit."""
    started: list[Job] = []
    for job in cluster.queue:
        if sum(one.nodes for one in [*started, job]) > cluster.free(cluster.holds(), now):
            break
        started.append(job)
    return started


def easy(cluster: Cluster, now: int) -> list[Job]:
    """Start heads while they fit, then each job after whose start the next head could start as early as before."""
    return backfilled(cluster, now, len(cluster.queue))


def backfilled(cluster: Cluster, now: int, most: int) -> list[Job]:
    """Return what EASY starts if it tries only so many jobs behind the head."""
    started = fcfs(cluster, now)
    waiting = cluster.queue[len(started) :]
    holds = [*cluster.holds(), *(Hold(now, now + job.requested, job.nodes) for job in started)]
    for job in waiting[1 : 1 + most]:
        with_it = [*holds, Hold(now, now + job.requested, job.nodes)]
        no_later = cluster.earliest(with_it, waiting[0], now) == cluster.earliest(holds, waiting[0], now)
        if cluster.free(holds, now) >= job.nodes and no_later:
            holds = with_it
            started.append(job)
    return started


def conservative(cluster: Cluster, now: int) -> list[Job]:
    """Make each promise anew, in order, with all the others kept; start whoever is promised now."""
    for job in cluster.queue:
        others = [
            Hold(cluster.promised[other.number], cluster.promised[other.number] + other.requested, other.nodes)
            for other in cluster.queue
            if other.number in cluster.promised and other is not job
        ]
        cluster.promised[job.number] = cluster.earliest([*cluster.holds(), *others], job, now)
    return [job for job in cluster.queue if cluster.promised[job.number] == now]


def slurm(depth: int, window: int, resolution: int) -> Decide:
    """Plan the first jobs anew at each pass, with reservations on coarse times."""

    def decide(cluster: Cluster, now: int) -> list[Job]:
        holds, started = cluster.holds(), []
        for job in cluster.queue[:depth]:
            begin = cluster.earliest(holds, job, now)
            end = begin + job.requested
            if begin == now:
                started.append(job)
                holds.append(Hold(begin, end, job.nodes))
            elif begin <= now + window:
                holds.append(Hold(begin // resolution * resolution, end // resolution * resolution, job.nodes))
        return started

    return decide


def by_score(score: Callable[[Job, int], float], most: int | None = None) -> Decide:
    """Sort the queue by the score of each job at this time, then by number, and backfill behind its head."""

    def decide(cluster: Cluster, now: int) -> list[Job]:
        cluster.queue.sort(key=lambda job: (score(job, now), job.number))
        return backfilled(cluster, now, len(cluster.queue) if most is None else most)

    return decide
