# SPDX-License-Identifier: Apache-2.0
"""Turns of controllers: they read what nodes and users send, place jobs first come first served, store, and send.

A turn reads at most `MOST` messages, for at most `TURN`; it stores each order of users; it places jobs, stores what
nodes have sent and what was placed, and then sends. Each order, and the rest of a turn, is one message to the store, or
several if it changes more than `ROWS` rows. Each answer of a node changes what is stored of its job, so that a turn
that handles a part of a job's answers has a message as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import routine
from drom.scheduler.reproduction.controllers.world import (
    CHOOSE,
    CONFLICTS,
    DONE,
    ENDING,
    MOST,
    NOBODY,
    NONE,
    QUEUED,
    READ,
    RETURN,
    ROWS,
    STARTED,
    STEALING,
    STORE,
    SUBMIT,
    SWAP,
    TURN,
    WAKE,
    WHOLE,
    ask,
    push,
    work,
)

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints
    from drom.scheduler.reproduction.controllers.world import Heap, World


@routine
def append(first: Ints, last: Ints, link: Ints, c: int, j: int) -> None:
    """Add a job at the end of a controller's list, which is linked by `link`."""
    link[j] = NOBODY
    if first[c] == NOBODY:
        first[c] = j
    else:
        link[last[c]] = j
    last[c] = j


@routine
def arrive(w: World, heap: Heap, kind: int, j: int, count: int, now: float) -> None:  # noqa: PLR0917 - by position
    """Put an order, of so many jobs from this one on, or so many answers of its nodes, into its controller's inbox."""
    c = w.home[j]
    if kind == SUBMIT:
        for each in range(j, j + count):
            append(w.inbox, w.inbox_end, w.link, c, each)
    else:
        if not w.arrived[j]:
            append(w.inbox, w.inbox_end, w.link, c, j)
        w.arrived[j] += count
    begin_turn(w, heap, c, now)


@routine
def begin_turn(w: World, heap: Heap, c: int, now: float) -> None:
    """Handle what has arrived, and place jobs, unless a turn goes on."""
    if w.turn[c] != NOBODY:
        return
    costs, seconds, j = w.costs, 0.0, w.inbox[c]
    w.load[c] = 0.0
    each = costs.node / 2
    most = MOST * MOST // (MOST + w.beats[c])  # they are read in turn with answers
    most = max(1, min(most, int(TURN / w.rate[c] / max(each * READ, 1e-9))))
    w.began[c], w.beats[c] = now, 0
    rows = submitted = 0
    while j != NOBODY and most:
        following = w.link[j]
        if w.phase[j] == QUEUED:
            seconds += costs.job
            w.load[c] += costs.store_job
            if w.options.pick == WHOLE and w.size[j] > w.nodes:
                append(w.big, w.big_end, w.behind, c, j)
            else:
                append(w.first, w.last, w.behind, c, j)
            w.queued[c] += 1
            submitted += 1
        else:
            count = min(most, w.arrived[j])
            most -= count
            seconds += count * each
            w.load[c] += count * costs.store_node / 2
            w.arrived[j] -= count
            w.left[j] -= count
            rows += 1 + (w.phase[j] == STARTED and w.left[j] <= 1 < w.left[j] + count)  # an entry that it has started
            if w.arrived[j]:
                break
            if not w.left[j]:
                rows += 1
                end_round(w, heap, j, now)
        j = following
    w.inbox[c] = j
    orders = (submitted + w.order - 1) // w.order
    messages = orders * messages_of(2 * w.order) + messages_of(rows + 2 * place(w, c, now))
    if messages:
        w.turn[c] = messages
        push(w, heap, work(w, c, now, seconds + messages * costs.message), STORE, c, w.robbed[c])
    elif w.options.pick == WHOLE:
        exchange(w, heap, c, now)


@routine
def messages_of(rows: int) -> int:
    """Return the number of messages that store a change of so many rows: of jobs, and of entries in their histories."""
    return min(1, rows) if rows <= ROWS else 3 + (rows + ROWS - 1) // ROWS


@routine
def end_round(w: World, heap: Heap, j: int, now: float) -> None:
    """Continue a job after all its nodes have answered, at the end of the turn of its controller."""
    c = w.home[j]
    w.phase[j] = ENDING if w.phase[j] == STARTED and w.size[j] > 1 else DONE
    if w.phase[j] == DONE:
        give_back(w, heap, j, now)
    w.link[j] = w.outbox[c]
    w.outbox[c] = j


@routine
def place(w: World, c: int, now: float) -> int:
    """Place waiting jobs; the first without enough nodes steals. Return how many jobs have left the queue."""
    changed = 0
    while w.first[c] != NOBODY and w.thief[c] == NOBODY:
        j = w.first[c]
        if w.asked[j] < 0:
            w.asked[j] = now
        is_enough = w.size[j] <= w.free[c]
        if not is_enough and w.options.pick in (NONE, WHOLE):
            break
        w.first[c] = w.behind[j]
        w.queued[c] -= 1
        if is_enough:
            take_own(w, j)
            w.phase[j], w.allocated[j] = STARTED, now
        else:
            w.phase[j], w.thief[c] = STEALING, j
        w.link[j] = w.outbox[c]
        w.outbox[c] = j
        changed += 1
    return changed


@routine
def take_own(w: World, j: int) -> None:
    """Take nodes of the job's own controller, as many as are free and missing."""
    c = w.home[j]
    taken = min(w.missing[j], w.free[c])
    if taken:
        w.free[c] -= taken
        w.version[c] += 1
        w.own[j] += taken
        w.missing[j] -= taken


@routine
def give_back(w: World, heap: Heap, j: int, now: float) -> None:
    """Free all nodes that a job has; those of others by a message for each of these."""
    c = w.home[j]
    if w.own[j]:
        w.free[c] += w.own[j]
        w.version[c] += 1
    w.own[j], w.missing[j] = 0, w.size[j]
    loan = w.loans[j]
    w.loans[j] = NOBODY
    if w.options.pick == WHOLE:
        w.due[c] = joined(w, loan, w.due[c])
        return
    while loan != NOBODY:
        push(w, heap, work(w, c, now, w.costs.message), RETURN, loan, 0)
        loan = w.further[loan]


@routine
def stored(w: World, heap: Heap, c: int, robbed: int, now: float) -> None:
    """Answer a message of a turn, and the next one, if there are two; another one if a thief came first."""
    messages = w.turn[c]
    if w.robbed[c] != robbed:
        w.counts[CONFLICTS] += 1
        messages += 1
    push(w, heap, ask(w, now, messages, w.load[c]) + (messages - 1) * w.costs.latency, WAKE, c, 1)


@routine
def refresh(w: World, heap: Heap, c: int, now: float) -> None:
    """Wake the jobs that wait for nodes of a controller, if it has any, its own first."""
    j = w.thief[c]
    if w.free[c] and j != NOBODY and w.waits[j] != NOBODY:
        wake(w, heap, j, now)
    begin_turn(w, heap, c, now)
    offer(w, heap, c, now)


@routine
def offer(w: World, heap: Heap, c: int, now: float) -> None:
    """Wake the jobs that wait for nodes of a controller, if it has any: a message of the store for each."""
    while w.free[c] and w.waiters[c] != NOBODY:
        wake(w, heap, w.waiters[c], ask(w, now, 1, 0.0))


@routine
def wake(w: World, heap: Heap, j: int, now: float) -> None:
    """End the wait of a job, which then looks for nodes."""
    wait_no_more(w, j)
    w.stamp[j] += 1
    push(w, heap, now, CHOOSE, j, w.stamp[j])


@routine
def wait_no_more(w: World, j: int) -> None:
    """Remove a job from the list of those that wait for nodes of a controller, if it is in one."""
    c = w.waits[j]
    w.waits[j] = NOBODY
    if c < 0:
        return
    before = w.waiters[c]
    if before == j:
        w.waiters[c] = w.behind[j]
        return
    while w.behind[before] != j:
        before = w.behind[before]
    w.behind[before] = w.behind[j]


@routine
def joined(w: World, loans: int, more: int) -> int:
    """Return the first of some loans, after the last of which there are now `more`."""
    if loans == NOBODY:
        return more
    last = loans
    while w.further[last] != NOBODY:
        last = w.further[last]
    w.further[last] = more
    return loans


@routine
def exchange(w: World, heap: Heap, c: int, now: float) -> bool:
    """Give back, take and offer nodes by a transaction, and return whether there is one: see `lending.decide`."""
    if now < w.again[c]:
        return False
    if w.big[c] != NOBODY and w.asked[w.big[c]] < 0:
        w.asked[w.big[c]] = now
    offered, wants = w.known[c, 0], w.known[c, 1]
    j, idle, is_short = w.first[c], w.free[c] + offered, w.first[c] != NOBODY
    if j == NOBODY or NOBODY < w.big[c] < j:
        j = w.big[c]
    lacks = max(0, w.size[j] - idle) if j != NOBODY else 0
    takes = lacks > 0 and reserve(w, c, lacks)
    others = w.known[:, 1].sum() - wants
    w.chosen[c] = j if takes else NOBODY
    w.wish[c, 0] = 0 if is_short or takes else idle if others else offered
    w.wish[c, 1] = lacks > 0 and not takes
    is_same = w.wish[c, 0] == offered and w.wish[c, 1] == wants
    w.wish[c, 2] = NOBODY if is_same else w.known[c, 2]
    if is_same and not takes and w.due[c] == NOBODY:
        return False
    loan = w.due[c]
    while loan != NOBODY:
        w.given[loan] = w.known[w.lender[loan], 2]
        loan = w.further[loan]
    w.turn[c] = 1
    push(w, heap, work(w, c, now, w.costs.message), SWAP, c, 0)
    return True


@routine
def reserve(w: World, c: int, lacks: int) -> bool:
    """Add the nodes that a job lacks to a transaction, from those that offer most; return whether they suffice."""
    offers = w.known[:, 0].copy()
    offers[c] = 0
    if offers.sum() < lacks:
        return False
    while lacks:
        r, loan = int(offers.argmax()), w.unused[0]
        amount = min(lacks, offers[r])
        w.unused[0] = w.further[loan]
        w.lender[loan], w.amount[loan], w.given[loan], w.further[loan] = r, amount, w.known[r, 2], w.taken[c]
        w.taken[c] = loan
        offers[r] = 0
        lacks -= amount
    return True
