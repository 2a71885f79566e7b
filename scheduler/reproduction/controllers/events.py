# SPDX-License-Identifier: Apache-2.0
"""The events of many controllers on one store, in the order of time.

A controller works in turns, as `drom scheduler` does (`turns`). A job that lacks nodes takes some of other controllers:
one after the other (`stealing`), or all at once (`transactions`). Pure loops that numba compiles (`compiled`).
"""

from __future__ import annotations

import functools
import heapq
import sys
from typing import TYPE_CHECKING, Any

from drom.agent.system import numba_cache
from drom.scheduler import interface
from drom.scheduler.interface import routine
from drom.scheduler.reproduction.controllers import stealing, transactions, turns, world
from drom.scheduler.reproduction.controllers.stealing import choose, look, probe, returned, take
from drom.scheduler.reproduction.controllers.transactions import back, seen, swap, swapped
from drom.scheduler.reproduction.controllers.turns import arrive, exchange, refresh, stored
from drom.scheduler.reproduction.controllers.world import (
    DONE,
    ENDING,
    EVENTS,
    LOOK,
    NOBODY,
    PROBE,
    REPORT,
    RETURN,
    SEEN,
    STARTED,
    STEALING,
    STORE,
    SUBMIT,
    SWAP,
    SWAPPED,
    TAKE,
    WAKE,
    WHOLE,
    answer,
    push,
    request,
)

if TYPE_CHECKING:
    from drom.scheduler.reproduction.controllers.world import Heap, World


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
    modules = (sys.modules[__name__], stealing, transactions, turns, world, interface)
    return numba_cache.compiled("controllers", modules, run)[0]
