# SPDX-License-Identifier: Apache-2.0
"""Jobs that take nodes of other controllers one after the other: Algorithm 2 of the paper, and its variants.

The first waiting job of a controller takes nodes of others while its own do not suffice, with compare-and-swap on a
free list that returns the present one on failure. A job that misses too often in a row gives all back, pauses and
begins again, so that no two jobs wait for each other forever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.interface import routine
from drom.scheduler.reproduction.controllers.turns import begin_turn, give_back, offer, take_own, wait_no_more
from drom.scheduler.reproduction.controllers.world import (
    ASLEEP,
    CACHED,
    CHOOSE,
    CONFLICTS,
    LOOK,
    MONITOR,
    NOBODY,
    PROBE,
    RELEASES,
    RICHEST,
    STARTED,
    TAKE,
    WAKE,
    answer,
    ask,
    chance,
    push,
    request,
    work,
)

if TYPE_CHECKING:
    from drom.scheduler.reproduction.controllers.world import Heap, World


@routine
def choose(w: World, heap: Heap, j: int, now: float) -> None:
    """Take what is free here, and ask another controller for what is missing; or begin, if nothing is."""
    c, options = w.home[j], w.options
    wait_no_more(w, j)
    if not options.late or w.free[c] >= w.size[j]:
        take_own(w, j)
    if not w.missing[j]:
        begin(w, heap, j, now)
        return
    done = work(w, c, now, w.costs.message)
    entry = cached(w, c, now) if options.pick in (CACHED, RICHEST) else NOBODY
    if entry != NOBODY and (not options.late or known(w, c, now) >= w.size[j]):
        w.target[j], w.seen[j] = w.who[c, entry], w.at[c, entry]
        push(w, heap, done, TAKE, j, 0)
    elif options.probes:
        push(w, heap, done, PROBE, j, 0)
    else:
        w.target[j] = other(w, c)
        push(w, heap, done, LOOK, j, 0)


@routine
def begin(w: World, heap: Heap, j: int, now: float) -> None:
    """Start a job that has all its nodes, so that the next one of its controller is considered."""
    c = w.home[j]
    w.phase[j], w.allocated[j], w.thief[c] = STARTED, now, NOBODY
    begun, done = answer(w, c, now, w.size[j])
    request(w, heap, j, now, (begun, 0.0, done))
    begin_turn(w, heap, c, now)


@routine
def other(w: World, c: int) -> int:
    """Return another controller: any, or the one with most free nodes, if the store knows that."""
    if w.options.pick != MONITOR:
        return (c + 1 + chance(w, len(w.free) - 1)) % len(w.free)
    kept, w.free[c] = w.free[c], NOBODY
    found = int(w.free.argmax())
    w.free[c] = kept
    return found


@routine
def cached(w: World, c: int, now: float) -> int:
    """Return the entry of the cache from which nodes are to be taken, NOBODY if none is known to have any."""
    size, best = w.who.shape[1], NOBODY
    begin = chance(w, size)
    for i in range(size):
        entry = (begin + i) % size
        if not w.had[c, entry] or w.since[c, entry] + w.options.keep < now:
            continue
        if w.options.pick == CACHED:
            return int(entry)
        if best == NOBODY or w.had[c, entry] > w.had[c, best]:
            best = entry
    return best


@routine
def known(w: World, c: int, now: float) -> int:
    """Return how many nodes are free here and, by the cache, elsewhere."""
    total = w.free[c]
    for entry in range(w.who.shape[1]):
        if w.since[c, entry] + w.options.keep >= now:
            total += w.had[c, entry]
    return int(total)


@routine
def remember(w: World, c: int, r: int, now: float) -> None:
    """Put the free list of a controller into the cache of another one, in place of the oldest entry."""
    entry = 0
    for i in range(w.who.shape[1]):
        if w.who[c, i] == r:
            entry = i
            break
        if w.since[c, i] < w.since[c, entry]:
            entry = i
    w.who[c, entry], w.had[c, entry], w.at[c, entry], w.since[c, entry] = r, w.free[r], w.version[r], now


@routine
def look(w: World, heap: Heap, j: int, now: float) -> None:
    """Read the free list of a controller, and decide."""
    c, done = w.home[j], ask(w, now, 1, 0.0)
    if w.options.pick == MONITOR:
        w.target[j] = other(w, c)
    remember(w, c, w.target[j], now)
    decide(w, heap, j, w.free[w.target[j]], done)


@routine
def probe(w: World, heap: Heap, j: int, now: float) -> None:
    """Read the free lists of several controllers at once, and decide on the one with most."""
    c, best = w.home[j], 0
    asked = min(w.options.probes * (1 + w.queued[c]), w.who.shape[1])
    done = ask(w, now, asked, 0.0)
    for _ in range(asked):
        r = other(w, c)
        remember(w, c, r, now)
        if w.free[r] >= best:
            w.target[j], best = r, w.free[r]
    decide(w, heap, j, best, done)


@routine
def decide(w: World, heap: Heap, j: int, amount: int, now: float) -> None:
    """Take nodes of the target, which has so many; or wait."""
    c = w.home[j]
    w.seen[j] = w.version[w.target[j]]
    if amount and (not w.options.late or known(w, c, now) >= w.size[j]):
        push(w, heap, work(w, c, now, w.costs.message), TAKE, j, 0)
    else:
        miss(w, heap, j, now)


@routine
def take(w: World, heap: Heap, j: int, now: float) -> None:
    """Compare and swap: take nodes of the target unless its free list has changed, of which the answer has the new."""
    if w.options.late:
        take_all(w, heap, j, now)
        return
    c, r, done = w.home[j], w.target[j], ask(w, now, 1, 0.0)
    if w.version[r] != w.seen[j]:
        w.counts[CONFLICTS] += 1
        remember(w, c, r, now)
        decide(w, heap, j, w.free[r], done)
        return
    borrow(w, j, r)
    remember(w, c, r, now)
    w.tries[j] = 0
    choose(w, heap, j, done)


@routine
def take_all(w: World, heap: Heap, j: int, now: float) -> None:
    """Take all nodes that a job needs unless one of the free lists that are known has changed."""
    c, done, changed = w.home[j], ask(w, now, 1, 0.0), False
    for entry in range(w.who.shape[1]):
        r = w.who[c, entry]
        if r != NOBODY and w.had[c, entry] and w.at[c, entry] != w.version[r]:
            changed = True
            remember(w, c, r, now)
    if changed:
        w.counts[CONFLICTS] += 1
        decide(w, heap, j, 1, done)
        return
    take_own(w, j)
    for entry in range(w.who.shape[1]):
        if w.missing[j] and w.had[c, entry] and w.free[w.who[c, entry]]:
            borrow(w, j, w.who[c, entry])
            remember(w, c, w.who[c, entry], now)
    choose(w, heap, j, done)


@routine
def borrow(w: World, j: int, r: int) -> None:
    """Move free nodes of a controller to a job, as many as are missing."""
    amount, loan = min(w.missing[j], w.free[r]), w.unused[0]
    w.unused[0] = w.further[loan]
    w.lender[loan], w.amount[loan], w.further[loan] = r, amount, w.loans[j]
    w.loans[j] = loan
    w.free[r] -= amount
    w.version[r] += 1
    w.robbed[r] += 1
    w.missing[j] -= amount


@routine
def returned(w: World, heap: Heap, loan: int, now: float) -> None:
    """Put nodes back into the free list of their controller, which learns of it."""
    r = w.lender[loan]
    w.free[r] += w.amount[loan]
    w.version[r] += 1
    w.robbed[r] += 1
    w.further[loan], w.unused[0] = w.unused[0], loan
    push(w, heap, ask(w, now, 1, 0.0), WAKE, r, 0)


@routine
def miss(w: World, heap: Heap, j: int, now: float) -> None:
    """Wait after nothing was found; after too many times in a row give all back first, and wait at random."""
    w.tries[j] += 1
    options, r = w.options, w.target[j]
    if w.tries[j] > options.retries:
        let_go(w, heap, j, now)
    elif options.notify:
        w.waits[j], w.behind[j] = r, w.waiters[r]
        w.waiters[r] = j
        push(w, heap, now + options.sleep * options.retries, CHOOSE, j, w.stamp[j])
    else:
        w.waits[j] = ASLEEP
        push(w, heap, now + options.sleep, CHOOSE, j, w.stamp[j])


@routine
def let_go(w: World, heap: Heap, j: int, now: float) -> None:
    """Give all nodes back, and begin again after a random pause."""
    w.counts[RELEASES] += 1
    done = ask(w, now, 1, 0.0)
    give_back(w, heap, j, now)
    w.tries[j], w.waits[j] = 0, ASLEEP
    push(w, heap, done + w.options.sleep * (1 + chance(w, 1000) / 500), CHOOSE, j, w.stamp[j])
    offer(w, heap, w.home[j], done)
