# SPDX-License-Identifier: Apache-2.0
"""Containers: filler jobs of one node each, their progress, and the queue in which they wait.

Work is counted in millionths of a second of a bare node. Containers that were saved wait ahead of those that never ran,
in the order of their return; the others wait in order of arrival.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import NEVER, NOBODY, lean

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

FRESH, SEEN, HEAD, BACK, RUNS, DUE, PENDING_COUNT, TENANTS = range(8)
"""Places in `Containers.scalars`: the next that never ran; how many have arrived; first place and number of those that
came back; runs that are noted; the first of all dues, or earlier; containers with one; containers on nodes."""


class Containers(NamedTuple):
    """A column per property, int64 of shape ``(containers,)`` unless stated otherwise. Times are seconds."""

    arrival: Ints
    need: Ints
    """Work of the container; NEVER if it has no end."""
    done: Ints
    """Work done, less what was lost."""
    saved: Ints
    """Work that is safe: saved, or of a complete container."""
    start: Ints
    """When it first ran; NEVER if it has not run."""
    end: Ints
    """When it was complete; NEVER if it is not."""
    node: Ints
    """The node that it is on, otherwise NOBODY."""
    last: Ints
    """The node it was on last."""
    since: Ints
    """When it came to its node."""
    begin: Ints
    """When it starts to work there."""
    due: Ints
    """When it is complete, or back in the queue; NEVER if unknown."""
    listed: Ints
    """Whether it is in `pending`."""
    saves: Ints
    migrations: Ints
    """How often it continued on another node."""
    worked: Ints
    """Seconds of work."""
    overhead: Ints
    """Seconds of restoring, saving and migrating."""
    lost: Ints
    """Seconds of work that were lost."""
    ring: Ints
    """Containers that returned to the queue."""
    pending: Ints
    """Containers with a time in `due`."""
    tenant: Ints
    """Shape ``(nodes,)``: the container on each node."""
    runs: Ints
    """Shape ``(room, 4)``: container, node, begin, end."""
    told: Ints
    """Shape ``(jobs,)``: when the planned start of a regular job became known."""
    delay: Ints
    """Shape ``(jobs,)``: how long a regular job waited for containers on its nodes."""
    scalars: Ints


def make_containers(arrival: Ints, need: Ints, nodes: int, jobs: int, places: int) -> Containers:
    """Return containers that have not run; arrivals rise.

    `places` is the sum of the nodes of all `jobs` regular jobs. A run is the first of its container, or follows one
    that ended because a regular job was given the node: there are no more than containers and places.
    """
    count = len(arrival)

    def column(value: int, length: int = count) -> Ints:
        return np.full(length, value, np.int64)

    scalars = np.zeros(8, np.int64)
    scalars[DUE] = NEVER
    return Containers(
        arrival=arrival.astype(np.int64),
        need=need.astype(np.int64),
        done=column(0),
        saved=column(0),
        start=column(NEVER),
        end=column(NEVER),
        node=column(NOBODY),
        last=column(NOBODY),
        since=column(0),
        begin=column(0),
        due=column(NEVER),
        listed=column(0),
        saves=column(0),
        migrations=column(0),
        worked=column(0),
        overhead=column(0),
        lost=column(0),
        ring=column(NOBODY),
        pending=column(NOBODY),
        tenant=column(NOBODY, nodes),
        runs=np.zeros((places + count, 4), np.int64),
        told=column(NEVER, jobs),
        delay=column(0, jobs),
        scalars=scalars,
    )


@lean
def arrive(box: Containers, now: int) -> None:
    """Add the containers that have arrived by now to the queue."""
    s = box.scalars
    while s[SEEN] < len(box.arrival) and box.arrival[s[SEEN]] <= now:
        s[SEEN] += 1


@lean
def next_arrival(box: Containers) -> int:
    """Return when the next container arrives; NEVER if all have arrived."""
    seen = box.scalars[SEEN]
    return int(box.arrival[seen]) if seen < len(box.arrival) else NEVER


@lean
def is_any_waiting(box: Containers) -> bool:
    """Return whether a container is in the queue."""
    s = box.scalars
    return bool(s[BACK] > 0 or s[FRESH] < s[SEEN])


@lean
def take_next(box: Containers) -> int:
    """Remove the first container from the queue, which is not empty, and return it."""
    s = box.scalars
    if s[BACK] == 0:
        s[FRESH] += 1
        return int(s[FRESH] - 1)
    one = box.ring[s[HEAD]]
    s[HEAD] = (s[HEAD] + 1) % len(box.ring)
    s[BACK] -= 1
    return int(one)


@lean
def put_back(box: Containers, one: int) -> None:
    """Queue a container that has run."""
    s = box.scalars
    box.ring[(s[HEAD] + s[BACK]) % len(box.ring)] = one
    s[BACK] += 1


@lean
def attach(box: Containers, one: int, node: int, now: int, pause: int) -> None:
    """Put a container on a node; it begins to work after `pause` seconds."""
    box.migrations[one] += box.last[one] not in (NOBODY, node)
    box.node[one], box.last[one], box.tenant[node] = node, node, one
    box.since[one], box.begin[one] = now, now + pause
    box.start[one] = min(box.start[one], now)
    box.overhead[one] += pause
    box.scalars[TENANTS] += 1


@lean
def detach(box: Containers, one: int, until: int) -> None:
    """Remove a container from its node, which it occupied until `until`."""
    s, node = box.scalars, box.node[one]
    run = box.runs[s[RUNS]]
    run[0], run[1], run[2], run[3] = one, node, box.since[one], until
    s[RUNS] += 1
    box.tenant[node], box.node[one] = NOBODY, NOBODY
    s[TENANTS] -= 1


@lean
def drop(box: Containers, one: int, now: int, speed: int) -> None:
    """Remove a container from its node without saving it; its work since the last save is lost."""
    work(box, one, max(0, now - box.begin[one]), speed)
    box.overhead[one] -= max(0, box.begin[one] - now)
    box.lost[one] += -(-(box.done[one] - box.saved[one]) // speed)
    box.done[one] = box.saved[one]
    detach(box, one, now)


@lean
def work(box: Containers, one: int, seconds: int, speed: int) -> None:
    """Add the work of a container for `seconds`, at `speed` millionths per second."""
    box.worked[one] += seconds
    box.done[one] = min(box.need[one], box.done[one] + seconds * speed)


@lean
def time_left(box: Containers, one: int, speed: int) -> int:
    """Return the remaining working time of a container; NEVER if it has no end."""
    return NEVER if box.need[one] == NEVER else int(-(-(box.need[one] - box.done[one]) // speed))
