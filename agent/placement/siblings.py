# SPDX-License-Identifier: Apache-2.0
"""Pack the threads of tasks onto whole cores, as far as possible, if hardware threads are handed out one by one.

Within one memory domain the number of threads of each task is given. First every task keeps the cores that it has
whole; then, for each core that is left, the task that has most of it takes it whole, if its count allows. The remaining
threads of a task, fewer than a core has, go to cores where the task has some, then to cores of tasks of the same job,
then to an empty core. With cores of w threads a task of n threads in a domain gets floor(n / w) whole cores if no
thread there is fixed for another task.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dromlib.cpulist import cpus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.agent.model.cores import Cores
    from drom.agent.placement.ranks import RankKey, RankRequest


def pack_threads(requests: Sequence[RankRequest], masks: Mapping[RankKey, int], cores: Cores) -> dict[RankKey, int]:
    """Return `masks` with threads exchanged within memory domains so that each task has whole cores where possible.

    Requests with an exact mask keep it; every task keeps its number of threads in each domain.
    """
    fixed = mobile = 0
    for request in requests:
        fixed |= request.fixed
        mobile |= 0 if request.fixed else masks[request.key]
    whose = {cpu: request.key for request in requests if not request.fixed for cpu in cpus(masks[request.key])}
    together = {request.key: request.fixed for request in requests}
    for wholes in cores.siblings:
        if not mobile & sum(wholes):
            continue
        for key, mask in _Domain(wholes, whose, fixed).distribute().items():
            together[key] |= mask
    return together


class _Domain:
    """Divides the threads of the cores of one memory domain anew, given the present task of each thread."""

    def __init__(self, wholes: Sequence[int], whose: Mapping[int, RankKey], fixed: int) -> None:
        threads = [(core, cpu) for core in wholes if core & ~fixed for cpu in cpus(core & ~fixed)]
        self.core_of = {cpu: core for core, cpu in threads}
        self.open = dict.fromkeys(core for core in wholes if not core & fixed)
        self.empty = sum(self.open)
        self.free = sum(1 << cpu for _, cpu in threads)
        self.had: dict[RankKey, int] = {}
        parts: Counter[tuple[int, RankKey]] = Counter()
        for core, cpu in threads:
            if cpu in whose:
                self.had[whose[cpu]] = self.had.get(whose[cpu], 0) | 1 << cpu
                parts[core, whose[cpu]] += 1
        self.parts = sorted(parts.items(), key=lambda part: -part[1])
        self.lack = {key: mask.bit_count() for key, mask in self.had.items()}
        self.got = dict.fromkeys(self.had, 0)
        self.mates: dict[str, int] = {}

    def distribute(self) -> dict[RankKey, int]:
        """Return the mask of each task in this domain."""
        for (core, key), _ in self.parts:
            if core in self.open and core.bit_count() <= self.lack[key]:
                self._give(key, core)
        narrowest = min((core.bit_count() for core in self.open), default=0)
        for key in self.lack:
            while self.lack[key] >= narrowest and (core := self._fitting(self.lack[key])):
                self._give(key, core)
        for key in self.lack:
            while self.lack[key]:
                mates, free = self.mates.get(key[0], 0), self.free
                choice = free & self.had[key] or free & mates or free & self.empty or free
                self._give(key, choice & -choice)
        return self.got

    def _fitting(self, threads: int) -> int:
        """Return a core of at most `threads` threads, none of them assigned, or 0 if there is none."""
        return next((core for core in self.open if core.bit_count() <= threads), 0)

    def _give(self, key: RankKey, mask: int) -> None:
        core = self.core_of[mask.bit_length() - 1]
        self.open.pop(core, None)
        self.empty &= ~core
        self.free &= ~mask
        self.mates[key[0]] = self.mates.get(key[0], 0) | core
        self.got[key] |= mask
        self.lack[key] -= mask.bit_count()
