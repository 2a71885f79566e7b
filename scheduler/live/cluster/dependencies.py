# SPDX-License-Identifier: Apache-2.0
"""Dependencies between jobs, kept once for all jobs of a submission. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from drom.scheduler.live.cluster.jobs import Job
    from drom.scheduler.live.cluster.spec import Dependency, Spec


@dataclass(slots=True)
class Wait:
    """The open dependencies of the `jobs` of one submission, by the number of the other job."""

    spec: Spec
    open: dict[int, tuple[Dependency, ...]]
    jobs: dict[int, None] = field(default_factory=dict)


class Dependencies:
    """The jobs that wait for others.

    A job that was put back into the queue waits on its own: its dependencies may have changed since its submission.
    """

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        """Keyed by the identity of its jobs' specification, or by the negated number of its only job."""
        self._dependents: dict[int, set[int]] = {}
        """The keys of the waits for a job, by its number."""

    def of(self, job: Job) -> list[int]:
        """Return the jobs for which a job still waits."""
        wait = self._waits.get(_key(job))
        return list(wait.open) if wait and job.number in wait.jobs else []

    def join(self, job: Job) -> bool:
        """Add a job to the wait of its submission; return whether there is one."""
        wait = self._waits.get(_key(job))
        if wait:
            wait.jobs[job.number] = None
        return wait is not None

    def begin(self, job: Job, others: Iterable[int]) -> None:
        """Record that a job waits for `others`, if there are any."""
        about: dict[int, list[Dependency]] = {other: [] for other in others}
        for dependency in job.spec.after:
            if dependency.job in about:
                about[dependency.job].append(dependency)
        if about:
            wanted = {other: tuple(found) for other, found in about.items()}
            self._waits[_key(job)] = Wait(job.spec, wanted, {job.number: None})
            for other in about:
                self._dependents.setdefault(other, set()).add(_key(job))

    def on(self, other: int) -> list[Wait]:
        """Return the waits for a job, in the order of their first jobs."""
        found = [self._waits[key] for key in self._dependents.get(other, ())]
        return sorted(found, key=lambda wait: min(wait.jobs))

    def met(self, wait: Wait, other: int, job: Job) -> bool:
        """Record that what `wait`, to which `job` belongs, required of another job is met; return whether all is."""
        del wait.open[other]
        self._forget(other, _key(job))
        if not wait.open:
            del self._waits[_key(job)]
        return not wait.open

    def leave(self, job: Job) -> None:
        """Record that a job no longer waits."""
        key = _key(job)
        wait = self._waits.get(key)
        if wait is None or job.number not in wait.jobs:
            return
        del wait.jobs[job.number]
        if not wait.jobs:
            del self._waits[key]
            for other in wait.open:
                self._forget(other, key)

    def _forget(self, other: int, key: int) -> None:
        keys = self._dependents[other]
        keys.discard(key)
        if not keys:
            del self._dependents[other]


def _key(job: Job) -> int:
    return -job.number if job.attempt else id(job.spec)
