# SPDX-License-Identifier: Apache-2.0
"""Sets of nodes as rows of 64-bit words: node n is bit ``n % 64`` of word ``n // 64``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from drom.scheduler.interface import NOBODY, lean, routine
from numpy.typing import NDArray

if TYPE_CHECKING:
    from drom.scheduler.interface import Ints

Words = NDArray[np.uint64]
"""A set, of shape ``(words,)``, or several, of shape ``(sets, words)``."""

WORD = 64
ZERO, ONE = np.uint64(0), np.uint64(1)
_PAIRS, _FOURS, _EIGHTS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_STEPS = tuple(np.uint64(shift) for shift in (1, 2, 4, 8, 16, 32))
_LOW = np.uint64(0x7F)


@lean
def words_for(nodes: int) -> int:
    """Return the number of words of a set of `nodes` nodes."""
    return (nodes + WORD - 1) // WORD


@lean
def bit_of(node: int) -> np.uint64:
    """Return the bit of a node in its word."""
    bit: np.uint64 = ONE << np.uint64(node % WORD)
    return bit


@lean
def insert(nodes: Words, node: int) -> None:
    """Add a node."""
    nodes[node // WORD] |= bit_of(node)


@lean
def fill(nodes: Words) -> None:
    """Fill a set with all nodes."""
    for i in range(len(nodes)):
        nodes[i] = ~ZERO


@lean
def contains(nodes: Words, node: int) -> bool:
    """Return whether a set contains a node."""
    return bool(nodes[node // WORD] & bit_of(node) != ZERO)


@lean
def contains_all(nodes: Words, members: Ints) -> bool:
    """Return whether a set contains all these nodes."""
    missing = 0
    for node in members:
        missing += not contains(nodes, node)
    return missing == 0


@lean
def contains_any(nodes: Words, members: Ints) -> bool:
    """Return whether a set contains any of these nodes."""
    common = 0
    for node in members:
        common += contains(nodes, node)
    return common > 0


@lean
def ones(word: np.uint64) -> int:
    """Return the number of bits set in a word, by sums of neighbouring bits, pairs, fours and so on."""
    word -= (word >> _STEPS[0]) & _PAIRS
    word = (word & _FOURS) + ((word >> _STEPS[1]) & _FOURS)
    word = (word + (word >> _STEPS[2])) & _EIGHTS
    word += word >> _STEPS[3]
    word += word >> _STEPS[4]
    word += word >> _STEPS[5]
    return int(word & _LOW)


@lean
def count(nodes: Words) -> int:
    """Return the size of a set."""
    total = 0
    for word in nodes:
        total += ones(word)
    return total


@lean
def count_common(nodes: Words, others: Words) -> int:
    """Return how many nodes are in both sets."""
    total = 0
    for i in range(len(nodes)):
        total += ones(nodes[i] & others[i])
    return total


@lean
def copy(nodes: Words, others: Words) -> None:
    """Copy the second set into the first."""
    for i in range(len(nodes)):
        nodes[i] = others[i]


@lean
def keep(nodes: Words, others: Words) -> None:
    """Remove the nodes that are not in the second set."""
    for i in range(len(nodes)):
        nodes[i] &= others[i]


@lean
def take_away(nodes: Words, others: Words) -> None:
    """Remove the nodes that are in the second set."""
    for i in range(len(nodes)):
        nodes[i] &= ~others[i]


@lean
def keep_lowest(nodes: Words, number: int) -> None:
    """Keep only the `number` nodes with the lowest numbers."""
    left = number
    for i in range(len(nodes)):
        here = ones(nodes[i])
        if here > left:
            nodes[i] = lowest_bits(nodes[i], left)
            here = left
        left -= here


@lean
def lowest_bits(word: np.uint64, number: int) -> np.uint64:
    """Return the `number` lowest bits that are set in a word."""
    rest = word
    for _ in range(number):
        rest &= rest - ONE
    lowest: np.uint64 = word ^ rest
    return lowest


@lean
def first_run(nodes: Words, number: int) -> int:
    """Return the first node of the first run of `number` consecutive nodes; NOBODY if there is none."""
    run = 0
    for i in range(len(nodes)):
        if nodes[i] == ZERO:
            run = 0
            continue
        for node in range(i * WORD, (i + 1) * WORD):
            run = run + 1 if contains(nodes, node) else 0
            if run == number:
                return node - number + 1
    return NOBODY


@lean
def keep_run(nodes: Words, number: int) -> bool:
    """Keep only the first run of `number` consecutive nodes; return whether there is one."""
    first = first_run(nodes, number)
    if first == NOBODY:
        return False
    for i in range(len(nodes)):
        nodes[i] = ZERO
    for node in range(first, first + number):
        insert(nodes, node)
    return True


@routine
def members(nodes: Words) -> Ints:
    """Return the nodes of a set in rising order."""
    found, used = np.empty(count(nodes), np.int64), 0
    for node in range(len(nodes) * WORD):
        if contains(nodes, node):
            found[used] = node
            used += 1
    return found
