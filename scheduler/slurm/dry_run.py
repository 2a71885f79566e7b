# SPDX-License-Identifier: Apache-2.0
"""What the daemon would do with the jobs that wait now. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from drom.scheduler.slurm.engine import Engine, Release
from drom.scheduler.slurm.records import GATE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.engine.compiler import Policy
    from drom.scheduler.slurm.records import Job, Node


LOOKS = 3
"""Looks, a second apart, after which the policy has decided: it tries guests in the pass after a submission."""


class Start(NamedTuple):
    """A job that would start now, on `nodes`, beside `mates`. Slurm expects its start at `expected` (None: none)."""

    job: str
    user: str
    nodes: tuple[str, ...]
    mates: tuple[str, ...]
    expected: int | None


class Forecast(NamedTuple):
    """The jobs that would start now, and the number of jobs of the partition that wait."""

    starts: tuple[Start, ...]
    waiting: int


def forecast(policy: Policy, partition: str, jobs: Iterable[Job], nodes: Iterable[Node], now: float) -> Forecast:
    """Return what the daemon would do at `now` (seconds since 1970) if all jobs of the partition waited at its gate.

    Raises SlurmError as the engine, and SchedulerError for a policy that cannot decide here.
    """
    at_gate = [_at_gate(job) if job.waits and partition in job.partitions else job for job in jobs]
    engine = Engine(policy, partition)
    known = list(nodes)
    orders = [order for later in range(LOOKS) for order in engine.look(at_gate, known, now + later)]
    by_name = {str(job.number): job for job in at_gate} | {str(job.array): job for job in at_gate if job.array}
    starts = []
    for order in orders:
        if isinstance(order, Release):
            job = by_name[order.job.partition("_")[0]]
            starts.append(Start(order.job, job.user, order.nodes, order.mates, job.started))
    return Forecast(tuple(starts), len(starts) + len(engine.waiting()))


def _at_gate(job: Job) -> Job:
    return job if job.holds(GATE) else replace(job, licences=(*job.licences, (GATE, 1)))
