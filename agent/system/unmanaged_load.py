# SPDX-License-Identifier: Apache-2.0
"""The load of programs outside every task on each CPU, and the cores to leave to them.

The CPU time of an unmanaged thread is divided equally among the CPUs it may run on: a bound thread loads its CPU alone,
a free one loads all CPUs equally, since the kernel moves it to where there is room. A core is therefore judged by its
load above that of the least loaded one. Processes that start and end between two measurements are not seen.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.system import cpu_times
from drom.agent.system import proc as processes

from dromlib.cpulist import cpus, mask_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from drom.agent.system.proc import Identity

PERIOD = 2.0
"""Seconds between two measurements."""
BUSY = 0.05
"""Share of a CPU below which the threads of a process are not examined."""


class LoadMeter:
    """Measures the load of unmanaged programs between two calls of `look`, from ``/proc`` below `proc`.

    `mask_of_thread` returns the OS CPUs a thread may run on. Raises nothing for processes that end meanwhile.
    """

    def __init__(self, proc: str = "/proc", mask_of_thread: Callable[[int], int] | None = None) -> None:
        self._proc = proc
        self._mask_of = mask_of_thread or (lambda tid: mask_of(os.sched_getaffinity(tid)))
        self._ticks: dict[Identity, int] = {}
        self._threads: dict[int, int] = {}
        self._at: float | None = None

    def look(self, now: float, tasks: Collection[Identity]) -> dict[int, float]:
        """Return the share (0 to 1, or more if threads queue) of each OS CPU that unmanaged programs used.

        The time runs from the last call; the first call finds nothing. `tasks` are the first processes of tasks.
        """
        times = cpu_times.scan_times(self._proc)
        managed = times.below(tasks)
        ticks = {who: used for who, used in times.ticks.items() if who.pid not in managed}
        before, since = self._ticks, self._at
        self._ticks, self._at = ticks, now
        if since is None or now <= since:
            return {}
        second = os.sysconf("SC_CLK_TCK") * (now - since)
        shares = {who: (used - before[who]) / second for who, used in ticks.items() if who in before}
        marks = {f"DROM_TASK={who}".encode() for who in tasks}
        load: dict[int, float] = {}
        threads: dict[int, int] = {}
        for who, share in shares.items():
            if share >= BUSY and not marks & set(processes.environment(who.pid, self._proc)):
                self._spread(who.pid, share, load, threads)
        self._threads = threads
        return load

    def _spread(self, pid: int, share: float, load: dict[int, float], seen: dict[int, int]) -> None:
        """Add a process's `share` to the CPUs of its threads, in proportion to what each has used."""
        used = cpu_times.thread_times(pid, self._proc)
        seen |= used
        weights = {tid: ticks - self._threads.get(tid, 0) for tid, ticks in used.items()}
        total = sum(weights.values())
        for tid, weight in weights.items():
            try:
                mask = self._mask_of(tid) if weight > 0 else 0
            except OSError:
                continue
            for cpu in cpus(mask):
                load[cpu] = load.get(cpu, 0.0) + share * weight / total / mask.bit_count()


@dataclass(slots=True)
class BusyCoreFilter:
    """The decision which cores unmanaged programs keep busy: pure, with hysteresis.

    A core is avoided once its load has exceeded that of the least loaded one by `threshold` for `after` seconds, and
    used again once the excess has been less than half of that for as long.
    """

    threshold: float
    after: float
    avoided: set[int] = field(default_factory=set)
    _since: dict[int, float] = field(default_factory=dict)

    def decide(self, loads: Sequence[float], now: float) -> set[int]:
        """Return the indexes of the cores to avoid, given the load of each."""
        least = min(loads, default=0.0)
        for core, load in enumerate(loads):
            excess = load - least
            wrong = excess < self.threshold / 2 if core in self.avoided else excess >= self.threshold
            if not wrong:
                self._since.pop(core, None)
            elif now - self._since.setdefault(core, now) >= self.after:
                self.avoided ^= {core}
                del self._since[core]
        return set(self.avoided)


def per_core(load: Mapping[int, float], cores: Sequence[int], lost: int = 0) -> list[float]:
    """Return the load of the busiest CPU of each core (masks); cores in `lost` count as the least loaded one."""
    loads = {core: max((load.get(cpu, 0.0) for cpu in cpus(core)), default=0.0) for core in cores if core & ~lost}
    least = min(loads.values(), default=0.0)
    return [loads.get(core, least) for core in cores]


class LoadMonitor:
    """Measures the load each period; `cores` are masks. `load` is the last measurement, by OS CPU."""

    def __init__(self, avoidance: BusyCoreFilter, cores: Sequence[int], meter: LoadMeter | None = None) -> None:
        self.load: dict[int, float] = {}
        self._avoidance = avoidance
        self._cores = cores
        self._meter = meter or LoadMeter()
        self._avoided = 0
        self._next = 0.0

    def look(self, now: float, tasks: Collection[Identity], lost: int = 0) -> int | None:
        """Return the OS CPUs to avoid from now on if they have changed; None if not, or if no measurement is due.

        CPUs in `lost` do not exist any more, so nothing runs on them.
        """
        if not self._avoidance.threshold or now < self._next:
            return None
        self._next = now + PERIOD
        self.load = self._meter.look(now, tasks)
        avoided = sum(self._cores[core] for core in self._avoidance.decide(per_core(self.load, self._cores, lost), now))
        changed = avoided != self._avoided
        self._avoided = avoided
        return avoided if changed else None
