# SPDX-License-Identifier: Apache-2.0
"""Cores for ranks that may each have other cores: those inside their fences. Pure.

Every rank keeps its present cores up to its number, then takes free ones in its fence. Where there are none left, ranks
pass cores on along an alternating path, the shortest one (bipartite matching with capacities; Ford and Fulkerson 1956).
If no path leads to a free core, the ranks that were reached want more cores than their fences have together, by Hall's
condition, so there is no placement with these numbers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from drom.agent.placement.ranks import NoPlacement, fixed_cpus
from drom.agent.text import counted, cpu_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.agent.model.cores import Cores
    from drom.agent.placement.ranks import Key, RankRequest


def fences_differ(seats: Sequence[RankRequest], cores: Cores) -> bool:
    """Return whether a rank that may move may not have every core that the fixed ones leave."""
    if not any(seat.fence for seat in seats):
        return False
    left = cores.all & ~cores.whole(fixed_cpus(seats))
    return any(left & ~seat.fence for seat in seats if seat.fence and not seat.fixed)


def place_in_fences(seats: Sequence[RankRequest], cores: Cores) -> dict[Key, int] | NoPlacement:
    """Return masks inside the fences of the ranks, near to today's, or why there are none."""
    left = cores.all & ~cores.whole(fixed_cpus(seats))
    movers = [seat for seat in seats if not seat.fixed]
    may = {seat.key: set(cores.numbers(left & (seat.fence or left))) for seat in movers}
    got: dict[Key, list[int]] = {}
    holder: dict[int, Key] = {}
    for seat in movers:
        mine = [core for core in sorted(cores.numbers(seat.now)) if core in may[seat.key] and core not in holder]
        got[seat.key] = mine[: seat.cores]
        holder |= dict.fromkeys(got[seat.key], seat.key)
    for seat in sorted(movers, key=lambda seat: len(may[seat.key])):
        while len(got[seat.key]) < seat.cores:
            reached = _extend(seat.key, may, got, holder)
            if reached:
                return _too_many([one for one in movers if one.key in reached], cores)
    masks = {seat.key: sum(cores.masks[core] for core in got[seat.key]) for seat in movers}
    return masks | {seat.key: seat.fixed for seat in seats if seat.fixed}


def _extend(start: Key, may: Mapping[Key, set[int]], got: dict[Key, list[int]], holder: dict[int, Key]) -> set[Key]:
    """Give a rank one core more along the shortest alternating path; if there is none, return the ranks reached.

    A free core that fewest ranks may have is taken first.
    """
    wanted = {core: sum(core in cores for cores in may.values()) for core in may[start]}
    queue, seen = deque([start]), {start}
    came: dict[Key, tuple[Key, int]] = {}  # a rank gives the core to the rank before it on the path
    while queue:
        key = queue.popleft()
        free = [core for core in may[key] if core not in holder]
        if free:
            _pass_on(key, min(free, key=lambda core: (wanted.get(core, 0), core)), came, got, holder)
            return set()
        for core in sorted(may[key]):
            other = holder[core]
            if other not in seen:
                seen.add(other)
                came[other] = (key, core)
                queue.append(other)
    return seen


def _pass_on(
    key: Key, core: int, came: Mapping[Key, tuple[Key, int]], got: dict[Key, list[int]], holder: dict[int, Key]
) -> None:
    """Give a core to a rank, which gives one of its own to the rank before it on the path, and so on."""
    while True:
        got[key].append(core)
        holder[core] = key
        if key not in came:
            return
        key, core = came[key][0], came[key][1]
        got[holder[core]].remove(core)


def _too_many(ranks: Sequence[RankRequest], cores: Cores) -> NoPlacement:
    """Return why these ranks cannot be placed, and the job among them that grows most."""
    most = max(ranks, key=lambda rank: rank.cores - cores.count(rank.now))
    fences = 0
    for rank in ranks:
        fences |= rank.fence or cores.all
    needs = counted(cores.cpus(sum(rank.cores for rank in ranks)), "CPU")
    jobs = ", ".join(dict.fromkeys(rank.key[0] for rank in ranks))
    text = f"{jobs} would need {needs} together, and the kernel lets them use {cpu_names(fences)}."
    return NoPlacement(text, most.key[0])
