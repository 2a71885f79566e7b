# SPDX-License-Identifier: Apache-2.0
"""The planned holder and the owner of each core, updated as the plan changes.

Cores are numbered in the order of `Cores`; masks are over OS CPU numbers. The owner of a core is the job with the
entitlement to it.

The job that takes a core without an owner becomes its owner. A guest that runs on a shrunk job's core borrows it; when
the guest ends, the core goes back to its owner. If the owner ends first, the holder of the core becomes its owner
(decision D27 of the SD-Policy specification). A job never lends and borrows at once: if a re-layout would make it do
so, the two cores exchange owners, so every job keeps the number of cores that it owns. A job that moves onto cores
without an owner keeps that number too: as many of its own cores without a holder lose their owner.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from drom.agent.model.cores import Cores

Owner = str | None


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

        Only cores that have changed holders, or whose owner is gone, can change owners, except for exchanges between
        jobs that would lend and borrow at once.
        """
        for gone in [job for job in self.owned if not alive(job)]:
            self._moved |= dict.fromkeys(self.cores.numbers(self.owned[gone]))
        moved, self._moved = self._moved, {}
        heirs = {core: self.holders[core] for core in moved if not alive(self.owners[core])}
        left = _abandoned_cores(Counter(heirs.values()), self._numbers_of, self.holders)
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


def settle_owners(
    owners: Sequence[Owner], holders: Sequence[Owner], alive: Callable[[Owner], bool]
) -> dict[int, Owner]:
    """Return, by number, the new owners of the cores that change owners once `holders` hold them.

    `owners` and `holders` name a job or None per core, in the same order; `alive` returns whether a job still runs.
    """
    apart = [core for core, (owner, holder) in enumerate(zip(owners, holders, strict=True)) if owner != holder]
    now = {core: owners[core] if alive(owners[core]) else holders[core] for core in apart}
    taken = Counter(now[core] for core in apart if not alive(owners[core]))
    now |= _abandoned_cores(taken, lambda job: [core for core in apart if owners[core] == job], holders)
    lent = [core for core in apart if now[core] != holders[core]]
    both = {now[core] for core in lent} & {holders[core] for core in lent} - {None}
    if both:
        _swap(now, holders, lent, both)
    return {core: owner for core, owner in now.items() if owner != owners[core]}


def _abandoned_cores(
    taken: Mapping[Owner, int], owned: Callable[[Owner], Iterable[int]], holders: Sequence[Owner]
) -> dict[int, Owner]:
    """Return the cores that lose their owner, mapped to None.

    Of the cores without a holder that a job owned, these are as many as it has taken (`taken`, by job).
    """
    found: list[int] = []
    for job, count in taken.items():
        if job is not None:
            found += [core for core in owned(job) if holders[core] is None][:count]
    return dict.fromkeys(found)


def _swap(now: dict[int, Owner], holders: Sequence[Owner], cores: Sequence[int], both: set[Owner]) -> None:
    """Exchange, in `now`, the owners of two cores wherever a job in `both` lends one and borrows the other.

    `both` are the jobs that lend and borrow at once; all lent cores are among `cores`.
    """
    lent: dict[Owner, list[int]] = {job: [core for core in cores if now[core] == job] for job in both}
    for core in cores:
        holder, lender = holders[core], now[core]
        if lender == holder or not lent.get(holder):
            continue
        other = lent[holder].pop()
        now[core], now[other] = holder, lender
        if lender in lent:
            lent[lender].remove(core)
            if holders[other] != lender:
                lent[lender].append(other)
