# SPDX-License-Identifier: Apache-2.0
"""Jobs for a heterogeneous machine: sets of units, each of which asks for resources of one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
from drom.scheduler.errors import SchedulerError
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.scheduler.cp.platform import Platform
    from drom.scheduler.interface import Floats, Ints


class Chunk(NamedTuple):
    """A number of units with the same request: amounts of the platform's resources. They may share a node."""

    units: int
    request: tuple[int, ...]


class Job(NamedTuple):
    """A job as it is submitted, with the time that it will take; times in seconds."""

    queue: int
    submit: int
    walltime: int
    run_time: int
    chunks: tuple[Chunk, ...]


class Jobs(NamedTuple):
    """Jobs as arrays, in order of submission: rows per job, per chunk and per unit, and the nodes that suit a chunk."""

    queue: Ints
    submit: Ints
    walltime: Ints
    run_time: Ints
    chunk: Ints
    """Shape ``(jobs + 1,)``: the chunks of a job are those from ``chunk[job]`` to ``chunk[job + 1]``."""
    unit: Ints
    """Shape ``(jobs + 1,)``: the same for units."""
    units: Ints
    """Shape ``(chunks,)``."""
    request: Ints
    """Shape ``(chunks, resources)``."""
    total: Ints
    """Shape ``(jobs, resources)``: the sum of the requests of a job's units."""
    nodes: Ints
    """Shape ``(chunks, nodes)``: nodes by preference, first those with least of the resources that it does not use.

    A chunk that may not be on all nodes has -1 behind those that it may have.
    """
    most: Ints
    """Shape ``(chunks,)``: how many units of a chunk may be on a node."""


def chunk_of(platform: Platform, units: int, request: Mapping[str, int]) -> Chunk:
    """Return a chunk from amounts by resource name. Raises SchedulerError for a resource that the platform lacks."""
    for name in request:
        if name not in platform.resources:
            msg = f"a unit asks for {name!r}: {platform.name} has {', '.join(platform.resources)}."
            raise SchedulerError(msg)
    return Chunk(units, tuple(request.get(name, 0) for name in platform.resources))


def table_of(jobs: Sequence[Job], platform: Platform) -> Jobs:
    """Return jobs as arrays, in order of submission.

    Raises SchedulerError, with the job's number in this order from 1 on, for one that could never run.
    """
    jobs = sorted(jobs, key=lambda job: job.submit)
    for number, job in enumerate(jobs, 1):
        _check(job, number, platform)
    chunks = [chunk for job in jobs for chunk in job.chunks]
    queue, submit, walltime, run_time = np.array([job[:4] for job in jobs], np.int64).reshape(-1, 4).T.copy()
    requests = np.array([chunk.request for chunk in chunks], np.int64).reshape(len(chunks), len(platform.resources))
    return Jobs(
        queue=queue,
        submit=submit,
        walltime=walltime,
        run_time=run_time,
        chunk=_offsets([len(job.chunks) for job in jobs]),
        unit=_offsets([sum(chunk.units for chunk in job.chunks) for job in jobs]),
        units=np.array([chunk.units for chunk in chunks], np.int64),
        request=requests,
        total=np.array([_total(job) for job in jobs], np.int64).reshape(len(jobs), len(platform.resources)),
        nodes=_preferred(requests, platform.capacity),
        most=np.full(len(chunks), NEVER, np.int64),
    )


def weights(jobs: Jobs, platform: Platform) -> Floats:
    """Return the weight of a second of waiting in equation (2) of the paper: 1 / the queue's expected wait."""
    return 1 / np.array([queue.expected_wait_s for queue in platform.queues], np.float64)[jobs.queue]


def _total(job: Job) -> list[int]:
    amounts = [[chunk.units * amount for amount in chunk.request] for chunk in job.chunks]
    return [sum(column) for column in zip(*amounts, strict=True)]


def _check(job: Job, number: int, platform: Platform) -> None:
    where = f"job {number}"
    if not 0 <= job.queue < len(platform.queues):
        _refuse(where, f"it is in queue {job.queue}, and {platform.name} has {len(platform.queues)}")
    if not 1 <= job.run_time <= job.walltime or job.submit < 0:
        _refuse(where, "it runs for at least 1 s, at most for its walltime, and is submitted at 0 s or later")
    if not job.chunks:
        _refuse(where, "it has no units: write at least one")
    left = platform.capacity
    for chunk in job.chunks:
        if chunk.units < 1 or min(chunk.request) < 0 or not any(chunk.request):
            _refuse(where, "units must be at least 1, and request something, no amount below 0")
        asked = ", ".join(f"{n} {name}" for n, name in zip(chunk.request, platform.resources, strict=True) if n)
        if not fitting(platform.capacity, chunk.request).any():
            _refuse(where, f"a unit asks for {asked}, which no node of {platform.name} has: ask for less")
        order = _preferred(np.array([chunk.request], np.int64), platform.capacity)[0]
        if _take(left, chunk, order) > 0:
            _refuse(where, f"{chunk.units} units of {asked} are more than {platform.name} has room for: ask for less")


def _take(left: Ints, chunk: Chunk, order: Ints) -> int:
    """Subtract the units of a chunk from what nodes have left, in their `order`, as `placement.pack` does.

    Returns the number of units that did not fit.
    """
    rest, rooms = chunk.units, fitting(left, chunk.request)
    for node in order:
        if rest == 0:
            break
        here = min(rest, int(rooms[node]))
        left[node] -= here * np.array(chunk.request)
        rest -= here
    return rest


def fitting(free: Ints, request: Sequence[int]) -> Ints:
    """Return the number of units of a request that fit on nodes with these free amounts, of shape ``(nodes,)``."""
    asked = np.array(request, np.int64)
    which = asked > 0
    return np.asarray((free[:, which] // asked[which]).min(axis=1), np.int64)


def _preferred(requests: Ints, capacity: Ints) -> Ints:
    share = capacity / np.maximum(capacity.max(axis=0), 1)
    wasted = (requests == 0).astype(np.float64) @ share.T
    return np.argsort(wasted, axis=1, kind="stable").astype(np.int64)


def _offsets(counts: Sequence[int]) -> Ints:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _refuse(where: str, what: str) -> NoReturn:
    msg = f"{where}: {what}."
    raise SchedulerError(msg)
