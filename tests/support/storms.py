# SPDX-License-Identifier: Apache-2.0
"""What all storms are made of: acts drawn by a seed alone, and the account of what came of them.

Whom an act meets, and in which state, depends on the machine as well: a run can be repeated, its interleavings cannot.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens: after so many seconds, to somebody; `choice` decides the rest, as its own seed."""

    kind: str
    pause: float
    choice: int

    def chance(self) -> random.Random:
        """Return what all choices within this act come from."""
        return random.Random(self.choice)


def draw(seed: int, weights: Mapping[str, int], pause: float) -> Iterator[Act]:
    """Return acts without end, by how often each kind comes; `pause` is the mean of the seconds between two."""
    chance = random.Random(seed)
    while True:
        (kind,) = chance.choices(list(weights), list(weights.values()))
        yield Act(kind, chance.expovariate(1 / pause), chance.getrandbits(32))


class Outcome(Protocol):
    """What came of a storm."""

    violations: list[str]

    def table(self) -> str:
        """Return the table for people, as Markdown."""

    def summary(self) -> str:
        """Return a line on what happened besides."""


def tell(words: str) -> None:
    """Say on stderr how far a storm is, in one line of a terminal."""
    sys.stderr.write(f"\r\x1b[K{words}" if sys.stderr.isatty() else f"{words}\n")


def report(seed: int, outcome: Outcome) -> int:
    """Print what came of a storm; return the exit status, 1 when anything was violated."""
    tell("")
    print(f"seed {seed}\n\n{outcome.table()}\n\n{outcome.summary()}")
    print("\n".join(outcome.violations))
    return bool(outcome.violations)
