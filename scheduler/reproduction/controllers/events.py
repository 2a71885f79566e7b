# SPDX-License-Identifier: Apache-2.0
"""The events of many controllers on one store, in the order of time.

A controller works in turns, as `drom scheduler` does: it reads what nodes send, at most `MOST` messages and for at most
`TURN`; it stores each order of users; it places jobs first come first served, stores what nodes have sent and what was
placed, and then sends. Each order, and the rest of a turn, is one message to the store, or several if it changes more
than `ROWS` rows. Each answer of a node changes what is stored of its job, so that a turn that handles a part of a job's
answers has a message as well.

The first waiting job of a controller takes nodes of others while its own do not suffice: Algorithm 2 of the paper, with
compare-and-swap on a free list that returns the present one on failure. A job that misses too often in a row gives all
back, pauses and begins again, so that no two jobs wait for each other forever.

With `WHOLE` controllers do what `drom scheduler` does instead (`drom.scheduler.live.cluster.lending`): they offer idle
nodes in their free lists while others want some, and a job takes all that it needs by one transaction.

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
NONE, RANDOM, CACHED, RICHEST, MONITOR, WHOLE = range(6)
"""From whom nodes are taken: nobody; anyone; one of those whose cached free counts are not 0; the one of these with
most; the one with most of all, which a sorted map in the store knows; several at once, of those that offer some."""
SUBMIT, REPORT, STORE, LOOK, PROBE, TAKE, RETURN, CHOOSE, WAKE, SWAP, SWAPPED, SEEN, BACK = range(13)
"""Events: an order of jobs arrives; the nodes of a job have answered; a message of a turn, or of a job, is at the
store; a job that waits looks for nodes; nodes of a controller have come back, or its turn ends. Of `WHOLE`: a
transaction is at the store; it is answered; all see a free list; lent nodes have introduced themselves at home."""
QUEUED, STEALING, STARTED, ENDING, DONE = range(5)
"""Phases of a job."""
MESSAGES, CONFLICTS, RELEASES, STORE_BUSY, EVENTS, RANDOMS, SEQUENCE = range(7)
"""What `World.counts` has."""

TURN, MOST, READ = 0.05, 256, 0.35
"""The most seconds for which a turn reads what nodes send, and the most messages, as in `drom scheduler`, and the part
of a node's costs that reading is; the other part, to store and to send, has no bound. A job has two answers of each
node, of 35 microseconds."""
AGAIN = 0.05
"""Seconds until `drom scheduler` writes free lists again after another one has written one, unless it sees a change."""
ROWS = 100
"""The most rows of a message to the store. A change of more is first stored as a whole, by two messages, then in parts,
and then that is deleted."""
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
    start: float = 0.0
    """From a request to run a program until the node has answered that it runs."""
    launch: float = 0.0
    """From a request to run a program that does nothing until its end."""
    answer: float = 0.0
    """What a node of a job takes on the cores that nodes share, if they do."""
    submit: float = 0.0
    """From an order to the next one of the same user, for each job of it."""


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
    order: int
    """Jobs that a user submits at once."""
    cores: Floats
    """When each core is free that nodes share; empty if each has its own."""
    servers: Floats
    """When each core of the store is free."""
    nodes: int
    """The nodes of each controller, each of which sends a heartbeat a second."""
    # by controller
    began: Floats
    """When its last turn began."""
    beats: Ints
    """The heartbeats that came while its last turn went on."""
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
    # by controller, with `WHOLE`
    big: Ints
    big_end: Ints
    """The queue of the jobs that are larger than its partition, which hold up no others; linked by `behind`."""
    lists: Ints
    """Its free list: the nodes that it offers (which are not in `free`), whether it wants some, and the version."""
    known: Ints
    """The same as the others see it."""
    wish: Ints
    """Its free list as its transaction writes it: the version that it has seen, NOBODY if the list stays as it is."""
    chosen: Ints
    """The job for which its transaction takes nodes."""
    taken: Ints
    due: Ints
    """The loans that its transaction takes, and those that it gives back."""
    again: Floats
    """When it may write free lists again."""
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
    given: Ints
    """The version of the lender's free list that a transaction has seen."""
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
def answer(w: World, c: int, now: float, messages: int) -> tuple[float, float]:
    """Return when nodes of a controller begin and end to answer so many messages, on the cores that nodes share.

    Those of a controller have one of these cores; those of the only one have all.
    """
    first, count = (0, len(w.cores)) if len(w.free) == 1 else (c % max(1, len(w.cores)), min(1, len(w.cores)))
    begin = done = now
    for i in range(first, first + count):
        begin = max(begin, w.cores[i])
        w.cores[i] = max(now, w.cores[i]) + w.costs.answer * messages / 2 / count
        done = max(done, w.cores[i])
    return begin, done


@routine
def request(w: World, heap: Heap, j: int, now: float, at: tuple[float, float, float]) -> None:
    """Send a job's nodes a request, which they answer: that they have started it, or that it has left them.

    Nodes that share cores do that one after the other, in parts while a turn fits: `at` is when the first one begins
    and the time of each. The last time in it is when the end of a program is reported, which its first node does.
    """
    (begin, each, last), costs, starts = at, w.costs, w.phase[j] == STARTED
    w.left[j] = w.size[j] + 1 if starts else w.size[j] - 1
    ended = max(last, now + (costs.launch if starts else costs.agent))
    if w.loans[j] != NOBODY and w.options.pick != WHOLE:
        push(w, heap, reach(w, now, ended), REPORT, j, int(w.left[j]))
        return
    soonest = now + (costs.start if starts else costs.agent)
    count = w.size[j] if starts else w.left[j]
    turn = costs.message * w.rate[w.home[j]] + costs.store + costs.latency
    parts = max(1, min(SHARES, count, int(each * count / max(turn, 1e-9))))
    sent = 0
    for part in range(1, parts + 1):
        until = count * part // parts
        push(w, heap, max(soonest, begin + each * until), REPORT, j, int(until - sent))
        sent = until
    if starts:
        push(w, heap, ended, REPORT, j, 1)


@routine
def reach(w: World, now: float, done: float) -> float:
    """Return when a controller knows that nodes of others have answered a request, which they do at `done`."""
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
    """Continue a job whose nodes have all answered, at the end of the turn of its controller."""
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
def end_turn(w: World, heap: Heap, c: int, now: float) -> None:
    """Send what follows from a turn, and begin the next one if there is something to do."""
    w.turn[c] = NOBODY
    w.beats[c] = int((now - w.began[c]) * w.nodes)
    j, answers, programs = w.outbox[c], 0, 0
    while j != NOBODY:
        if w.phase[j] == STARTED or w.phase[j] == ENDING:
            answers += w.size[j] - (w.phase[j] == ENDING)
            programs += w.phase[j] == STARTED
        j = w.link[j]
    (begin, done), j = answer(w, c, now, answers), w.outbox[c]
    each = (done - begin) / max(1, answers + programs)
    ended = begin + each * answers
    w.outbox[c] = NOBODY
    while j != NOBODY:
        following = w.link[j]
        if w.phase[j] == STEALING:
            choose(w, heap, j, now)
        elif w.phase[j] == DONE:
            w.ended[j] = now
        else:
            ended += each * (w.phase[j] == STARTED)
            request(w, heap, j, now, (begin, each, ended))
            begin += each * (w.size[j] - (w.phase[j] == ENDING))
        j = following
    if w.options.pick != WHOLE or not exchange(w, heap, c, now):
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


# --- one transaction, as drom does ------------------------------------------------------------------------------------


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


# --- the loop ---------------------------------------------------------------------------------------------------------


@routine
def handle(w: World, heap: Heap, kind: int, who: int, more: int, now: float) -> None:  # noqa: PLR0917 - by position
    """Carry out an event."""
    if kind in (SUBMIT, REPORT):
        arrive(w, heap, kind, who, more, now)
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
    elif kind == RETURN or kind >= SWAP:
        handle_lists(w, heap, kind, who, more, now)
    elif more == w.stamp[who]:
        choose(w, heap, who, now)


@routine
def handle_lists(w: World, heap: Heap, kind: int, who: int, more: int, now: float) -> None:  # noqa: PLR0917 - as above
    """Carry out an event of lent nodes that return, or of `WHOLE`."""
    if kind == RETURN:
        returned(w, heap, who, now)
    elif kind == SWAP:
        swap(w, heap, who, now)
    elif kind == SWAPPED:
        swapped(w, heap, who, more, now)
    elif kind == SEEN:
        seen(w, heap, who, now)
    else:
        back(w, heap, who, now)


@routine
def submit_all(w: World, heap: Heap) -> None:
    """Add the events by which all orders arrive: jobs that one controller gets at one time."""
    first = 0
    for j in range(1, len(w.size) + 1):
        if j == len(w.size) or w.home[j] != w.home[first] or w.submitted[j] != w.submitted[first]:
            push(w, heap, w.submitted[first], SUBMIT, first, j - first)
            first = j


def run(w: World, most: int) -> float:
    """Carry out all events, at most so many, and return the time of the last one."""
    heap = [(0.0, 0, 0, 0, 0)]  # by which numba knows the type
    heap.pop()
    submit_all(w, heap)
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
