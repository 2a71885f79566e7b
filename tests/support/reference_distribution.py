"""The placement problem, solved slowly and obviously: try every placement by counts per leaf, take the smallest."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from drom.agent.placement.kernel.distributor import Objective, TaskRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from drom.agent.model.cores import Core

Leaf = tuple[int, int]
Counts = dict[Leaf, int]


def units_in(cores: Sequence[Core], mask: int) -> Counts:
    """Count, by leaf (package, domain), the units that hold any CPU of `mask`."""
    counts: Counts = {}
    for package, domain, cpus in cores:
        if cpus & mask:
            counts[package, domain] = counts.get((package, domain), 0) + 1
    return counts


def objective(demands: Sequence[TaskRequest], before: Sequence[Counts], after: Sequence[Counts]) -> Objective:
    """Evaluate the four terms straight from their definitions."""
    jobs_in: dict[int, set[object]] = {}
    sockets = leaves = moved = 0
    for demand, old, new in zip(demands, before, after, strict=True):
        for package, _ in new:
            jobs_in.setdefault(package, set()).add(demand.job)
        sockets += len({package for package, _ in new}) - 1
        leaves += len(new) - 1
        if old:
            moved += sum(max(0, n - old.get(leaf, 0)) for leaf, n in new.items())
    return Objective(sum(len(jobs) - 1 for jobs in jobs_in.values()), sockets, leaves, moved)


def best_objective(cores: Sequence[Core], demands: Sequence[TaskRequest]) -> Objective | None:
    """Return the least objective of all placements, or None if there is none. Current masks must not share a unit."""
    before = [units_in(cores, demand.current) for demand in demands]
    room = units_in(cores, sum(cpus for _, _, cpus in cores))
    for demand, old in zip(demands, before, strict=True):
        if demand.fixed:
            room = {leaf: n - old.get(leaf, 0) for leaf, n in room.items()}
    return min((objective(demands, before, after) for after in _placements(demands, before, room)), default=None)


def _placements(demands: Sequence[TaskRequest], before: Sequence[Counts], room: Counts) -> Iterator[list[Counts]]:
    """Yield every way to take the units of all tasks out of `room`."""
    if not demands:
        yield []
        return
    choices = [before[0]] if demands[0].fixed else _choices(demands[0].cores, room)
    for choice in choices:
        rest = room if demands[0].fixed else {leaf: n - choice.get(leaf, 0) for leaf, n in room.items()}
        for others in _placements(demands[1:], before[1:], rest):
            yield [choice, *others]


def _choices(cores: int, room: Counts) -> Iterator[Counts]:
    """Yield every way to take `cores` units out of `room`."""
    for pick in combinations_with_replacement(sorted(room), cores):
        choice = {leaf: pick.count(leaf) for leaf in set(pick)}
        if all(n <= room[leaf] for leaf, n in choice.items()):
            yield choice


def assert_valid(
    cores: Sequence[Core], demands: Sequence[TaskRequest], masks: Mapping[object, int], claimed: Objective
) -> None:
    """Check a placement against the hard rules and its claimed objective, with nothing taken from the kernel."""
    assert set(masks) == {demand.task for demand in demands}
    seen = 0
    for demand in demands:
        mask = masks[demand.task]
        assert not mask & seen, "two tasks on one CPU"
        seen |= mask
        assert sum(units_in(cores, mask).values()) == demand.cores
        if demand.fixed:
            assert mask == demand.current
        else:
            assert all(cpus & mask in (0, cpus) for _, _, cpus in cores), "part of a core"
    before = [units_in(cores, demand.current) for demand in demands]
    after = [units_in(cores, masks[demand.task]) for demand in demands]
    assert objective(demands, before, after) == claimed
    _assert_own_units_first(cores, demands, masks)


def _assert_own_units_first(cores: Sequence[Core], demands: Sequence[TaskRequest], masks: Mapping[object, int]) -> None:
    """Check, unit by unit, that a task moves inside a leaf only when it has more units there than before."""
    for demand in demands:
        kept = units_in(cores, masks[demand.task] & demand.current)
        old, new = units_in(cores, demand.current), units_in(cores, masks[demand.task])
        assert all(kept.get(leaf, 0) == min(n, old.get(leaf, 0)) for leaf, n in new.items())
