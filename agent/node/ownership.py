# SPDX-License-Identifier: Apache-2.0
"""Whose entitlement each core belongs to.

A core is owned by the job that took it while nobody owned it. A guest that runs on a shrunk job's core borrows it; when
the guest ends the core goes back to its owner. When the owner ends first, whoever holds the core becomes its owner
(decision D27 of the SD-Policy specification). A job never lends and borrows at once: where a re-layout would make it,
the two cores change owners, so every job keeps the number of cores that it owns. So does one that moves onto cores of
nobody's: as many of its own that nobody is on become nobody's.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Owner = str | None


def settle(owners: Sequence[Owner], holders: Sequence[Owner], alive: Callable[[Owner], bool]) -> dict[int, Owner]:
    """Return, by number, the owners of the cores that change hands once `holders` hold them.

    `owners` and `holders` name a job or None per core, in the same order; `alive` says which jobs still run.
    """
    apart = [core for core, (owner, holder) in enumerate(zip(owners, holders, strict=True)) if owner != holder]
    now = {core: owners[core] if alive(owners[core]) else holders[core] for core in apart}
    taken = Counter(now[core] for core in apart if not alive(owners[core]))
    now |= left_behind(taken, lambda job: [core for core in apart if owners[core] == job], holders)
    lent = [core for core in apart if now[core] != holders[core]]
    both = {now[core] for core in lent} & {holders[core] for core in lent} - {None}
    if both:
        _swap(now, holders, lent, both)
    return {core: owner for core, owner in now.items() if owner != owners[core]}


def left_behind(
    taken: Mapping[Owner, int], owned: Callable[[Owner], Iterable[int]], holders: Sequence[Owner]
) -> dict[int, Owner]:
    """Return the cores that become nobody's: of those that a job owned, as many as it has taken, where nobody is on."""
    found: list[int] = []
    for job, count in taken.items():
        if job is not None:
            found += [core for core in owned(job) if holders[core] is None][:count]
    return dict.fromkeys(found)


def _swap(now: dict[int, Owner], holders: Sequence[Owner], cores: Sequence[int], both: set[Owner]) -> None:
    """Let jobs that lend and borrow at once change owners of the two cores; all that is lent is among `cores`."""
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
