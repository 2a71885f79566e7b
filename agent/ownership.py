# SPDX-License-Identifier: Apache-2.0
"""Whose entitlement each core belongs to.

A core is owned by the job that took it while nobody owned it. A guest that runs on a shrunk job's core borrows it; when
the guest ends the core goes back to its owner. When the owner ends first, whoever holds the core becomes its owner
(decision D27 of the SD-Policy specification). A job never lends and borrows at once: where a re-layout would make it,
the two cores change owners, so every job keeps the number of cores that it owns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Owner = str | None


def settle(owners: Sequence[Owner], holders: Sequence[Owner], alive: set[str]) -> list[Owner]:
    """Return the owner of each core once `holders` hold them.

    `owners` and `holders` name a job or None per core, in the same order; `alive` are the jobs that still run.
    """
    now = [owner if owner in alive else None for owner in owners]
    now = [holder if owner is None else owner for owner, holder in zip(now, holders, strict=True)]
    lent: dict[str, list[int]] = {}
    for core, (owner, holder) in enumerate(zip(now, holders, strict=True)):
        if owner is not None and owner != holder:
            lent.setdefault(owner, []).append(core)
    for core, holder in enumerate(holders):
        if holder is None or now[core] == holder or not lent.get(holder):
            continue
        other = lent[holder].pop()
        lender = now[core]
        now[core], now[other] = holder, lender
        if lender is not None:
            lent[lender].remove(core)
            if holders[other] != lender:
                lent[lender].append(other)
    return now
