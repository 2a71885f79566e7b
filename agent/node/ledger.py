# SPDX-License-Identifier: Apache-2.0
"""The planned holder and the owner of each core, updated as the plan changes.

Cores are numbered in the order of `Cores`; masks are over OS CPU numbers.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from drom.agent.node.ownership import Owner, abandoned_cores, settle_owners

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from drom.agent.model.cores import Cores


class Move(NamedTuple):
    """A change of the target of a rank of job `job` from CPUs `old` to `new`."""

    job: str
    old: int
    new: int


class Ledger:
    """The holders and owners of all cores.

    `planned` is the mask of all targets; `holders` and `owners` name a job or None for each core. `owned` and `held`
    map each job that owns or holds any cores to the mask of these, as whole cores.
    """

    def __init__(self, cores: Cores) -> None:
        self.cores = cores
        self.planned = 0
        self.holders: list[Owner] = [None] * len(cores)
        self.owners: list[Owner] = [None] * len(cores)
        self.owned: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self._moved: dict[int, None] = {}
        """The cores that have changed holders since owners were settled."""

    def move(self, moves: Collection[Move]) -> None:
        """Record changes of targets. All targets must be disjoint, the new ones and those recorded before."""
        for job, old, new in moves:
            self.planned &= ~old
            for core in self.cores.numbers(old & ~new):
                if self.holders[core] == job:
                    self._pass_cores(core, None)
        for job, old, new in moves:
            self.planned |= new
            # A core of which the rank leaves some threads has lost its holder above.
            for core in self.cores.numbers(new & (self.cores.whole(old & ~new) | ~old)):
                self._pass_cores(core, job)

    def _pass_cores(self, core: int, new: Owner) -> None:
        old, mask = self.holders[core], self.cores.masks[core]
        self.holders[core] = new
        self._moved[core] = None
        _pass_on(self.held, mask, old, new)

    def settle(self, alive: Callable[[Owner], bool]) -> set[str]:
        """Update the owners from the holders; return the jobs that are `alive` and now own other cores.

        See `drom.agent.node.ownership`: only cores that have changed holders, or whose owner is gone, can change
        owners, except for exchanges between jobs that would lend and borrow at once.
        """
        for gone in [job for job in self.owned if not alive(job)]:
            self._moved |= dict.fromkeys(self.cores.numbers(self.owned[gone]))
        moved, self._moved = self._moved, {}
        heirs = {core: self.holders[core] for core in moved if not alive(self.owners[core])}
        left = abandoned_cores(Counter(heirs.values()), self._numbers_of, self.holders)
        changed = self.own(heirs | left)
        concerned = {job for core in moved for job in (self.owners[core], self.holders[core]) if job is not None}
        if any(map(self._lends_and_borrows, concerned)):
            changed |= self.own(settle_owners(self.owners, self.holders, alive))
        return {job for job in changed if alive(job)}

    def _numbers_of(self, job: Owner) -> Iterable[int]:
        return self.cores.numbers(self.owned.get(job, 0)) if job is not None else ()

    def _lends_and_borrows(self, job: str) -> bool:
        own, has = self.owned.get(job, 0), self.held.get(job, 0)
        return bool(own & ~has and has & ~own)

    def own(self, owners: Mapping[int, Owner]) -> set[str]:
        """Record new owners of cores, by number; return the jobs that own other cores than before."""
        changed = set()
        for core, new in owners.items():
            old, mask = self.owners[core], self.cores.masks[core]
            if old == new:
                continue
            self.owners[core] = new
            _pass_on(self.owned, mask, old, new)
            changed |= {job for job in (old, new) if job is not None}
        return changed


def _pass_on(masks: dict[str, int], mask: int, old: Owner, new: Owner) -> None:
    """Move a mask from job `old` to job `new` (None: no job); a job left with an empty mask is removed."""
    if old is not None:
        masks[old] &= ~mask
        if not masks[old]:
            del masks[old]
    if new is not None:
        masks[new] = masks.get(new, 0) | mask
