# SPDX-License-Identifier: Apache-2.0
"""Layouts of a job's cores over the sockets of a node: their names, their conditions, and the ways to satisfy them.

A layout applies to a group: each task of a compact job by itself, all tasks of a spread or per-socket job together.
Constants: c cores for the group; n(s) cores of socket s; l(s) = min(n(s), N) with per-socket=N, n(s) otherwise.
Variable: x(s), the group's cores in socket s. A group lies as asked if

    compact, per-socket=N   x(s) <= l(s), and no fewer sockets with their l(s) hold c cores
    spread                  x(s) >= max(x) - 1, or x(s) = n(s): as equal as the sockets' sizes allow

Amounts are given per socket, in the order of the machine's packages that have usable cores. The node's unit defines
whether a core here is a whole core or a hardware thread.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from itertools import accumulate, combinations, takewhile
from typing import TYPE_CHECKING

from drom.agent.model.copies import Value
from drom.agent.text import WordError

from dromlib.cpulist import MAX_CPUS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS = ("default", "compact", "spread", "per_socket")
UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class Layout(Value):
    """A requested layout: `per_socket` counts cores (kind per_socket only); a `strict` one waits until it fits."""

    kind: str = "default"
    per_socket: int = 0
    strict: bool = False

    def __str__(self) -> str:
        """Return the text of ``--distribution``: compact, spread or per-socket=N, with ``!`` when strict."""
        name = f"per-socket={self.per_socket}" if self.kind == "per_socket" else self.kind
        return name + "!" * self.strict

    @property
    def limit(self) -> int:
        """The most cores a group should have in one socket."""
        return self.per_socket if self.kind == "per_socket" else UNLIMITED


ANY = Layout()
"""No layout was requested."""


def most(layout: Layout, sizes: Sequence[int]) -> int:
    """Return the most cores that a job of this layout can have on sockets of these sizes."""
    return sum(min(size, layout.limit) for size in sizes)


def sockets_needed(count: int, limits: Sequence[int]) -> int:
    """Return the least number of sockets that hold `count` cores within their limits; all sockets if they do not."""
    used = 0
    for limit in sorted(limits, reverse=True):
        if count <= 0:
            break
        count -= limit
        used += 1
    return used


def is_satisfied(layout: Layout, amounts: Sequence[int], sizes: Sequence[int]) -> bool:
    """Return whether a group with `amounts` cores per socket satisfies its layout."""
    if layout.kind == "default":
        return True
    if layout.kind == "spread":
        top = max(amounts)
        return all(amount >= top - 1 or amount == size for amount, size in zip(amounts, sizes, strict=True))
    limits = [min(size, layout.limit) for size in sizes]
    within = all(amount <= limit for amount, limit in zip(amounts, limits, strict=True))
    return within and sum(amount > 0 for amount in amounts) <= sockets_needed(sum(amounts), limits)


def exact_amounts(
    layout: Layout, count: int, room: Sequence[int], sizes: Sequence[int], order: Sequence[int]
) -> Iterator[list[int]]:
    """Yield every way to give a group `count` cores as its layout asks, with `room` cores available in each socket.

    `order` lists the sockets, the preferred ones first; ways that use these come first.
    """
    if layout.kind == "spread":
        found = _evenly(count, room, [0] * len(room), order)
    else:
        limits = [min(layout.limit, free) for free in room]
        least = sockets_needed(count, [min(layout.limit, size) for size in sizes])
        found = _in_sockets(count, limits, least, order)
    # The ways differ in which socket has how many cores; all of them are as asked, or none is.
    yield from takewhile(lambda way: is_satisfied(layout, way, sizes), found)


def nearest_amounts(
    layout: Layout, count: int, room: Sequence[int], there: Sequence[int], order: Sequence[int]
) -> list[int]:
    """Return the way nearest to what the layout asks, with `room` cores available in each socket.

    `there` are further cores of the group per socket, those of tasks that may not move. Spread: as equal as the room
    allows. Otherwise: as few sockets as the room allows; if per-socket=N does not hold the cores, N is exceeded by as
    little as possible. `room` must hold `count` cores.
    """
    if layout.kind == "spread":
        return next(_evenly(count, room, there, order))
    limit = min(layout.limit, count + max(there))
    while True:
        limits = [max(0, min(limit - had, free)) for had, free in zip(there, room, strict=True)]
        if sum(limits) >= count:
            return next(_in_sockets(count, limits, sockets_needed(count, limits), order))
        limit += 1


def distance(layout: Layout, way: Sequence[int], there: Sequence[int]) -> tuple[int, ...]:
    """Return how far a way is from what the layout asks: of ways with equally many cores the least is the nearest.

    Spread: the sockets' cores, the most first. Otherwise: by how much N is exceeded, then how many sockets are used.
    """
    every = [amount + had for amount, had in zip(way, there, strict=True)]
    if layout.kind == "spread":
        return tuple(sorted(every, reverse=True))
    used = [cores for cores, amount in zip(every, way, strict=True) if amount]
    return max(0, max(used, default=0) - layout.limit), len(used)


def _in_sockets(count: int, limits: Sequence[int], used: int, order: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ways to take `count` cores from exactly `used` sockets, the preferred sockets filled first."""
    for chosen in _choices(count, limits, used, [s for s in order if limits[s] > 0]):
        yield from _fill(count, chosen, limits)


def _choices(count: int, limits: Sequence[int], used: int, able: Sequence[int]) -> Iterator[list[int]]:
    """Yield every choice of `used` of the sockets `able` that holds `count` cores, choices of the first sockets first.

    The depth-first search enters no branch without a solution, so it takes no longer if most choices hold too few.
    """

    @functools.cache
    def most(first: int) -> list[int]:
        """Return, by number of sockets, the most cores that as many of the sockets from index `first` on hold."""
        return [0, *accumulate(sorted((limits[s] for s in able[first:]), reverse=True))]

    chosen: list[int] = []
    left, place = count, 0
    while True:
        more = used - len(chosen)
        if not more:
            yield [able[i] for i in chosen]
        elif place + more <= len(able) and most(place)[more] >= left:
            if limits[able[place]] + most(place + 1)[more - 1] >= left:
                chosen.append(place)
                left -= limits[able[place]]
            place += 1
            continue
        if not chosen:
            return
        place = chosen.pop()
        left += limits[able[place]]
        place += 1


def _fill(count: int, chosen: Sequence[int], limits: Sequence[int]) -> Iterator[list[int]]:
    """Yield every way to take `count` cores from all the chosen sockets, filling the first ones.

    The chosen sockets must hold `count` cores.
    """
    rest = list(accumulate((limits[s] for s in reversed(chosen)), initial=0))[-2::-1]
    amounts: list[int] = []
    left = count
    while True:
        while len(amounts) < len(chosen):
            after = len(chosen) - len(amounts) - 1
            amounts.append(min(limits[chosen[len(amounts)]], left - after))
            left -= amounts[-1]
        way = [0] * len(limits)
        for socket, amount in zip(chosen, amounts, strict=True):
            way[socket] = amount
        yield way
        while amounts:
            amount = amounts.pop()
            left += amount
            if amount > max(1, left - rest[len(amounts)]):
                amounts.append(amount - 1)
                left -= amount - 1
                break
        else:
            return


def _evenly(count: int, room: Sequence[int], there: Sequence[int], order: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ways to raise the lowest sockets first (max-min fairness).

    They differ in which sockets have one core more.
    """
    way = [0] * len(room)
    for _ in range(count):
        open_ = [s for s in order if way[s] < room[s]]
        if not open_:
            return
        way[min(open_, key=lambda s: there[s] + way[s])] += 1
    top = max((there[s] + way[s] for s in order if way[s]), default=0)
    raised = [s for s in order if way[s] and there[s] + way[s] == top]
    level = [s for s in order if s in raised or (way[s] < room[s] and there[s] + way[s] == top - 1)]
    base = [amount - (s in raised) for s, amount in enumerate(way)]
    for chosen in combinations(level, len(raised)):
        yield [amount + (s in chosen) for s, amount in enumerate(base)]


def parse_layout(text: str) -> Layout:
    """Return the layout in ``compact``, ``spread`` or ``per-socket=N``, with or without ``!``. Raises `WordError`."""
    found = re.fullmatch(r"(compact|spread|per-socket=([1-9][0-9]{0,5}))(!?)", text)
    if not found or int(found[2] or 0) > MAX_CPUS:
        msg = f"{text[:40]!r} is not a distribution: write compact, spread or per-socket=N, each with or without !."
        raise WordError(msg)
    kind = "per_socket" if found[2] else found[1]
    return Layout(kind, int(found[2] or 0), bool(found[3]))


def layout_name(layout: Layout) -> str:
    """Return the text of a layout; empty if none was requested."""
    return "" if layout == ANY else str(layout)
