# SPDX-License-Identifier: Apache-2.0
"""Backfilling with reservations on nodes again, slow and plain: a table of every node at every second."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.reference_schedules import Job

HORIZON = 3000
"""Seconds after which nothing is planned in the small logs of tests."""


@dataclass
class Machine:
    """Nodes, rules, and by job its first second and its nodes."""

    nodes: int
    depth: int
    window: int
    resolution: int
    contiguous: bool = False
    allowed: dict[int, set[int]] = field(default_factory=dict)
    """By job number, where it is confined."""
    placed: dict[int, tuple[int, list[int]]] = field(default_factory=dict)


def simulate(jobs: Sequence[Job], machine: Machine, ticks: int) -> dict[int, tuple[int, list[int]]]:
    """Return start and nodes of each job: passes at multiples of `ticks` after something has happened."""
    queue: list[Job] = []
    running: list[Job] = []
    coming, now, dirty = list(jobs), 0, False
    while coming or queue or running:
        ended = [job for job in running if machine.placed[job.number][0] + min(job.run, job.requested) == now]
        came = [job for job in coming if job.submit == now]
        running = [job for job in running if job not in ended]
        coming = [job for job in coming if job not in came]
        queue += came
        dirty = dirty or bool(ended or came)
        if dirty and now % ticks == 0:
            started = make_pass(queue, running, machine, now)
            queue = [job for job in queue if job not in started]
            running += started
            dirty = False
        now += 1
    return machine.placed


def make_pass(queue: Sequence[Job], running: Sequence[Job], machine: Machine, now: int) -> list[Job]:
    """Plan the first jobs; return those that start."""
    taken: set[tuple[int, int]] = set()
    started = []
    for job in running:
        first, nodes = machine.placed[job.number]
        taken |= {(node, second) for node in nodes for second in range(now, first + job.requested)}
    for job in queue[: machine.depth]:
        begin, nodes = earliest(job, taken, machine, now)
        end, coarse = begin + job.requested, machine.resolution
        if begin == now:
            machine.placed[job.number] = now, nodes
            started.append(job)
        elif begin <= now + machine.window:
            begin, end = begin // coarse * coarse, end // coarse * coarse
        else:
            continue
        taken |= {(node, second) for node in nodes for second in range(begin, end)}
    return started


def earliest(job: Job, taken: set[tuple[int, int]], machine: Machine, now: int) -> tuple[int, list[int]]:
    """Return the first second at which a job can start, and its nodes."""
    for begin in range(now, now + HORIZON):
        free = [
            node
            for node in sorted(machine.allowed.get(job.number, set(range(machine.nodes))))
            if not any((node, second) in taken for second in range(begin, begin + job.requested))
        ]
        if machine.contiguous:
            runs = [free[i : i + job.nodes] for i in range(len(free) - job.nodes + 1)]
            free = next((run for run in runs if run[-1] - run[0] == job.nodes - 1), [])
        if len(free) >= job.nodes:
            return begin, free[: job.nodes]
    msg = f"Job {job.number} never fits."
    raise AssertionError(msg)
