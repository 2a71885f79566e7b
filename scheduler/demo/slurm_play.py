# SPDX-License-Identifier: Apache-2.0
"""One run of the demonstration's jobs on a real Slurm: they are submitted, watched and checked."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drom.scheduler.demo import story
from drom.scheduler.testbed.namespaces import PATIENCE, MachineError
from drom.scheduler.testbed.slurm_history import SlurmHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from drom.scheduler.demo.jobs import Submission
    from drom.scheduler.testbed.slurm import SlurmCluster

LOOK = 0.2
"""Seconds between two looks at the cluster."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run: its history, sentences about errors found, and exact times (unix seconds) by job."""

    history: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    looks: int = 0
    slowdown: float = 0.0
    """Mean over jobs of the time from submission to end, divided by that of the job alone with all cores."""


class SlurmRun:
    """Submits a mix of MPI jobs that run `program` to a partition, and reports events to `tell` line by line."""

    def __init__(
        self,
        cluster: SlurmCluster,
        program: Path,
        mix: Sequence[Submission],
        partition: str,
        tell: Callable[[str], None],
    ) -> None:
        self._cluster, self._program, self._tell = cluster, program, tell
        self._mix, self._partition = mix, partition
        self._story = story.Narrator(time.time(), cluster.cores)
        self._history = SlurmHistory(cluster, partition)
        self._outcome = Outcome({})

    def run(self) -> Outcome:
        """Run until all jobs are over and return the outcome. Raises `MachineError` and `ControlError`."""
        waiting = list(self._mix)
        latest = max(job.at for job in self._mix) + 2 * sum(job.limit for job in self._mix) + PATIENCE
        while waiting or self._history.left:
            now = time.time() - self._story.begin
            while waiting and waiting[0].at <= now:
                self._submit(waiting.pop(0))
            if now > latest:
                raise MachineError("the jobs do not come to an end: is this machine very busy?")
            self._look()
            time.sleep(LOOK)
        self._judge()
        return self._outcome

    def _submit(self, job: Submission) -> None:
        each = self._cluster.cores // job.tasks
        options = (f"-n{job.nodes * job.tasks}", f"-c{each}", f"--malleable=1:{each}", "--oversubscribe")
        command = f"srun --mpi=pmix {self._program} {job.work:g}"
        self._story.jobs[self._history.submit(command, job.name, job.nodes, job.limit, *options)] = job

    def _look(self) -> None:
        """Report new events, and check that no core is held by two tasks."""
        for name, rows in self._history.look().items():
            if complaint := story.double(rows):
                self._outcome.problems.append(f"{name}: {complaint}")
        self._outcome.looks += 1
        for line in self._story.hear(self._history.entries):
            self._tell(line)

    def _judge(self) -> None:
        self._outcome.history = self._history.to_json(self._partition)
        jobs = self._history.jobs
        for number, job in jobs.items():
            self._outcome.problems += story.judge(self._story.jobs[number], job, self._history.output(number))
        slowdowns = [
            (job["ended"] - job["submitted"]) / self._story.jobs[number].seconds for number, job in jobs.items()
        ]
        self._outcome.slowdown = sum(slowdowns) / len(slowdowns)
