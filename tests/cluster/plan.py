# SPDX-License-Identifier: Apache-2.0
"""What is to happen to a cluster, as a function of a seed alone: the same seed gives the same acts in the same order.

Whom an act meets, and in which state, depends on the machine as well: a run can be repeated, its interleavings cannot.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = {"program": 45, "step": 25, "agent": 20, "scheduler": 10}
"""What is killed, by how often: a job's program, the drom-step that keeps it on a node, an agent, the scheduler."""
LIFE = {"submit": 90, "cancel": 6}
"""What users do meanwhile, likewise."""
PAUSE = 0.05
"""Mean seconds between two acts."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens: after so many seconds, to somebody; `choice` decides the rest, as its own seed."""

    kind: str
    pause: float
    choice: int

    @property
    def is_kill(self) -> bool:
        """Whether it counts as a kill."""
        return self.kind in KILLS

    def chance(self) -> random.Random:
        """Return what all choices within this act come from."""
        return random.Random(self.choice)


def acts(seed: int) -> Iterator[Act]:
    """Return acts without end."""
    chance, weights = random.Random(seed), KILLS | LIFE
    while True:
        (kind,) = chance.choices(list(weights), list(weights.values()))
        yield Act(kind, chance.expovariate(1 / PAUSE), chance.getrandbits(32))
