# SPDX-License-Identifier: Apache-2.0
"""Nodes that home partitions lend each other, for jobs that need more nodes than one of them has free. Pure.

Each home partition has a `FreeList`, which all of them see. It schedules on those of its nodes that are not in the
list; the others are offered to all home partitions, or lent to one of them.

The lists that a job's nodes come from change in one compare-and-swap, together or not at all. So no node is taken
twice, and no node is held while its job waits for others: there is no deadlock. Of two changes that conflict, one
succeeds.
"""

from __future__ import annotations

import json
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

MOST_LENT = 1000
"""The most nodes that a home partition offers and lends at once."""
MOST_LISTS, MOST_NAMES = 50, 5000
"""The most free lists from which nodes are taken at once, and the most names in these: etcd bounds a transaction."""


class FreeList(NamedTuple):
    """What a home partition publishes: it has `size` nodes of `cores` cores (0: it neither lends nor borrows).

    `nodes` are those on which it does not schedule, with the home partition that borrows each; it is empty for a node
    that is offered. `wants` says whether a job waits for nodes of other home partitions.
    """

    size: int = 0
    cores: int = 0
    wants: bool = False
    nodes: Mapping[str, str] = MappingProxyType({})

    @property
    def offered(self) -> list[str]:
        """The nodes that can be borrowed."""
        return [node for node, borrower in self.nodes.items() if not borrower]

    @property
    def lent(self) -> dict[str, str]:
        """The nodes that are lent, with their borrowers."""
        return {node: borrower for node, borrower in self.nodes.items() if borrower}


EMPTY = FreeList()


def text_of(free: FreeList) -> str:
    """Return the text of a free list."""
    return json.dumps(free._asdict() | {"nodes": dict(free.nodes)})


def free_list_of(text: bytes) -> FreeList:
    """Return the free list in a text. Raises AttributeError, KeyError, TypeError or ValueError for any other text."""
    about = json.loads(text)
    nodes = {str(node): str(borrower) for node, borrower in about["nodes"].items()}
    return FreeList(int(about["size"]), int(about["cores"]), bool(about["wants"]), nodes)


def reach(lists: Mapping[str, FreeList], home: str, cores: int) -> int:
    """Return the most nodes that a job of a home partition can ever borrow."""
    sizes = {other: min(free.size, MOST_LENT) for other, free in lists.items() if other != home and free.cores == cores}
    return sum(sizes[other] for other in _bounded(sizes, sizes))


def wanted(lists: Mapping[str, FreeList], home: str, cores: int) -> bool:
    """Return whether jobs of other home partitions wait for nodes like those of `home`."""
    return any(free.wants and free.cores == cores for other, free in lists.items() if other != home)


class Situation(NamedTuple):
    """What a home partition has: `size` nodes of its own, of `cores` cores; no job is on those that are `idle`.

    `known` are all its nodes and those that it borrows. The first waiting job `needs` so many nodes, if it may get
    those of several home partitions; otherwise that is 0. `is_short` says whether a job waits for which the home
    partition has enough nodes.
    """

    home: str
    size: int
    cores: int
    idle: Sequence[str]
    known: Container[str]
    needs: int
    is_short: bool


class Decision(NamedTuple):
    """Free lists to be written, and the nodes that the first waiting job then has, if it can start.

    These are `own` nodes of its home partition and `borrowed` ones, with the home partitions that lend them.
    """

    lists: dict[str, FreeList]
    own: Sequence[str] = ()
    borrowed: Mapping[str, str] = MappingProxyType({})


def decide(has: Situation, lists: Mapping[str, FreeList]) -> Decision:
    """Return how a home partition changes the free lists.

    It gives back borrowed nodes that it does not know: an earlier scheduler died before it stored that it had them, or
    after it had removed them. If the first waiting job lacks nodes, it takes all of them, from the home partitions that
    offer most, or asks for offers. It offers idle nodes once others ask, until a job of its own needs them.
    """
    mine = lists.get(has.home, EMPTY)
    others = {home: free for home, free in lists.items() if home != has.home}
    changed = _given_back(has, others)
    lacks = has.needs - len(has.idle) if has.needs else 0
    borrowed = _chosen(has, others | changed, lacks) if lacks > 0 else {}
    for home in set(borrowed.values()):
        free = changed.get(home, others[home])
        taken = {node: has.home for node, lender in borrowed.items() if lender == home}
        changed[home] = free._replace(nodes={**free.nodes, **taken})
    offers = has.idle if wanted(lists, has.home, has.cores) else [node for node in mine.offered if node in has.idle]
    offered = () if has.is_short or borrowed else offers[: max(0, MOST_LENT - len(mine.lent))]
    own = FreeList(has.size, has.cores, lacks > 0 and not borrowed, mine.lent | dict.fromkeys(offered, ""))
    if own != mine:
        changed[has.home] = own
    return Decision(changed, has.idle if borrowed else (), borrowed)


def _given_back(has: Situation, others: Mapping[str, FreeList]) -> dict[str, FreeList]:
    """Return the free lists of others without nodes that the home partition borrows and does not know."""
    found = {}
    for home, free in others.items():
        kept = {node: to for node, to in free.nodes.items() if to != has.home or node in has.known}
        if len(kept) < len(free.nodes):
            found[home] = free._replace(nodes=kept)
    sizes = {home: len(free.nodes) for home, free in found.items()}
    return {home: found[home] for home in _bounded(sizes, sizes)}


def _chosen(has: Situation, others: Mapping[str, FreeList], lacks: int) -> dict[str, str]:
    """Return as many offered nodes as a job lacks, with their home partitions; none if too few are offered."""
    offers = {
        home: [node for node in free.offered if node not in has.known]
        for home, free in others.items()
        if free.cores == has.cores
    }
    offered = {home: len(nodes) for home, nodes in offers.items()}
    lenders = _bounded(offered, {home: len(others[home].nodes) for home in offers})
    found = [(node, home) for home in lenders for node in offers[home]][:lacks]
    return dict(found) if len(found) == lacks else {}


def _bounded(worth: Mapping[str, int], names: Mapping[str, int]) -> list[str]:
    """Return the home partitions of most `worth`, as many as fit into a transaction with their `names`."""
    first = sorted(worth, key=lambda home: (-worth[home], home))[:MOST_LISTS]
    total = accumulate(names[home] for home in first)
    return [home for home, so_far in zip(first, total, strict=True) if so_far <= MOST_NAMES]
