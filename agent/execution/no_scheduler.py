# SPDX-License-Identifier: Apache-2.0
"""The executor of a node without a scheduler, which needs nothing of the others. Imports nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.agent.model.jobs import Reservation, Task
    from drom.agent.observe.job_rates import RateSample


class NoScheduler:
    """The executor of a node without a scheduler."""

    live_jobs = 0

    def reservations(self) -> list[Reservation]:
        """Return an empty list: nothing is reserved."""
        return []

    def open(self) -> None:
        """Do nothing: there is no scheduler to connect to."""

    def run(self, now: float) -> None:
        """Do nothing."""

    def next_due(self) -> float | None:
        """Return None: there is nothing to do."""
        return None

    def rates_measured(self, samples: Iterable[RateSample]) -> None:
        """Record measurements of jobs."""

    def reaps(self, _task: Task) -> bool:
        """Return whether the executor ends the processes that remain of a task after its first process has ended."""
        return False

    def close(self) -> None:
        """Do nothing."""
