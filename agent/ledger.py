# SPDX-License-Identifier: Apache-2.0
"""Who is to hold each core and whose entitlement it is, kept up to date as the plan changes.

Cores are numbered in the order of `Cores`; masks are over OS CPU numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent.ownership import Owner, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agent.cores import Cores


class Move(NamedTuple):
    """The target of a rank of job `job` changes from CPUs `old` to `new`."""

    job: str
    old: int
    new: int


class Ledger:
    """`planned` is the mask of every target; `holders` and `owners` name a job or None for each core.

    `owned` is, for each job that owns any, the mask of its cores.
    """

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self.planned = 0
        self.holders: list[Owner] = [None] * len(cores)
        self.owners: list[Owner] = [None] * len(cores)
        self.owned: dict[str, int] = {}

    def move(self, moves: Collection[Move]) -> None:
        """Take in new targets that together are disjoint, as all that were taken in before."""
        for job, old, new in moves:
            self.planned &= ~old
            for core in self.cores.numbers(old & ~new):
                if self.holders[core] == job:
                    self.holders[core] = None
        for job, old, new in moves:
            self.planned |= new
            # A core of which some threads are left has been taken out of the book above.
            for core in self.cores.numbers(new & (self.cores.whole(old & ~new) | ~old)):
                self.holders[core] = job

    def settle(self, alive: Callable[[Owner], bool]) -> set[str]:
        """Bring the owners up to date with the holders; return the jobs that are `alive` and own other cores now."""
        return {job for job in self.own(settle(self.owners, self.holders, alive)) if alive(job)}

    def own(self, owners: Mapping[int, Owner]) -> set[str]:
        """Write down other owners of some cores, by number; return the jobs that own other cores than before."""
        changed = set()
        for core, new in owners.items():
            old, mask = self.owners[core], self.cores.masks[core]
            if old == new:
                continue
            self.owners[core] = new
            if old is not None:
                self.owned[old] &= ~mask
                changed.add(old)
            if new is not None:
                self.owned[new] = self.owned.get(new, 0) | mask
                changed.add(new)
        for job in [job for job in changed if not self.owned[job]]:
            del self.owned[job]
        return changed
