# SPDX-License-Identifier: Apache-2.0
"""Cores for ranks that may each have other cores: those inside their cpusets. Pure.

Every rank keeps its present cores up to its number, then takes free ones in its cpuset. If none is left, ranks pass
cores on along the shortest alternating path (bipartite matching with capacities; Ford and Fulkerson 1956). If no path
leads to a free core, the ranks that were reached need more cores than their cpusets have together, by Hall's condition,
so there is no placement with these numbers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from drom.agent.placement.ranks import NoPlacement, fixed_cpus
from drom.agent.text import counted, cpu_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.agent.model.cores import Cores
    from drom.agent.placement.ranks import RankKey, RankRequest


def cpusets_differ(requests: Sequence[RankRequest], cores: Cores) -> bool:
    """Return whether a rank that may move may not have every core that the fixed ones leave."""
    if not any(request.cpuset for request in requests):
        return False
    left = cores.all & ~cores.whole(fixed_cpus(requests))
    return any(left & ~request.cpuset for request in requests if request.cpuset and not request.fixed)


def place_in_cpusets(requests: Sequence[RankRequest], cores: Cores) -> dict[RankKey, int] | NoPlacement:
    """Return masks inside the cpusets of the ranks, near to today's, or why there are none."""
    left = cores.all & ~cores.whole(fixed_cpus(requests))
    movers = [request for request in requests if not request.fixed]
    may = {request.key: set(cores.numbers(left & (request.cpuset or left))) for request in movers}
    got: dict[RankKey, list[int]] = {}
    holder: dict[int, RankKey] = {}
    for request in movers:
        mine = [core for core in sorted(cores.numbers(request.now)) if core in may[request.key] and core not in holder]
        got[request.key] = mine[: request.cores]
        holder |= dict.fromkeys(got[request.key], request.key)
    for request in sorted(movers, key=lambda request: len(may[request.key])):
        while len(got[request.key]) < request.cores:
            reached = _extend(request.key, may, got, holder)
            if reached:
                return _too_many([one for one in movers if one.key in reached], cores)
    masks = {request.key: sum(cores.masks[core] for core in got[request.key]) for request in movers}
    return masks | {request.key: request.fixed for request in requests if request.fixed}


def _extend(
    start: RankKey, may: Mapping[RankKey, set[int]], got: dict[RankKey, list[int]], holder: dict[int, RankKey]
) -> set[RankKey]:
    """Give a rank one core more along the shortest alternating path; if there is none, return the ranks reached.

    A free core that fewest ranks may have is taken first.
    """
    wanted = {core: sum(core in cores for cores in may.values()) for core in may[start]}
    queue, seen = deque([start]), {start}
    came: dict[RankKey, tuple[RankKey, int]] = {}  # a rank gives the core to the rank before it on the path
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
    key: RankKey,
    core: int,
    came: Mapping[RankKey, tuple[RankKey, int]],
    got: dict[RankKey, list[int]],
    holder: dict[int, RankKey],
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
    cpusets = 0
    for rank in ranks:
        cpusets |= rank.cpuset or cores.all
    needs = counted(cores.cpus(sum(rank.cores for rank in ranks)), "CPU")
    jobs = ", ".join(dict.fromkeys(rank.key[0] for rank in ranks))
    text = f"{jobs} would need {needs} together, and the kernel lets them use {cpu_names(cpusets)}."
    return NoPlacement(text, most.key[0])
