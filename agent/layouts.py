# SPDX-License-Identifier: Apache-2.0
"""How a job wants its cores laid out over the sockets of a node: the words, what they ask, and the ways to meet them.

A group is what a layout is about: each task of a compact job by itself, all tasks of a spread or per-socket job
together. Constants: c cores for the group; n(s) cores of socket s; l(s) = min(n(s), N) with per-socket=N, else n(s).
Variable: x(s), the group's cores in socket s. As asked means

    compact, per-socket=N   x(s) <= l(s), and no fewer sockets with their l(s) hold c cores
    spread                  x(s) >= max(x) - 1, or x(s) = n(s): as equal as the sockets' sizes allow

Amounts are given per socket, in the order of the machine's packages that have usable cores. What a core is, a whole
core or a hardware thread, is the node's unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS = ("default", "compact", "spread", "per_socket")
UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout as asked for: `per_socket` counts cores (kind per_socket only); `strict` waits rather than make do."""

    kind: str = "default"
    per_socket: int = 0
    strict: bool = False

    def __str__(self) -> str:
        """Return the text of ``--distribution``: compact, spread or per-socket=N, with ``!`` when strict."""
        name = f"per-socket={self.per_socket}" if self.kind == "per_socket" else self.kind
        return name + "!" * self.strict

    @property
    def limit(self) -> int:
        """The most cores a group shall have in one socket."""
        return self.per_socket if self.kind == "per_socket" else UNLIMITED


ANY = Layout()
"""No layout was asked for."""


def most(layout: Layout, sizes: Sequence[int]) -> int:
    """Return the most cores that a job of this layout can have on sockets of these sizes."""
    return sum(min(size, layout.limit) for size in sizes)


def span(count: int, limits: Sequence[int]) -> int:
    """Return how few sockets hold `count` cores when each takes its limit (all of them, if they do not)."""
    used = 0
    for limit in sorted(limits, reverse=True):
        if count <= 0:
            break
        count -= limit
        used += 1
    return used


def is_as_asked(layout: Layout, amounts: Sequence[int], sizes: Sequence[int]) -> bool:
    """Say whether a group with these cores per socket lies as its layout asks."""
    if layout.kind == "default":
        return True
    if layout.kind == "spread":
        top = max(amounts)
        return all(amount >= top - 1 or amount == size for amount, size in zip(amounts, sizes, strict=True))
    limits = [min(size, layout.limit) for size in sizes]
    within = all(amount <= limit for amount, limit in zip(amounts, limits, strict=True))
    return within and sum(amount > 0 for amount in amounts) <= span(sum(amounts), limits)


def ways(
    layout: Layout, count: int, room: Sequence[int], sizes: Sequence[int], order: Sequence[int]
) -> Iterator[list[int]]:
    """Yield every way to give a group `count` cores as its layout asks with `room` cores to be had in each socket.

    `order` names the sockets, the preferred ones first; ways that use these come first.
    """
    if layout.kind == "spread":
        found = _evenly(count, room, [0] * len(room), order)
    else:
        limits = [min(layout.limit, free) for free in room]
        least = span(count, [min(layout.limit, size) for size in sizes])
        found = _in_sockets(count, limits, least, order)
    yield from (way for way in found if is_as_asked(layout, way, sizes))


def make_do(layout: Layout, count: int, room: Sequence[int], there: Sequence[int], order: Sequence[int]) -> list[int]:
    """Return the way nearest to what the layout asks, with `room` cores to be had in each socket.

    `there` are cores per socket that the group has besides (of tasks that may not move). Spread: as equal as the room
    allows. Otherwise: as few sockets as the room allows; where per-socket=N does not hold the cores, N is exceeded by
    as little as it must be. `room` must hold `count` cores.
    """
    if layout.kind == "spread":
        return next(_evenly(count, room, there, order))
    limit = min(layout.limit, count + max(there))
    while True:
        limits = [max(0, min(limit - had, free)) for had, free in zip(there, room, strict=True)]
        if sum(limits) >= count:
            return next(_in_sockets(count, limits, span(count, limits), order))
        limit += 1


def distance(layout: Layout, way: Sequence[int], there: Sequence[int]) -> tuple[int, ...]:
    """Return how far a way is from what the layout asks, to compare ways of as many cores: the nearest is the least.

    Spread: the sockets' cores, the most first. Otherwise: by how much N is exceeded, then how many sockets are used.
    """
    every = [amount + had for amount, had in zip(way, there, strict=True)]
    if layout.kind == "spread":
        return tuple(sorted(every, reverse=True))
    used = [cores for cores, amount in zip(every, way, strict=True) if amount]
    return max(0, max(used, default=0) - layout.limit), len(used)


def _in_sockets(count: int, limits: Sequence[int], used: int, order: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ways to take `count` cores from exactly `used` sockets, the preferred sockets filled first."""
    for chosen in combinations(order, used):
        if sum(limits[s] for s in chosen) >= count:
            yield from _fill(count, chosen, limits, [0] * len(limits))


def _fill(count: int, chosen: Sequence[int], limits: Sequence[int], way: list[int]) -> Iterator[list[int]]:
    if not chosen:
        yield list(way)
        return
    first, rest = chosen[0], chosen[1:]
    least = max(1, count - sum(limits[s] for s in rest))
    for amount in range(min(limits[first], count - len(rest)), least - 1, -1):
        yield from _fill(count - amount, rest, limits, [*way[:first], amount, *way[first + 1 :]])


def _evenly(count: int, room: Sequence[int], there: Sequence[int], order: Sequence[int]) -> Iterator[list[int]]:
    """Yield the ways to raise the lowest sockets first (max-min fairness); they differ in who has one core more."""
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
