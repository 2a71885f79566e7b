# SPDX-License-Identifier: Apache-2.0
"""The jobs of the demonstration and their times of submission: two long ones, and short ones that arrive later."""

from __future__ import annotations

from dataclasses import dataclass

CORES = 4
"""Cores of each node."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job of `nodes` nodes, submitted at second `at`, that takes `seconds` with all their cores."""

    at: float
    name: str
    nodes: int
    seconds: float
    limit: int
    """The time limit that its user asks for, in seconds."""

    @property
    def tasks(self) -> int:
        """The ranks on each node; a job of one node has two, so that every job is an MPI job."""
        return 2 if self.nodes == 1 else 1

    @property
    def work(self) -> float:
        """The core-seconds of each rank."""
        return self.seconds * CORES / self.tasks


MIX = (
    Submission(0, "ocean", 2, 28, 90),
    Submission(1, "climate", 2, 34, 90),
    Submission(5, "check", 2, 5, 20),
    Submission(9, "render", 2, 4, 20),
    Submission(13, "survey", 4, 6, 20),
    Submission(24, "probe", 1, 4, 20),
    Submission(28, "merge", 2, 6, 20),
    Submission(33, "report", 2, 4, 20),
)
KILL_AT = 17.0
"""The second at which the scheduler is killed."""
DEAD = 2.0
"""Seconds without a scheduler, in addition to those that the next one takes to start."""
