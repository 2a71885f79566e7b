# SPDX-License-Identifier: Apache-2.0
"""Turn counts into reachable masks: the kernel's placement around the layouts, or one in which no task moves.

Jobs with a layout are placed first (`drom.agent.placement.layout_search`); the kernel places the other jobs around
them. It minimises sharing, splits and moves, but may need a swap that no sequence of disjoint grants performs. Then
`stay` places them: a task that shrinks keeps part of its cores, a task that grows keeps all of them, so targets are
reachable by shrinking first. If even that is not reachable, best-effort layouts are given up for now; strict ones never
are. Ranks with different fences are placed in these without regard to sockets (`drom.agent.placement.fences`).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from drom.agent.model.layouts import ANY
from drom.agent.placement.fences import fences_differ, place_in_fences
from drom.agent.placement.layout_search import place_layouts
from drom.agent.placement.ranks import Key, NoPlacement, Place, RankRequest, fixed_cpus
from drom.agent.placement.siblings import pack_threads
from drom.agent.placement.transitions import TaskState, is_reachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drom.agent.model.cores import Cores


SWAP = NoPlacement("these cores cannot change hands without two programs meeting on one: free a core first.")


def place(seats: Sequence[RankRequest], cores: Cores, place: Place) -> dict[Key, int] | NoPlacement:
    """Return disjoint masks for the seats, reachable through acknowledgements alone, or why there are none."""
    if fences_differ(seats, cores):
        return _place_in_fences(seats, cores)
    laid_out = place_layouts(seats, cores)
    if isinstance(laid_out, NoPlacement):
        return laid_out
    for attempt in _attempts(seats, laid_out, cores, place):
        if _is_reachable(seats, attempt):
            return attempt
    return SWAP


def _place_in_fences(seats: Sequence[RankRequest], cores: Cores) -> dict[Key, int] | NoPlacement:
    """Return masks inside the fences; layouts hold for ranks without a fence, best-effort ones where they can."""
    free = [replace(seat, layout=ANY) if seat.fence else seat for seat in seats]
    why = SWAP
    for best_effort in (True, False):
        laid_out = place_layouts(free, cores, best_effort=best_effort)
        if isinstance(laid_out, NoPlacement):
            return laid_out
        masks = place_in_fences(_fix(seats, laid_out), cores)
        if isinstance(masks, NoPlacement):
            why = masks
        elif _is_reachable(seats, masks):
            return masks
    return why


def _is_reachable(seats: Sequence[RankRequest], masks: dict[Key, int]) -> bool:
    return is_reachable({seat.key: TaskState(seat.held, seat.granted, masks[seat.key], seat.floor) for seat in seats})


def _attempts(
    seats: Sequence[RankRequest], laid_out: dict[Key, int], cores: Cores, place: Place
) -> Iterator[dict[Key, int]]:
    """Yield masks for all seats, the best first."""
    around = _fix(seats, laid_out)
    if placed := place(around):
        if cores.siblings:
            yield pack_threads(seats, placed, cores)
        yield placed
    if stayed := place_in_place(around, cores):
        yield stayed
    strict = place_layouts(seats, cores, best_effort=False)
    if not isinstance(strict, NoPlacement) and strict.keys() != laid_out.keys():
        yield from filter(None, [place_in_place(_fix(seats, strict), cores)])


def _fix(seats: Sequence[RankRequest], masks: dict[Key, int]) -> list[RankRequest]:
    return [replace(seat, fixed=masks[seat.key]) if seat.key in masks else seat for seat in seats]


def place_in_place(seats: Sequence[RankRequest], cores: Cores) -> dict[Key, int] | None:
    """Return masks in which no task leaves a core unless it must, or None if they do not fit."""
    taken = cores.whole(fixed_cpus(seats))
    keep: dict[Key, list[int]] = {}
    for seat in seats:
        if not seat.fixed:
            held = [cores.masks[number] for number in sorted(cores.numbers(seat.held))]
            own = [core for core in held if not core & taken]
            keep[seat.key] = own[: seat.cores]
    for mine in keep.values():
        for core in mine:
            taken |= core
    masks = {}
    for seat in seats:
        if seat.fixed:
            masks[seat.key] = seat.fixed
            continue
        mine = keep[seat.key]
        order = cores.masks if seat.held else cores.masks[::-1]
        extra = list(islice((core for core in order if not core & taken), seat.cores - len(mine)))
        if len(mine) + len(extra) < seat.cores:
            return None
        masks[seat.key] = sum(mine) + sum(extra)
        taken |= masks[seat.key]
    return masks
