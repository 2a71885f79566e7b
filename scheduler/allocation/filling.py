# SPDX-License-Identifier: Apache-2.0
"""Gaps that regular jobs leave: how much fillers may hold of each node, and which of them have to go. Pure.

Fillers are long jobs of one node that can be saved at any time and go on elsewhere (Polyakov and Dubenskaya, GRID
2018). Regular jobs are planned as if there were none. Under policy A of the paper, regular jobs start at the ends of
slots of a fixed length, and all fillers are saved before these. Under policy B fillers run until a regular job needs
their place: they are saved some time before its reservation begins, or when it starts without one.

Times are whole seconds, amounts whole numbers, nodes 0-based indices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.interface import NEVER

if TYPE_CHECKING:
    from drom.scheduler.allocation.backfill import Held
    from drom.scheduler.interface import Ints


class Reserved(NamedTuple):
    """What reservations will take: an `amount`, of shape ``(parts, resources)``, of a `node` from `begin` on."""

    begin: Ints
    node: Ints
    amount: Ints


def slot_end(slot: int, now: int) -> int:
    """Return the end of the present slot of so many seconds; NEVER without slots (0)."""
    return (now // slot + 1) * slot if slot else NEVER


def allowance(free: Ints, held: Held, reserved: Reserved, until: int) -> Ints:
    """Return the most that fillers may hold of each node from now to before `until`, of shape ``(nodes, resources)``.

    `free`, of the same shape, is what regular jobs leave now; `held` is what these hold.
    """
    least: Ints = free.copy()
    soon = reserved.begin < until
    for node in np.unique(reserved.node[soon]):
        taken, given = soon & (reserved.node == node), held.node == node
        for begin in np.unique(reserved.begin[taken]):
            ended = held.amount[given & (held.end <= begin)].sum(axis=0)
            begun = reserved.amount[taken & (reserved.begin <= begin)].sum(axis=0)
            least[node] = np.minimum(least[node], free[node] + ended - begun)
    return least


def leaving(allowed: Ints, node: Ints, amount: Ints) -> Ints:
    """Return which fillers have to leave for the others to hold no more than is allowed; the last ones leave first.

    `node` and `amount`, of shapes ``(fillers,)`` and ``(fillers, resources)``, are those of fillers in the order in
    which they started. Where fillers hold no resource beyond what is allowed, none leaves.
    """
    rest = allowed.copy()
    np.subtract.at(rest, node, amount)
    found = []
    for filler in range(len(node) - 1, -1, -1):
        lacks = rest[node[filler]] < 0
        if (lacks & (amount[filler] > 0)).any():
            rest[node[filler]] += amount[filler]
            found.append(filler)
    return np.array(found, np.int64)
