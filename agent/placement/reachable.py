# SPDX-License-Identifier: Apache-2.0
"""Turn counts into reachable masks: the kernel's placement around the layouts, or one in which no task moves.

Jobs with a layout are placed first (`drom.agent.placement.layout_search`); the kernel places the other jobs around
them. It minimises sharing, splits and moves, but may need a swap that no sequence of disjoint grants performs. Then
`stay` places them: a task that shrinks keeps part of its cores, a task that grows keeps all of them, so targets are
reachable by shrinking first. If even that is not reachable, best-effort layouts are given up for now; strict ones never
are. Ranks with different cpusets are placed in these without regard to sockets (`drom.agent.placement.cpusets`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from drom.agent.model.layouts import ANY
from drom.agent.placement.cpusets import cpusets_differ, place_in_cpusets
from drom.agent.placement.layout_search import place_layouts
from drom.agent.placement.ranks import NoPlacement, PlacementKernel, RankKey, RankRequest, fixed_cpus
from drom.agent.placement.siblings import pack_threads
from drom.agent.placement.transitions import TaskState, is_reachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drom.agent.model.cores import Cores


NEEDS_SWAP = NoPlacement("these cores cannot change hands without two programs meeting on one: free a core first.")


def place(requests: Sequence[RankRequest], cores: Cores, place: PlacementKernel) -> dict[RankKey, int] | NoPlacement:
    """Return disjoint masks for the requests, reachable through acknowledgements alone, or why there are none."""
    if cpusets_differ(requests, cores):
        return _place_in_cpusets(requests, cores)
    laid_out = place_layouts(requests, cores)
    if isinstance(laid_out, NoPlacement):
        return laid_out
    for attempt in _attempts(requests, laid_out, cores, place):
        if _is_reachable(requests, attempt):
            return attempt
    return NEEDS_SWAP


def _place_in_cpusets(requests: Sequence[RankRequest], cores: Cores) -> dict[RankKey, int] | NoPlacement:
    """Return masks inside the cpusets; layouts hold for ranks without a cpuset, best-effort ones where they can."""
    free = [replace(request, layout=ANY) if request.cpuset else request for request in requests]
    why = NEEDS_SWAP
    for best_effort in (True, False):
        laid_out = place_layouts(free, cores, best_effort=best_effort)
        if isinstance(laid_out, NoPlacement):
            return laid_out
        masks = place_in_cpusets(_fix(requests, laid_out), cores)
        if isinstance(masks, NoPlacement):
            why = masks
        elif _is_reachable(requests, masks):
            return masks
    return why


def _is_reachable(requests: Sequence[RankRequest], masks: dict[RankKey, int]) -> bool:
    states = {one.key: TaskState(one.held, one.granted, masks[one.key], one.floor) for one in requests}
    return is_reachable(states)


def _attempts(
    requests: Sequence[RankRequest], laid_out: dict[RankKey, int], cores: Cores, place: PlacementKernel
) -> Iterator[dict[RankKey, int]]:
    """Yield masks for all requests, the best first."""
    around = _fix(requests, laid_out)
    if placed := place(around):
        if cores.siblings:
            yield pack_threads(requests, placed, cores)
        yield placed
    if stayed := place_in_place(around, cores):
        yield stayed
    strict = place_layouts(requests, cores, best_effort=False)
    if not isinstance(strict, NoPlacement) and strict.keys() != laid_out.keys():
        yield from filter(None, [place_in_place(_fix(requests, strict), cores)])


def _fix(requests: Sequence[RankRequest], masks: dict[RankKey, int]) -> list[RankRequest]:
    return [replace(request, fixed=masks[request.key]) if request.key in masks else request for request in requests]


def place_in_place(requests: Sequence[RankRequest], cores: Cores) -> dict[RankKey, int] | None:
    """Return masks in which no task leaves a core unless it must, or None if they do not fit."""
    taken = cores.whole(fixed_cpus(requests))
    keep: dict[RankKey, list[int]] = {}
    for request in requests:
        if not request.fixed:
            held = [cores.masks[number] for number in sorted(cores.numbers(request.held))]
            own = [core for core in held if not core & taken]
            keep[request.key] = own[: request.cores]
    for mine in keep.values():
        for core in mine:
            taken |= core
    masks = {}
    for request in requests:
        if request.fixed:
            masks[request.key] = request.fixed
            continue
        mine = keep[request.key]
        order = cores.masks if request.held else cores.masks[::-1]
        extra = list(islice((core for core in order if not core & taken), request.cores - len(mine)))
        if len(mine) + len(extra) < request.cores:
            return None
        masks[request.key] = sum(mine) + sum(extra)
        taken |= masks[request.key]
    return masks
