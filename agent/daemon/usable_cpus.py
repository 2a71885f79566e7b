# SPDX-License-Identifier: Apache-2.0
"""The CPUs that the node may hand out now: those available, without those of unmanaged programs and of Slurm's jobs."""

from __future__ import annotations

import functools
import operator
import time
from typing import TYPE_CHECKING

from drom.agent.daemon.process_watch import first_process
from drom.agent.node.foreign import cores_of_foreign_jobs
from drom.agent.system.unmanaged_load import LoadMonitor
from drom.agent.text import counted
from drom.agent.topology.availability import AvailabilityMonitor

from dromlib.cpulist import format_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drom.agent.daemon.settings import Settings
    from drom.agent.model.jobs import Action
    from drom.agent.node.node import Node
    from drom.agent.observe.log import Log
    from drom.agent.system.batch_jobs import BatchJobReader

PERIOD = 0.5
"""Seconds between two looks at the jobs of Slurm."""
SHARE_OF_TIME = 0.02
"""The part of the time that looks at the jobs of Slurm may take: there are fewer of them where each takes long."""


class UsableCpus:
    """Checks which CPUs the agent may use, and sets the CPUs of `node` after each change.

    `cores` are the cores of the node, a mask of OS CPUs each. `execute` carries out the actions that follow, and
    `confine_all` binds all tasks again. `reader` reads the jobs of Slurm; it is None if the agent binds nothing.
    """

    def __init__(
        self,
        settings: Settings,
        node: Node,
        cores: Sequence[int],
        log: Log,
        reader: BatchJobReader | None,
        *,
        execute: Callable[[list[Action]], None],
        confine_all: Callable[[], None],
    ) -> None:
        machine = settings.topology
        self.availability = AvailabilityMonitor(machine, settings.reread or (lambda: machine), settings.unit)
        self._execute = execute
        self._confine_all = confine_all
        self._measures = not machine.emulated
        self._rereads = settings.reread is not None
        self._node = node
        self._cores = cores
        self._log = log
        self._load = LoadMonitor(settings.avoidance, cores)
        self._busy = 0
        self._foreign = ForeignJobs(node, reader.read if reader else lambda _: {})

    @property
    def load(self) -> dict[int, float]:
        """The share of each OS CPU that unmanaged programs used at the last measurement."""
        return self._load.load

    def configure(self, settings: Settings, reserved: int, *, load: bool) -> None:
        """Apply changed settings, with `load` those of the load that is avoided. `reserved` are OS CPUs (a mask)."""
        if load:
            self._load, self._busy = LoadMonitor(settings.avoidance, self._cores), 0
        self.availability.reserve(reserved)
        self.update(time.monotonic())

    def look_at_load(self, now: float) -> None:
        """Stop using cores that unmanaged programs keep busy."""
        if not self._measures:
            return
        tasks = [first_process(task) for task in self._node.tasks.values()]
        busy = self._load.look(now, tasks, self._node.plan.lost)
        if busy is not None:
            self._busy = busy
            self._log("cpus_avoided", cpus=_listed(busy), reason="unmanaged programs keep them busy")
            self.update(now)

    def look_at_machine(self, now: float) -> None:
        """Use only CPUs that are online and permitted, after changes by hotplug, cpusets and quotas."""
        if not self._rereads or not self.availability.look(now):
            return
        found = self.availability.available
        masks = {"managed": found.managed, "gone": found.gone, "more": found.more}
        self._log("cpus_changed", **{name: _listed(mask) for name, mask in masks.items()})
        self.update(now)
        self._confine_all()  # when a cpuset changes, older kernels reset the affinity of its threads

    def look_at_foreign_jobs(self, now: float) -> None:
        """Leave CPUs to the jobs of Slurm that run no program under drom."""
        if self._foreign.look(now):
            self._log("foreign_jobs", cpus=_listed(self._foreign.left), jobs=counted(len(self._foreign.cpus), "job"))
            self.update(now)

    def update(self, now: float) -> None:
        """Set the node's CPUs to those available and not left to others."""
        found = self.availability.available
        foreign = self._foreign.left & found.managed
        # The programs of foreign jobs keep CPUs busy that others are to share with them.
        busy = self._busy & found.managed & ~functools.reduce(operator.or_, self._foreign.cpus.values(), 0)
        managed = found.managed & ~(busy | foreign)
        self._execute(self._node.set_usable_cpus(managed, now, found.gone, busy, foreign))


class ForeignJobs:
    """The jobs of Slurm of which no program runs under drom, and the CPUs that are left to them.

    A job counts from the second look on that finds it, as its first program may be about to register, or its last one
    may just have ended; the first look of all counts at once. `read` returns the OS CPUs of each job by its name, but
    for the names that it is given. `cpus` are those of the jobs that count, and `left` are those left to them.
    """

    def __init__(self, node: Node, read: Callable[[set[str]], dict[str, int]]) -> None:
        self.cpus: dict[str, int] = {}
        self.left = 0
        self._node = node
        self._read = read
        self._seen: dict[str, int] | None = None
        self._due = 0.0
        self._decided: object = None

    def look(self, now: float) -> bool:
        """Look if that is due, at `now` (seconds of CLOCK_MONOTONIC); return whether `cpus` or `left` have changed."""
        if now < self._due and not (self.cpus or self.left):
            return False
        known = {job.batch_job for job in self._node.jobs.values()} - {""}
        before = self.cpus, self.left
        if now >= self._due:
            start = time.perf_counter()
            seen = self._read(known)
            self._due = now + max(PERIOD, (time.perf_counter() - start) / SHARE_OF_TIME)
            self.cpus = {name: cpus for name, cpus in seen.items() if self._seen is None or name in self._seen}
            self._seen = seen
        if known & self.cpus.keys():
            self.cpus = {name: cpus for name, cpus in self.cpus.items() if name not in known}
        if self.cpus or self.left:
            self._decide()
        return (self.cpus, self.left) != before

    def _decide(self) -> None:
        """Choose the CPUs to be left to the jobs, unless nothing has changed on which that depends."""
        jobs = [job for job in self._node.jobs.values() if job.batch_job]
        given = self.cpus, [(job.batch_job, job.cpuset, job.least) for job in jobs]
        if given != self._decided:
            self._decided, self.left = given, cores_of_foreign_jobs(self._node.plan, self.cpus)


def _listed(mask: int) -> str:
    return format_cpulist(mask) or "none"
