# SPDX-License-Identifier: Apache-2.0
"""The signals that jobs get before their limits, once in each attempt. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drom.scheduler.live.cluster.jobs import RUNNING
from drom.scheduler.live.cluster.spec import notice_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drom.scheduler.live.cluster.driver import Driver
    from drom.scheduler.live.cluster.jobs import Job


class Notices:
    """The running ones of `jobs` that are yet to get the signal that they asked for."""

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        self._jobs = jobs
        self._waiting: set[int] = set()

    def expect(self, job: Job) -> None:
        """Add a running job, if it asked for a signal and has not got it."""
        if job.spec.signal and not job.notified:
            self._waiting.add(job.number)

    def times(self, controller: Driver) -> list[tuple[float, Job]]:
        """Return when each job gets its signal (unix seconds); limits, and with them these times, may change."""
        jobs = [self._jobs.get(number) for number in self._waiting]
        running = [job for job in jobs if job and job.state == RUNNING and not job.notified]
        self._waiting = {job.number for job in running}
        return [
            ((job.started or 0.0) + controller.limit(job.number) - notice_of(job.spec.signal).before, job)
            for job in running
        ]
