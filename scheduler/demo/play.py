# SPDX-License-Identifier: Apache-2.0
"""One run of the demonstration: jobs are submitted to a real cluster and watched, and the scheduler is killed."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drom.agent.text import counted
from drom.scheduler.demo import story
from drom.scheduler.demo.jobs import DEAD, KILL_AT
from drom.scheduler.live.cluster.jobs import FINAL
from drom.scheduler.testbed.namespaces import PATIENCE, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from drom.scheduler.demo.jobs import Submission
    from drom.scheduler.testbed.cluster import Cluster

LOOK = 0.2
"""Seconds between two checks of the cluster."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run: the scheduler's history of it, and sentences about errors found."""

    history: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    looks: int = 0
    """The number of checks, on all nodes, of the tasks that hold each core."""
    back_s: float = 0.0
    """Seconds from the start of the scheduler that replaced the killed one until it was ready."""


class DemoRun:
    """Submits a mix of jobs that run `program` to a cluster, and reports events to `tell` line by line."""

    def __init__(self, cluster: Cluster, program: Path, mix: Sequence[Submission], tell: Callable[[str], None]) -> None:
        self._cluster, self._program, self._tell = cluster, program, tell
        self._mix = mix
        self.outcome = Outcome()
        self._story = story.Narrator(time.time(), cluster.cores)

    def run(self) -> Outcome:
        """Run until all jobs are over and return the outcome. Raises `MachineError` and `ControlError`."""
        waiting, killed = list(self._mix), False
        latest = max(job.at for job in self._mix) + 2 * sum(job.limit for job in self._mix) + PATIENCE
        while waiting or not self._all_over():
            now = time.time() - self._story.begin
            while waiting and waiting[0].at <= now:
                self._submit(waiting.pop(0))
            if not killed and now >= KILL_AT:
                killed = True
                self._kill_scheduler()
            if now > latest:
                raise MachineError("the jobs do not come to an end: is this machine very busy?")
            self._look()
            time.sleep(LOOK)
        self._look()
        self._judge()
        return self.outcome

    def _submit(self, job: Submission) -> None:
        words = (str(self._program), f"{job.work:g}")
        number = self._cluster.submit(*words, name=job.name, nodes=job.nodes, tasks=job.tasks, time=job.limit)
        self._story.jobs[number] = job

    def _all_over(self) -> bool:
        return all(job["state"] in FINAL for job in self.outcome.history.get("jobs", [{"state": ""}]))

    def _look(self) -> None:
        """Report new events, and check that no core is held by two tasks."""
        self.outcome.history = self._cluster.ask("history", last=100_000)
        for line in self._story.hear(self.outcome.history["entries"]):
            self._tell(line)
        for name in self._cluster.names:
            if complaint := story.double(self._cluster.tasks(name)):
                self.outcome.problems.append(f"{name}: {complaint}")
        self.outcome.looks += 1

    def _kill_scheduler(self) -> None:
        """Kill the scheduler, check that jobs continue without it, and start another one."""
        cluster, scheduler = self._cluster, self._cluster.scheduler
        self._look()
        before = self._steps()
        pid = scheduler.pid if scheduler else 0
        if scheduler:
            scheduler.end(signal.SIGKILL)
        self._tell(self._story.line(time.time(), f"kill -9 {pid}: there is no scheduler any more"))
        time.sleep(DEAD)
        after = self._steps()
        names = {number: job.name for number, job in self._story.jobs.items()}
        for number, node, _ in (rank for rank in before if after.get(rank, math.inf) <= before[rank]):
            self.outcome.problems.append(f"without a scheduler {names[number]} has made no step on {node}.")
        words = f"meanwhile jobs have gone on: {', '.join(story.progress_between(before, after, names))}"
        self._tell(self._story.line(time.time(), words))
        begin = time.monotonic()
        cluster.start_scheduler()
        cluster.await_nodes(up=cluster.names)
        self.outcome.back_s = time.monotonic() - begin
        self._look()
        running = sum(job["state"] == "running" for job in cluster.ask("queue")["jobs"])
        found = counted(running, "running job")
        words = f"{self.outcome.back_s:.1f} s after its start another scheduler has all nodes and {found} again"
        self._tell(self._story.line(time.time(), words))

    def _steps(self) -> story.Steps:
        rows = [(name, row) for name in self._cluster.names for row in self._cluster.tasks(name)]
        return {(int(row["job"].partition("-")[2]), name, row["pid"]): row["progress"] for name, row in rows}

    def _judge(self) -> None:
        problems, cluster = self.outcome.problems, self._cluster
        for job in self.outcome.history["jobs"]:
            output = cluster.work / f"drom-{job['job']}.out"
            text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
            problems += story.judge(self._story.jobs[job["job"]], job, text)
        cluster.wait_until(lambda: not self._steps(), "all cores to be free")
        problems += cluster.stop()
