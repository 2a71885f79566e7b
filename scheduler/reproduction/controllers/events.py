# SPDX-License-Identifier: Apache-2.0
"""The events of many controllers on one store, in the order of time.

A controller works in turns, as `drom scheduler` does: it handles what has arrived, for at most `TURN`, stores that in
one message, places jobs first come first served, stores that in another one, and then sends. Each answer of a node
changes what is stored of its job, so that a turn that handles a part of a job's answers has a message as well.

The first waiting job of a controller takes nodes of others while its own do not suffice: Algorithm 2 of the paper, with
compare-and-swap on a free list that returns the present one on failure. A job that misses too often in a row gives all
back, pauses and begins again, so that no two jobs wait for each other forever.

Each version of a free list has a number. Times are seconds. Pure loops that numba compiles (`compiled`).
"""

from __future__ import annotations

import functools
import heapq
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.system import numba_cache
from drom.scheduler import interface
from drom.scheduler.interface import routine

if TYPE_CHECKING:
    from drom.scheduler.interface import Floats, Ints

NOBODY, ASLEEP = -1, -2
NONE, RANDOM, CACHED, RICHEST, MONITOR = range(5)
"""From whom nodes are taken: nobody; anyone; one of those whose cached free counts are not 0; the one of these with
most; the one with most of all, which a sorted map in the store knows."""
SUBMIT, REPORT, STORE, LOOK, PROBE, TAKE, RETURN, CHOOSE, WAKE = range(9)
"""Events: a job arrives; its nodes have answered; a message of a turn, or of a job, is at the store; a job that waits
looks for nodes; nodes of a controller have come back, or its turn ends."""
QUEUED, STEALING, STARTED, ENDING, DONE = range(5)
"""Phases of a job."""
MESSAGES, CONFLICTS, RELEASES, STORE_BUSY, EVENTS, RANDOMS, SEQUENCE = range(7)
"""What `World.counts` has."""

TURN, READ = 0.05, 0.2
"""The most seconds for which a turn reads answers, as in `drom scheduler`, and the part of a node's costs that this is;
the other part, to store and to send, has no bound. A message of an agent takes about 50 of 290 microseconds to read."""
SHARES = 8
"""The most parts in which the answers of a round arrive from nodes that share cores: one for each turn that fits."""

Heap = list[tuple[float, int, int, int, int]]
"""Events: the time, a number that orders those of one time, the kind, a controller, job or loan, and more."""


class Costs(NamedTuple):
    """Seconds of work and of waiting; those of controllers and of the store are CPU times."""

    message: float = 0.0
    """A controller, for each of its messages to the store."""
    job: float = 0.0
    """A controller, for a job."""
    node: float = 0.0
    """A controller, for each node of a job."""
    beat: float = 0.0
    """A controller, for the heartbeat of a node, once a second."""
    store: float = 0.0
    """The store, for a message."""
    store_job: float = 0.0
    """The store, for a job."""
    store_node: float = 0.0
    """The store, for each node of a job."""
    latency: float = 0.0
    """From a message to the store until its answer, besides the store's CPU time."""
    agent: float = 0.0
    """From a request to a node until its answer."""
    launch: float = 0.0
    """From a request to run a program that does nothing until its end."""
    answer: float = 0.0
    """What a node of a job takes on the cores that nodes share, if they do."""
    submit: float = 0.0
    """From a submission to the next one of the same user."""


class Options(NamedTuple):
    """How controllers take nodes of each other."""

    pick: int = RANDOM
    probes: int = 0
    """Controllers that are asked at once, for each job that waits, when no free nodes are known; 0: a single one."""
    late: bool = False
    """With `probes`: nodes are taken only when those that are known suffice, all by one message."""
    notify: bool = False
    """A job that finds no nodes waits until that controller has some, instead of sleeping."""
    watch: bool = False
    """The end of a job on nodes of others is reported by a watch; otherwise the store is polled."""
    spread: bool = False
    """Users submit at each controller, not through one place."""
    retries: int = 3
    sleep: float = 0.05
    """Seconds until a job looks again, and between two polls."""
    keep: float = 1.0
    """Seconds for which a cached free count is used."""


class World(NamedTuple):
    """The state: by controller, by job, and by loan. Links are numbers of jobs or loans, or NOBODY."""

    costs: Costs
    options: Options
    counts: Floats
    cores: Floats
    """When each core is free that nodes share; empty if each has its own."""
    servers: Floats
    """When each core of the store is free."""
    # by controller
    rate: Floats
    """How much longer its work takes because of heartbeats."""
    cpu: Floats
    busy: Floats
    free: Ints
    version: Ints
    robbed: Ints
    """How often others have changed its free list."""
    turn: Ints
    """The messages of its turn that are not answered yet; NOBODY between turns."""
    load: Floats
    """The store's work for what a turn stores."""
    inbox: Ints
    inbox_end: Ints
    outbox: Ints
    """The jobs that a turn handles, and those for which something follows when it ends, linked by `link`."""
    first: Ints
    last: Ints
    """The queue, linked by `behind`."""
    queued: Ints
    thief: Ints
    """Its job that takes nodes of others."""
    waiters: Ints
    """The jobs that wait for its nodes, linked by `behind`."""
    # by controller and entry of its cache
    who: Ints
    had: Ints
    at: Ints
    since: Floats
    # by job
    home: Ints
    size: Ints
    phase: Ints
    own: Ints
    missing: Ints
    tries: Ints
    target: Ints
    seen: Ints
    waits: Ints
    """The controller for whose nodes a job waits; ASLEEP; or NOBODY, while it asks for nodes."""
    stamp: Ints
    """How often a job was woken: events with an older stamp are void."""
    loans: Ints
    arrived: Ints
    """Answers of its nodes that have arrived, and are not handled yet."""
    left: Ints
    """Answers of the present round that are not handled yet."""
    link: Ints
    behind: Ints
    submitted: Floats
    asked: Floats
    """When a job was first in its queue."""
    allocated: Floats
    ended: Floats
    # by loan
    lender: Ints
    amount: Ints
    further: Ints
    unused: Ints
    """The first loan that is not in use; one entry."""


# --- resources --------------------------------------------------------------------------------------------------------


@routine
def push(w: World, heap: Heap, time: float, kind: int, who: int, more: int) -> None:  # noqa: PLR0917 - by position
    """Add an event."""
    w.counts[SEQUENCE] += 1
    heapq.heappush(heap, (time, int(w.counts[SEQUENCE]), kind, who, more))


@routine
def chance(w: World, below: int) -> int:
    """Return a random number from 0 to `below` - 1, by the generator of Park and Miller."""
    w.counts[RANDOMS] = float(int(w.counts[RANDOMS]) * 48271 % 2147483647)
    return int(w.counts[RANDOMS]) % below


@routine
def occupy(cores: Floats, now: float, seconds: float) -> float:
    """Add work to the first core that is free, and return when it ends."""
    core = cores.argmin()
    cores[core] = max(now, cores[core]) + seconds
    return float(cores[core])


@routine
def work(w: World, c: int, now: float, seconds: float) -> float:
    """Add work to a controller, and return when it ends."""
    w.busy[c] += seconds
    w.cpu[c] = max(now, w.cpu[c]) + seconds * w.rate[c]
    return float(w.cpu[c])


@routine
def ask(w: World, now: float, messages: int, load: float) -> float:
    """Send messages to the store, and return when the last answer is there."""
    seconds = messages * w.costs.store + load
    w.counts[MESSAGES] += messages
    w.counts[STORE_BUSY] += seconds
    return occupy(w.servers, now, seconds) + w.costs.latency


@routine
def answer(w: World, now: float, messages: int) -> float:
    """Return when nodes have answered so many messages, on the cores that they share, if they share any."""
    done = now
    for i in range(len(w.cores)):
        w.cores[i] = max(now, w.cores[i]) + w.costs.answer * messages / 2 / len(w.cores)
        done = max(done, w.cores[i])
    return done


@routine
def request(w: World, heap: Heap, j: int, now: float, done: float) -> None:
    """Send a job's nodes a request; those that share cores have answered at `done`, in parts while a turn fits."""
    w.left[j] = w.size[j] + 1 if w.phase[j] == STARTED else w.size[j] - 1
    least = now + (w.costs.launch if w.phase[j] == STARTED else w.costs.agent)
    parts, turn = 1, w.costs.message * w.rate[w.home[j]] + w.costs.store + w.costs.latency
    if w.loans[j] == NOBODY and done - now > turn:
        parts = min(SHARES, w.left[j], int((done - now) / max(turn, 1e-9)))
    sent = 0
    for part in range(1, parts + 1):
        count = w.left[j] * part // parts - sent
        sent += count
        push(w, heap, reach(w, now, j, max(least, now + (done - now) * part / parts)), REPORT, j, count)


@routine
def reach(w: World, now: float, j: int, done: float) -> float:
    """Return when the controller of a job knows that all nodes have answered a request, which they do at `done`."""
    if w.loans[j] == NOBODY:
        return done
    polls = 1 if w.options.watch else 1 + int((done - now) / w.options.sleep)
    ask(w, now, polls, 0.0)
    return (done if w.options.watch else now + polls * w.options.sleep) + w.costs.latency


# --- turns of a controller --------------------------------------------------------------------------------------------


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
def arrive(w: World, heap: Heap, j: int, answers: int, now: float) -> None:
    """Put a job, or so many answers of its nodes, into the inbox of its controller."""
    c = w.home[j]
    if not w.arrived[j]:
        append(w.inbox, w.inbox_end, w.link, c, j)
    w.arrived[j] += answers
    begin_turn(w, heap, c, now)


@routine
def begin_turn(w: World, heap: Heap, c: int, now: float) -> None:
    """Handle what has arrived, and place jobs, unless a turn goes on."""
    if w.turn[c] != NOBODY:
        return
    costs, seconds, j = w.costs, 0.0, w.inbox[c]
    messages = 0 if j == NOBODY else 1
    w.load[c] = 0.0
    time = TURN / w.rate[c]
    while j != NOBODY and time > 0:
        following = w.link[j]
        if w.phase[j] == QUEUED:
            seconds += costs.job
            w.load[c] += costs.store_job
            append(w.first, w.last, w.behind, c, j)
            w.queued[c] += 1
        else:
            count, each = w.arrived[j], costs.node / 2
            if count * each * READ > time:
                count = max(1, int(time / each / READ))
            time -= count * each * READ
            seconds += count * each
            w.load[c] += count * costs.store_node / 2
            w.arrived[j] -= count
            w.left[j] -= count
            if w.arrived[j]:
                break
            if not w.left[j]:
                end_round(w, heap, j, now)
        j = following
    w.inbox[c] = j
    messages += place(w, c, now)
    if messages:
        w.turn[c] = messages
        push(w, heap, work(w, c, now, seconds + messages * costs.message), STORE, c, w.robbed[c])


@routine
def end_round(w: World, heap: Heap, j: int, now: float) -> None:
    """Continue a job whose nodes have all answered, at the end of the turn of its controller."""
    c = w.home[j]
    w.phase[j] = ENDING if w.phase[j] == STARTED and w.size[j] > 1 else DONE
    if w.phase[j] == DONE:
        give_back(w, heap, j, now)
    w.link[j] = w.outbox[c]
    w.outbox[c] = j


@routine
def place(w: World, c: int, now: float) -> int:
    """Place waiting jobs; the first without enough nodes steals. Return 1 if any job left the queue, otherwise 0."""
    changed = 0
    while w.first[c] != NOBODY and w.thief[c] == NOBODY:
        j = w.first[c]
        if w.asked[j] < 0:
            w.asked[j] = now
        is_enough = w.size[j] <= w.free[c]
        if not is_enough and w.options.pick == NONE:
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
        changed = 1
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
def end_turn(w: World, heap: Heap, c: int, now: float) -> None:
    """Send what follows from a turn, and begin the next one if there is something to do."""
    w.turn[c] = NOBODY
    j, messages = w.outbox[c], 0
    while j != NOBODY:
        if w.phase[j] == STARTED or w.phase[j] == ENDING:
            messages += w.size[j] - (w.phase[j] == ENDING)
        j = w.link[j]
    done, j = answer(w, now, messages), w.outbox[c]
    w.outbox[c] = NOBODY
    while j != NOBODY:
        following = w.link[j]
        if w.phase[j] == STEALING:
            choose(w, heap, j, now)
        elif w.phase[j] == DONE:
            w.ended[j] = now
        else:
            request(w, heap, j, now, done)
        j = following
    refresh(w, heap, c, now)


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


# --- stealing ---------------------------------------------------------------------------------------------------------


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
    request(w, heap, j, now, answer(w, now, w.size[j]))
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


# --- the loop ---------------------------------------------------------------------------------------------------------


@routine
def handle(w: World, heap: Heap, kind: int, who: int, more: int, now: float) -> None:  # noqa: PLR0917 - by position
    """Carry out an event."""
    if kind in (SUBMIT, REPORT):
        arrive(w, heap, who, more, now)
    elif kind == STORE:
        stored(w, heap, who, more, now)
    elif kind == WAKE and more:
        end_turn(w, heap, who, now)
    elif kind == WAKE:
        refresh(w, heap, who, now)
    elif kind == LOOK:
        look(w, heap, who, now)
    elif kind == PROBE:
        probe(w, heap, who, now)
    elif kind == TAKE:
        take(w, heap, who, now)
    elif kind == RETURN:
        returned(w, heap, who, now)
    elif more == w.stamp[who]:
        choose(w, heap, who, now)


def run(w: World, most: int) -> float:
    """Carry out all events, at most so many, and return the time of the last one."""
    heap = [(0.0, 0, 0, 0, 0)]  # by which numba knows the type
    heap.pop()
    for j in range(len(w.size)):
        push(w, heap, w.submitted[j], SUBMIT, j, 0)
    now = 0.0
    while heap and w.counts[EVENTS] < most:
        now, _, kind, who, more = heapq.heappop(heap)
        w.counts[EVENTS] += 1
        handle(w, heap, kind, who, more, now)
    return now


@functools.cache
def compiled() -> Any:  # noqa: ANN401 - numba is untyped
    """Return `run` compiled at its first call, or from numba's cache; as it is without numba."""
    return numba_cache.compiled("controllers", (sys.modules[__name__], interface), run)[0]
