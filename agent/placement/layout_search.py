# SPDX-License-Identifier: Apache-2.0
"""The cores of jobs with a layout, which are chosen before all other jobs are placed around them.

The first step is the amounts: how many cores each group (`drom.agent.model.layouts`) gets in each socket. All strict
groups must lie as asked: a depth-first search over their ways, the preferred ones first, within a budget. Then each
best-effort group takes the nearest way that is left. A group stays in place if it lies as near to its request as it can
and keeps its number of cores. The second step is the cores: own ones first, then free ones, then those of others,
beginning with tasks that give some up. Within a socket a spread group is also divided over the memory domains; any
other group uses as few domains as it can.

A strict group is treated as best effort if an order or the end of a task has already left it otherwise: the node
continues, and the group lies as asked again once it can. Tasks with an exact mask count, but need not satisfy a layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from drom.agent.model import layouts
from drom.agent.placement.ranks import NoPlacement, fixed_cpus
from drom.agent.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drom.agent.model.cores import Cores
    from drom.agent.model.layouts import Layout
    from drom.agent.placement.ranks import RankKey, RankRequest

BUDGET = 2000
"""Number of ways tried for strict groups before the search fails."""

Amounts = list[int]
"""Cores per socket, in the order of `Cores.sockets`."""


@dataclass(slots=True)
class Group:
    """Requests under one layout. `now`: their cores today; `there`: the cores of the job's fixed requests."""

    layout: Layout
    requests: list[RankRequest]
    now: Amounts
    there: Amounts
    way: Amounts = field(default_factory=list)

    @property
    def job(self) -> str:
        """The job's name."""
        return self.requests[0].key[0]

    @property
    def count(self) -> int:
        """The number of cores that the group gets."""
        return sum(request.cores for request in self.requests)

    @property
    def is_new(self) -> bool:
        """Whether none of the requests has cores today."""
        return not any(self.now)

    def must(self, sizes: Sequence[int]) -> bool:
        """Return whether the group must lie as asked: its layout is strict and satisfied, and `there` has no cores."""
        return self.layout.strict and not any(self.there) and layouts.is_satisfied(self.layout, self.now, sizes)


def place_layouts(
    requests: Sequence[RankRequest], cores: Cores, *, best_effort: bool = True
) -> dict[RankKey, int] | NoPlacement:
    """Return a mask for every request that has a layout and no exact mask, or why the strict layouts cannot be met.

    Without `best_effort` only strict groups are placed.
    """
    groups = _groups(requests, cores)
    if not groups:
        return {}
    room = [size - taken for size, taken in zip(cores.sizes, _amounts(fixed_cpus(requests), cores), strict=True)]
    held = 0
    for request in requests:
        held |= request.now
    free = [size - taken for size, taken in zip(cores.sizes, _amounts(held | fixed_cpus(requests), cores), strict=True)]
    strict = sorted((g for g in groups if g.must(cores.sizes)), key=lambda g: (g.is_new, -g.count))
    board = _SocketRoom(cores, room, free)
    if failed := board.settle(strict):
        return failed
    made = list(strict)
    for group in groups if best_effort else ():
        if group.must(cores.sizes):
            continue
        if failed := board.place_best_effort(group):
            return failed
        made.append(group)
    return _choose(made, requests, cores)


def _groups(requests: Sequence[RankRequest], cores: Cores) -> list[Group]:
    """Return the groups of the requests that have a layout and may move, in the order of the requests."""
    groups: dict[object, Group] = {}
    there: dict[str, int] = {}
    for request in requests:
        if request.fixed:
            there[request.key[0]] = there.get(request.key[0], 0) | request.fixed
    for request in requests:
        if request.layout.kind == "default" or request.fixed:
            continue
        alone = request.layout.kind == "compact"
        name = request.key if alone else request.key[0]
        if name not in groups:
            others = 0 if alone else there.get(request.key[0], 0)
            groups[name] = Group(request.layout, [], [0] * len(cores.sizes), _amounts(others, cores))
        group = groups[name]
        group.requests.append(request)
        group.now = [a + b for a, b in zip(group.now, _amounts(request.now, cores), strict=True)]
    return list(groups.values())


def _amounts(mask: int, cores: Cores) -> Amounts:
    amounts = [0] * len(cores.sizes)
    for number in cores.numbers(mask):
        amounts[cores.socket_of[number]] += 1
    return amounts


class _SocketRoom:
    """The cores left in each socket while groups get their amounts: `room` are available, `free` are held by no job."""

    def __init__(self, cores: Cores, room: Amounts, free: Amounts) -> None:
        self.cores = cores
        self.room = room
        self.free = free
        self.mates: dict[str, Amounts] = {}

    def settle(self, groups: Sequence[Group]) -> NoPlacement | None:
        """Give every group a way that satisfies its layout; return why if there is none, None otherwise."""
        deepest, reason, budget = -1, None, BUDGET
        tries: list[Iterator[Amounts]] = []
        while len(tries) < len(groups):
            tries.append(self._ways(groups[len(tries)]))
            while (way := next(tries[-1], None) if budget else None) is None:
                tries.pop()
                if len(tries) > deepest:
                    deepest, reason = len(tries), self._reason(groups[len(tries)])
                if not tries:
                    return reason
                self._take(groups[len(tries) - 1], -1)
            budget -= 1
            groups[len(tries) - 1].way = way
            self._take(groups[len(tries) - 1], 1)
        return None

    def place_best_effort(self, group: Group) -> NoPlacement | None:
        """Give a group the best way that is left: its present one if none is better. Return why if there is none."""
        layout, there = group.layout, group.there
        if sum(self.room) < group.count:
            return self._reason(group)
        group.way = layouts.nearest_amounts(layout, group.count, self.room, there, self._order(group))
        if self._fits(group) and layouts.distance(layout, group.now, there) <= layouts.distance(
            layout, group.way, there
        ):
            group.way = group.now
        self._take(group, 1)
        return None

    def _ways(self, group: Group) -> Iterator[Amounts]:
        if self._fits(group) and layouts.is_satisfied(group.layout, group.now, self.cores.sizes):
            yield group.now
        yield from layouts.exact_amounts(group.layout, group.count, self.room, self.cores.sizes, self._order(group))

    def _fits(self, group: Group) -> bool:
        """Return whether the group can stay where it is: it keeps its number of cores, and they are available."""
        return sum(group.now) == group.count and all(n <= r for n, r in zip(group.now, self.room, strict=True))

    def _order(self, group: Group) -> list[int]:
        """Return the sockets, the best one for the group first.

        The best socket is the one where it has most cores; then the one where it takes fewest from others, where most
        of its job is, where least is left over; then the lowest for a running group, the highest for a new one.
        """
        mates = self.mates.get(group.job, [0] * len(self.room))
        count = group.count

        def key(s: int) -> tuple[int, ...]:
            own = min(group.now[s], count)
            room, free = self.room[s], min(self.free[s], self.room[s])
            tight = room if group.layout.kind == "compact" and room >= count else 0
            return -own, max(0, count - own - free), -mates[s], tight, -s if group.is_new else s

        return sorted(range(len(self.room)), key=key)

    def _take(self, group: Group, sign: int) -> None:
        """Subtract the group's way from the cores left, or with sign -1 add it back."""
        mates = self.mates.setdefault(group.job, [0] * len(self.room))
        for s, amount in enumerate(group.way):
            self.room[s] -= sign * amount
            self.free[s] -= sign * max(0, amount - group.now[s])
            mates[s] += sign * amount

    def _reason(self, group: Group) -> NoPlacement:
        limits = [min(group.layout.limit, size) for size in self.cores.sizes]
        sockets = layouts.sockets_needed(group.count, limits)
        where = "in one socket" if sockets == 1 else f"in {sockets} sockets"
        if group.layout.kind == "spread":
            where = f"divided equally over {len(limits)} sockets"
        elif group.layout.kind == "per_socket":
            where += f", at most {group.layout.per_socket} in each"
        names = self.cores.names
        cpus = self.cores.cpus
        rooms = ", ".join(f"{cpus(max(0, room))} in socket {name}" for name, room in zip(names, self.room, strict=True))
        needs = counted(cpus(group.count), "CPU")
        text = f"{group.layout} of job {group.job} needs {needs} {where}: it can have {rooms}."
        return NoPlacement(text, group.job)


def _choose(groups: Sequence[Group], requests: Sequence[RankRequest], cores: Cores) -> dict[RankKey, int]:
    """Return the masks of the groups' requests: own cores first, then free ones, then those of others."""
    chooser = _CorePicker(groups, requests, cores)
    plans = [(group, request, quota) for group in groups for request, quota in _shares(group, cores)]
    for group, request, quota in plans:
        chooser.keep(group, request, quota)
    chooser.fill_pools()
    for group, request, quota in plans:
        chooser.add(group, request, quota)
    return {request.key: sum(cores.masks[n] for n in chooser.got[request.key]) for _, request, _ in plans}


def _shares(group: Group, cores: Cores) -> list[tuple[RankRequest, Amounts]]:
    """Divide a group's amounts among its requests.

    As many requests as possible get all their cores in one socket, the one where they have most today.
    """
    left = list(group.way)
    shares = {request.key: [0] * len(left) for request in group.requests}
    now = {request.key: _amounts(request.now, cores) for request in group.requests}
    if all(sum(now[request.key]) == request.cores for request in group.requests) and group.way == group.now:
        return [(request, now[request.key]) for request in group.requests]
    rest = []
    for request in sorted(group.requests, key=lambda request: -max(now[request.key])):
        fitting = [s for s in range(len(left)) if left[s] >= request.cores]
        if not fitting:
            rest.append(request)
            continue
        best = max(fitting, key=lambda s: (now[request.key][s], left[s], s))
        shares[request.key][best] = request.cores
        left[best] -= request.cores
    for request in rest:
        need = request.cores
        for s in sorted(range(len(left)), key=lambda s: (-min(now[request.key][s], left[s]), -left[s])):
            shares[request.key][s] = min(need, left[s])
            left[s] -= shares[request.key][s]
            need -= shares[request.key][s]
    return [(request, shares[request.key]) for request in group.requests]


class _CorePicker:
    """The choice of core numbers for requests. The pools of a memory domain are its free cores and those of others."""

    def __init__(self, groups: Sequence[Group], requests: Sequence[RankRequest], cores: Cores) -> None:
        self.cores = cores
        self.got: dict[RankKey, list[int]] = {request.key: [] for group in groups for request in group.requests}
        self._taken = set(cores.numbers(fixed_cpus(requests)))
        self._surplus: dict[int, bool] = {}
        for request in requests:
            mine = cores.numbers(request.now)
            gives = request.key in self.got or len(mine) > request.cores
            self._surplus.update(dict.fromkeys(mine, gives))
        self._free: dict[int, list[int]] = {}
        self._lent: dict[int, list[int]] = {}
        self._in_domain: dict[tuple[object, int], int] = {}

    def keep(self, group: Group, request: RankRequest, quota: Amounts) -> None:
        """Keep the request's present cores up to its quota in each socket."""
        mine: dict[int, dict[int, list[int]]] = {}
        for number in sorted(self.cores.numbers(request.now)):
            if number not in self._taken:
                socket, domain = self.cores.socket_of[number], self.cores.domain_of[number]
                mine.setdefault(socket, {}).setdefault(domain, []).append(number)
        for socket, domains in mine.items():
            for number in _core_order(domains, even=group.layout.kind == "spread")[: quota[socket]]:
                self._give(group, request, number)

    def fill_pools(self) -> None:
        """Put the cores that no request keeps into pools; of others' cores those given up anyway come last."""
        for number, domain in enumerate(self.cores.domain_of):
            if number not in self._taken:
                pool = self._lent if number in self._surplus else self._free
                pool.setdefault(domain, []).append(number)
        for lent in self._lent.values():
            lent.sort(key=lambda number: (self._surplus[number], number))

    def add(self, group: Group, request: RankRequest, quota: Amounts) -> None:
        """Fill the request's quota of each socket from the pools."""
        had = [0] * len(quota)
        for number in self.got[request.key]:
            had[self.cores.socket_of[number]] += 1
        for socket, domains in enumerate(self.cores.domains_of_socket):
            for need in range(quota[socket] - had[socket], 0, -1):
                domain = min(domains, key=lambda d: self._rank(group, request, d, need))
                free = self._free.get(domain)
                pool = free or self._lent[domain]
                self._give(group, request, pool.pop(-1 if group.is_new or not free else 0))

    def _rank(self, group: Group, request: RankRequest, domain: int, need: int) -> tuple[bool, int, int, int]:
        free, lent = len(self._free.get(domain, ())), len(self._lent.get(domain, ()))
        empty = not free and not lent
        if group.layout.kind == "spread":
            return empty, self._in_domain.get((id(group), domain), 0), -free, -lent
        return empty, -self._in_domain.get((request.key, domain), 0), max(0, need - free), max(0, need - free - lent)

    def _give(self, group: Group, request: RankRequest, number: int) -> None:
        self.got[request.key].append(number)
        self._taken.add(number)
        for who in (id(group), request.key):
            at = who, self.cores.domain_of[number]
            self._in_domain[at] = self._in_domain.get(at, 0) + 1


def _core_order(domains: dict[int, list[int]], *, even: bool) -> list[int]:
    """Return core numbers by domain, the fullest domain first; if `even`, one from each domain in turn."""
    if not even:
        return [number for _, numbers in sorted(domains.items(), key=lambda d: -len(d[1])) for number in numbers]
    places = [(turn, number) for numbers in domains.values() for turn, number in enumerate(numbers)]
    return [number for _, number in sorted(places)]
