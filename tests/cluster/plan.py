# SPDX-License-Identifier: Apache-2.0
"""What is to happen to a cluster, as a function of a seed alone: a seed gives the same acts in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.storms import Act, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

KILLS = {"program": 45, "step": 25, "agent": 20, "scheduler": 10}
"""What is killed, by how often: a job's program, the drom-step that keeps it on a node, an agent, the scheduler."""
LIFE = {"submit": 90, "cancel": 6}
"""What users do meanwhile, likewise."""
PAUSE = 0.05
"""Mean seconds between two acts."""


def acts(seed: int) -> Iterator[Act]:
    """Return acts without end."""
    return draw(seed, KILLS | LIFE, PAUSE)
