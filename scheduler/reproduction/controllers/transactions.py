# SPDX-License-Identifier: Apache-2.0
"""Jobs that take all nodes that they need by one transaction, as `drom scheduler` does: `WHOLE`.

Controllers offer idle nodes in their free lists while others want some (`drom.scheduler.live.cluster.lending`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import routine
from drom.scheduler.reproduction.controllers.turns import begin_turn, refresh, take_own
from drom.scheduler.reproduction.controllers.world import (
    AGAIN,
    BACK,
    CONFLICTS,
    NOBODY,
    SEEN,
    STARTED,
    STORE,
    SWAPPED,
    WAKE,
    ask,
    push,
    work,
)

if TYPE_CHECKING:
    from drom.scheduler.reproduction.controllers.world import Heap, World


@routine
def is_as_seen(w: World, loan: int) -> bool:
    """Return whether the free lists of the lenders of some loans are as a transaction has seen them."""
    while loan != NOBODY and w.lists[w.lender[loan], 2] == w.given[loan]:
        loan = w.further[loan]
    return loan == NOBODY


@routine
def swap(w: World, heap: Heap, c: int, now: float) -> None:
    """Carry out a transaction in the store, if all lists are as it has seen them."""
    done, taken, due = ask(w, now, 1, 0.0), w.taken[c], w.due[c]
    is_same = w.wish[c, 2] == NOBODY
    held = (is_same or w.wish[c, 2] == w.lists[c, 2]) and is_as_seen(w, taken) and is_as_seen(w, due)
    if held:
        if not is_same:
            w.free[c] += w.lists[c, 0] - w.wish[c, 0]
            w.lists[c, 0], w.lists[c, 1] = w.wish[c, 0], w.wish[c, 1]
            write(w, heap, c, done)
        hand_over(w, heap, c, done)
    push(w, heap, done, SWAPPED, c, int(held))


@routine
def hand_over(w: World, heap: Heap, c: int, done: float) -> None:
    """Move the nodes that a transaction takes and gives back."""
    j, loan = w.chosen[c], w.taken[c]
    while loan != NOBODY:
        w.lists[w.lender[loan], 0] -= w.amount[loan]
        w.missing[j] -= w.amount[loan]
        write(w, heap, int(w.lender[loan]), done)
        loan = w.further[loan]
    if j != NOBODY:
        w.loans[j], w.taken[c] = w.taken[c], NOBODY
        take_own(w, j)
    loan, w.due[c] = w.due[c], NOBODY
    while loan != NOBODY:
        r, following = int(w.lender[loan]), w.further[loan]
        write(w, heap, r, done)
        push(w, heap, work(w, r, done, w.costs.node / 2 * w.amount[loan]) + w.costs.agent, BACK, loan, 0)
        loan = following


@routine
def write(w: World, heap: Heap, r: int, done: float) -> None:
    """Count a version of a free list, which all controllers see when its writer has its answer."""
    w.lists[r, 2] += 1
    push(w, heap, done, SEEN, r, 0)


@routine
def swapped(w: World, heap: Heap, c: int, held: int, now: float) -> None:
    """Place the job that has got nodes, once they have introduced themselves; or try again later."""
    j, w.turn[c] = w.chosen[c], NOBODY
    if not held:
        w.counts[CONFLICTS] += 1
        while w.taken[c] != NOBODY:
            loan = w.taken[c]
            w.taken[c] = w.further[loan]
            w.further[loan], w.unused[0] = w.unused[0], loan
        w.again[c] = now + AGAIN * (w.known[c, 2] == w.lists[c, 2])
        w.known[c] = w.lists[c]
        push(w, heap, w.again[c], WAKE, c, 0)
    elif j != NOBODY:
        if w.first[c] == j:
            w.first[c] = w.behind[j]
        else:
            w.big[c] = w.behind[j]
        w.queued[c] -= 1
        w.phase[j], w.allocated[j], w.turn[c] = STARTED, now, 1
        w.link[j], w.outbox[c], w.load[c] = NOBODY, j, 0.0
        welcomes = w.costs.node / 2 * (w.size[j] - w.own[j])
        stores = work(w, c, now, welcomes + w.costs.message) + w.costs.agent
        push(w, heap, stores, STORE, c, w.robbed[c])
        return
    refresh(w, heap, c, now)


@routine
def seen(w: World, heap: Heap, r: int, now: float) -> None:
    """Show a free list to all controllers; those without other work begin a turn."""
    w.known[r] = w.lists[r]
    w.again[:] = 0.0
    for c in range(len(w.free)):
        begin_turn(w, heap, c, now)


@routine
def back(w: World, heap: Heap, loan: int, now: float) -> None:
    """Add nodes that were given back to those on which the lender schedules."""
    r = w.lender[loan]
    w.free[r] += w.amount[loan]
    w.further[loan], w.unused[0] = w.unused[0], loan
    begin_turn(w, heap, r, now)
