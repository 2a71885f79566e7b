# SPDX-License-Identifier: Apache-2.0
"""Policy A: each container runs exactly one time slot of the scheduler and is saved before its end.

Regular jobs start at the ends of slots alone, so that a node without one at the beginning of a slot has none until its
end. Filling is therefore a function of the regular schedule, which it cannot change. A container that continues in the
next slot keeps its node; still, each slot costs it a start and a save, except the one in which it is complete. The rest
of a regular job's last slot stays idle, and so does the rest of a container's last slot.

In a pool the processors of jobs are not known, and containers have those with the highest numbers: as each is saved
and restored in every slot, changing processors costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.gap_filling.containers import (
    arrive,
    attach,
    detach,
    is_any_waiting,
    put_back,
    take_next,
    time_left,
    work,
)
from drom.scheduler.interface import NOBODY, lean

if TYPE_CHECKING:
    from drom.scheduler.gap_filling.containers import Containers
    from drom.scheduler.interface import Ints

SLOT, RESTORE, SAVE, SPEED = range(4)
"""Places in the options."""
COMING, GOING, CURSOR_SIZE = range(3)
"""Places in a cursor, all 0 before the first slot: how far the regular schedule was followed."""


def fill_slots(  # noqa: PLR0917 - numba wants them by position
    box: Containers,
    starts: Ints,
    ends: Ints,
    spans: Ints,
    first: Ints,
    place: Ints,
    taken: Ints,
    options: Ints,
    cursor: Ints,
    begin: int,
    until: int,
) -> int:
    """Fill the slots with the numbers from `begin` to before `until`, which follow those before them.

    Returns how many slots of nodes had no regular job.

    `starts` and `ends` are the regular jobs in order of start, and of end; `spans` of shape ``(jobs, 2)`` has these
    times by job. The nodes of a job are ``place[first[job] : first[job + 1]]``. `taken`, of shape ``(nodes,)``, is 0
    before the first slot.
    """
    coming, going, empty = cursor[COMING], cursor[GOING], 0
    for number in range(begin, until):
        now = number * options[SLOT]
        while coming < len(starts) and spans[starts[coming], 0] <= now:
            occupy(taken, place[first[starts[coming]] : first[starts[coming] + 1]], 1)
            coming += 1
        while going < len(ends) and spans[ends[going], 1] <= now:
            occupy(taken, place[first[ends[going]] : first[ends[going] + 1]], -1)
            going += 1
        empty += fill_slot(box, taken, now, options)
    cursor[COMING], cursor[GOING] = coming, going
    return empty


def fill_pool(  # noqa: PLR0917 - numba wants them by position
    box: Containers, times: Ints, held: Ints, taken: Ints, options: Ints, cursor: Ints, begin: int, until: int
) -> int:
    """Fill slots as `fill_slots` does, in a pool: regular jobs have ``held[i]`` processors from ``times[i]`` on."""
    coming, empty = cursor[COMING], 0
    for number in range(begin, until):
        now = number * options[SLOT]
        while coming < len(times) and times[coming] <= now:
            coming += 1
        now_held = held[coming - 1] if coming > 0 else 0
        taken[:now_held] = 1
        taken[now_held:] = 0
        empty += fill_slot(box, taken, now, options)
    cursor[COMING] = coming
    return empty


@lean
def fill_slot(box: Containers, taken: Ints, now: int, options: Ints) -> int:
    """Fill a slot on all nodes that are not taken, and return their number."""
    arrive(box, now)
    empty = place_containers(box, taken, now, options[RESTORE])
    run_slot(box, now, options)
    return int(empty)


@lean
def occupy(taken: Ints, nodes: Ints, jobs: int) -> None:
    """Add `jobs` to the number of jobs on each of these nodes."""
    for node in nodes:
        taken[node] += jobs


@lean
def place_containers(box: Containers, taken: Ints, now: int, restore: int) -> int:
    """Remove containers from nodes with a regular job, and fill the other nodes; return how many there are."""
    empty = 0
    for node in range(len(taken)):
        if taken[node] > 0 and box.tenant[node] != NOBODY:
            one = box.tenant[node]
            detach(box, one, now)
            put_back(box, one)
    for node in range(len(taken)):
        if taken[node] > 0:
            continue
        empty += 1
        if box.tenant[node] != NOBODY:
            box.overhead[box.tenant[node]] += restore
        elif is_any_waiting(box):
            attach(box, take_next(box), node, now, restore)
    return empty


@lean
def run_slot(box: Containers, now: int, options: Ints) -> None:
    """Run every container on a node for a slot; it is then saved or complete."""
    slot, restore, save, speed = options[SLOT], options[RESTORE], options[SAVE], options[SPEED]
    for one in box.tenant:
        if one == NOBODY:
            continue
        left = time_left(box, one, speed)
        if restore + left <= slot:
            work(box, one, left, speed)
            box.end[one] = now + restore + left
            detach(box, one, box.end[one])
        else:
            work(box, one, slot - restore - save, speed)
            box.overhead[one] += save
            box.saves[one] += 1
        box.saved[one] = box.done[one]


@lean
def leave_all(box: Containers, now: int) -> None:
    """Remove every container from its node."""
    for one in box.tenant:
        if one != NOBODY:
            detach(box, one, now)
