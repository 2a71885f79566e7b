# SPDX-License-Identifier: Apache-2.0
"""The state of many controllers on one store, and the costs of their events.

Each version of a free list has a number. Times are seconds. Pure loops that numba compiles (`events.compiled`).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

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
