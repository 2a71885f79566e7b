# SPDX-License-Identifier: Apache-2.0
"""What is to happen to a cluster, as a function of a seed alone: a seed gives the same acts in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.storms import Act, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCH = {"mpirun": 20, "orted": 20, "remote": 20, "command": 20, "rank": 10}
"""What is killed of a launch of MPI, by how often: the two daemons, `drom-step remote` between them, the drom-step that
keeps one of them on the other node, a rank."""
KILLS = {"program": 45, "step": 25, "agent": 20, "scheduler": 10, "hostile": 15, "cut": 10} | LAUNCH
"""What is killed, likewise: a job's program, the drom-step that keeps it on a node, an agent, the scheduler. `hostile`
is another user, who attacks agents and scheduler for a while, and `cut` a node that loses its link for a while."""
LIFE = {"submit": 90, "cancel": 6}
"""What users do meanwhile, likewise."""
PAUSE = 0.05
"""Mean seconds between two acts."""


def acts(seed: int) -> Iterator[Act]:
    """Return acts without end."""
    return draw(seed, KILLS | LIFE, PAUSE)
