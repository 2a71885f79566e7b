# SPDX-License-Identifier: Apache-2.0
"""What is to happen, as a function of a seed alone: the same seed gives the same acts in the same order.

Whom an act meets and in which state depends on the machine as well: a run can be repeated, its interleavings cannot.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

FAULTS = {
    "program killed": 30,
    "agent killed": 12,
    "agent killed in a change": 8,
    "agent stopped and started anew": 1,
    "program stopped for a while": 8,
    "agent stopped for a while": 4,
    "mask rewritten": 12,
    "mailbox forged": 8,
    "mailbox cut or stretched": 4,
    "file system full": 4,
    "wall clock moved": 5,
    "nonsense at the door": 4,
}
"""Faults by how often each comes."""
DEADLY = ("agent killed", "agent killed in a change", "agent stopped and started anew", "file system full")
"""Faults that an agent does not outlive, or may not."""
LIFE = {"a program comes": 60, "a program is told to end": 10, "an order": 20}
"""What happens without any fault, likewise."""
PAUSE = 0.012
"""Mean seconds between two acts."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens: after so many seconds, to somebody; `choice` decides the rest, as its own seed."""

    kind: str
    pause: float
    choice: int

    @property
    def is_fault(self) -> bool:
        """Whether it counts as a fault."""
        return self.kind in FAULTS

    def chance(self) -> random.Random:
        """Return what all choices within this act come from."""
        return random.Random(self.choice)


def acts(seed: int, without: Collection[str] = ()) -> Iterator[Act]:
    """Return acts without end; none of the kinds named."""
    chance = random.Random(seed)
    weights = {kind: weight for kind, weight in (FAULTS | LIFE).items() if kind not in without}
    while True:
        (kind,) = chance.choices(list(weights), list(weights.values()))
        yield Act(kind, chance.expovariate(1 / PAUSE), chance.getrandbits(32))
