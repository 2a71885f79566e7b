# SPDX-License-Identifier: Apache-2.0
"""The owner of each core: the job with the entitlement to it.

The job that takes a core without an owner becomes its owner. A guest that runs on a shrunk job's core borrows it; when
the guest ends, the core goes back to its owner. If the owner ends first, the holder of the core becomes its owner
(decision D27 of the SD-Policy specification). A job never lends and borrows at once: if a re-layout would make it do
so, the two cores exchange owners, so every job keeps the number of cores that it owns. A job that moves onto cores
without an owner keeps that number too: as many of its own cores without a holder lose their owner.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Owner = str | None


def settle_owners(
    owners: Sequence[Owner], holders: Sequence[Owner], alive: Callable[[Owner], bool]
) -> dict[int, Owner]:
    """Return, by number, the new owners of the cores that change owners once `holders` hold them.

    `owners` and `holders` name a job or None per core, in the same order; `alive` returns whether a job still runs.
    """
    apart = [core for core, (owner, holder) in enumerate(zip(owners, holders, strict=True)) if owner != holder]
    now = {core: owners[core] if alive(owners[core]) else holders[core] for core in apart}
    taken = Counter(now[core] for core in apart if not alive(owners[core]))
    now |= abandoned_cores(taken, lambda job: [core for core in apart if owners[core] == job], holders)
    lent = [core for core in apart if now[core] != holders[core]]
    both = {now[core] for core in lent} & {holders[core] for core in lent} - {None}
    if both:
        _swap(now, holders, lent, both)
    return {core: owner for core, owner in now.items() if owner != owners[core]}


def abandoned_cores(
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
