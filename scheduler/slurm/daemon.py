# SPDX-License-Identifier: Apache-2.0
"""The daemon of `drom slurm`: it looks at Slurm, asks the engine, and has Slurm carry out the orders, again and again.

What jobs that end have used goes into the history.

It keeps nothing from Slurm but the gate. Without it, the gate opens by itself after at most `LEASE_MIN` minutes, and
Slurm goes on alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from drom.agent.errors import SlurmError
from drom.scheduler.slurm.actor import Actor, Lease
from drom.scheduler.slurm.engine import Release
from drom.scheduler.slurm.records import ENDED
from drom.scheduler.slurm.usage import job_uses

if TYPE_CHECKING:
    from collections.abc import Iterable
    from threading import Event

    from drom.agent.observe.log import Log
    from drom.scheduler.slurm.engine import Engine, Order
    from drom.scheduler.slurm.history import History
    from drom.scheduler.slurm.reader import Reader
    from drom.scheduler.slurm.records import Job
    from drom.scheduler.slurm.store import Store

SHARE_OF_TIME = 0.5
"""The part of the time that the daemon and the commands of Slurm may take: looks become rarer where each takes long."""
OPEN = 60.0
"""Seconds for which the gate is open after the file of released jobs could not be written."""
NODES_EVERY = 5.0
"""Seconds between two readings of the nodes, which change rarely."""


class Daemon:
    """Drives the jobs of one Slurm; `interval` is the least time between two looks, in seconds.

    Closes the gate at once. Raises SlurmError if that is not possible.
    """

    def __init__(
        self, reader: Reader, engine: Engine, store: Store, history: History, log: Log, *, interval: float
    ) -> None:
        self._reader, self._engine, self._store, self._history, self._log = reader, engine, store, history, log
        self._actor, self._lease = Actor(reader), Lease(reader)
        self._interval = interval
        self._nodes = reader.nodes()
        self._nodes_at = time.monotonic()
        self._open_until = 0.0
        self._told: dict[str, float] = {}
        self._stored: set[tuple[int, int | None]] = set()
        """The ended jobs that Slurm still has and that are in the history, by number and start."""
        self._lease.renew(self._nodes_at)

    def run(self, stop: Event) -> None:
        """Work until `stop` is set, then open the gate. Failures of Slurm are logged, and survived."""
        while not stop.is_set():
            began = time.monotonic()
            try:
                self._look()
            except SlurmError as error:
                self._complain(str(error))
            took = time.monotonic() - began
            stop.wait(max(self._interval - took, took * (1 - SHARE_OF_TIME) / SHARE_OF_TIME))
        self._lease.end()
        self._store.close()
        self._history.close()

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._open_until:
            return
        if now - self._nodes_at > NODES_EVERY:
            self._nodes, self._nodes_at = self._reader.nodes(), now
        jobs = self._reader.jobs()
        for sentence in (*jobs.faults, *self._nodes.faults):
            self._complain(sentence)
        orders = self._engine.look(jobs.records, self._nodes.records, time.time())
        for sentence in self._engine.faults:
            self._complain(sentence)
        try:
            self._store.save(self._engine.sent)  # before Slurm knows
        except SlurmError:
            self._lease.end()
            self._open_until = now + OPEN
            raise
        self._lease.renew(now)  # not before: the gate opens by itself where nothing can be read or decided
        for order in orders:
            self._carry_out(order)
        self._record(jobs.records)

    def _record(self, jobs: Iterable[Job]) -> None:
        ended = {(job.number, job.started): job for job in jobs if job.states & ENDED and job.ends is not None}
        self._history.record(job_uses((job for key, job in ended.items() if key not in self._stored), time.time()))
        self._stored = set(ended)

    def _carry_out(self, order: Order) -> None:
        try:
            self._actor.carry_out(order)
        except SlurmError as error:
            self._complain(f"job {order.job}: {error}")
            return
        if isinstance(order, Release):
            where = ",".join(order.nodes) or "anywhere"
            self._log("slurm_released", job=order.job, nodes=where, mates=",".join(order.mates) or "none")
        else:
            self._log("slurm_taken_back", job=order.job)

    def _complain(self, sentence: str) -> None:
        """Log a sentence, the same one at most once a minute."""
        now = time.monotonic()
        self._told = {told: at for told, at in self._told.items() if now - at < 60}
        if sentence not in self._told:
            self._told[sentence] = now
            self._log("slurm_failed", reason=sentence)
