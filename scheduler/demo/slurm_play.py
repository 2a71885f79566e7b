# SPDX-License-Identifier: Apache-2.0
"""One run of jobs on a real Slurm: they are submitted and watched, and their history is written down.

The history has the form of that of `drom scheduler`, so that the same pictures, figures and checks apply.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from drom.scheduler.demo import story
from drom.scheduler.live.cluster.jobs import CANCELLED, COMPLETED, FAILED, FINAL, NODE_FAIL, TIMEOUT
from drom.scheduler.testbed.namespaces import PATIENCE, MachineError

from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from drom.scheduler.demo.jobs import Submission
    from drom.scheduler.testbed.slurm import SlurmCluster

LOOK = 0.2
"""Seconds between two looks at the cluster."""
SCRIPT = "srun --mpi=pmix {program} {work:g}; status=$?; date +drom-end:%s.%N; exit $status"
STATES = {"COMPLETED": COMPLETED, "FAILED": FAILED, "CANCELLED": CANCELLED, "TIMEOUT": TIMEOUT, "NODE_FAIL": NODE_FAIL}
"""The final states of Slurm's jobs, and our words for them."""


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
        self._jobs: dict[int, dict[str, Any]] = {}
        self._entries: list[dict[str, Any]] = []
        self._held: dict[int, dict[str, int]] = {}
        """The cores that each job that runs had on its nodes at the last look."""
        self._outcome = Outcome({})

    def run(self) -> Outcome:
        """Run until all jobs are over and return the outcome. Raises `MachineError` and `ControlError`."""
        waiting = list(self._mix)
        latest = max(job.at for job in self._mix) + 2 * sum(job.limit for job in self._mix) + PATIENCE
        while waiting or any(job["state"] not in FINAL for job in self._jobs.values()):
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
        ranks = job.nodes * job.tasks
        each = self._cluster.cores // job.tasks
        options = ("-J", job.name, f"-N{job.nodes}", f"-n{ranks}", f"-c{each}", f"-t{-(-job.limit // 60)}")
        script = SCRIPT.format(program=self._program, work=job.work)
        at = time.time()
        number = self._cluster.submit(
            script, "-p", self._partition, f"--malleable=1:{each}", "--oversubscribe", *options
        )
        self._story.jobs[number] = job
        self._jobs[number] = {
            "job": number,
            "name": job.name,
            "user": "root",
            "class": "malleable",
            "nodes": job.nodes,
            "requested": job.limit,
            "limit": -(-job.limit // 60) * 60,
            "submitted": at,
            "started": None,
            "ended": None,
            "state": "waiting",
            "status": None,
            "reason": "",
            "attempt": 1,
            "shares": {},
        }
        self._note(number, "submitted", at)

    def _note(self, number: int, what: str, at: float, **detail: Any) -> None:  # noqa: ANN401 - JSON values
        self._entries.append({"job": number, "what": what, "at": at, "detail": detail})

    def _look(self) -> None:
        """Report new events, and check that no core is held by two tasks."""
        states = self._states()
        cores: dict[int, dict[str, int]] = defaultdict(dict)
        for name in self._cluster.names:
            rows = self._cluster.tasks(name)
            if complaint := story.double(rows):
                self._outcome.problems.append(f"{name}: {complaint}")
            for row in rows:
                number = int(row["job"].partition("-")[2])
                cores[number][name] = cores[number].get(name, 0) + parse_cpulist(row["granted"]).bit_count()
        at = time.time()
        for number, job in self._jobs.items():
            if job["state"] not in FINAL:
                self._follow(number, job, states.get(number, ""), cores[number], at)
        self._outcome.looks += 1
        for line in self._story.hear(self._entries):
            self._tell(line)

    def _states(self) -> dict[int, str]:
        rows = self._cluster.ask("squeue", "--noheader", "--states=all", "-o", "%i %T").split()
        return {int(number): state for number, state in zip(rows[::2], rows[1::2], strict=True)}

    def _follow(self, number: int, job: dict[str, Any], state: str, cores: dict[str, int], at: float) -> None:
        if job["started"] is None and len(cores) == job["nodes"] and all(cores.values()):
            mates = [other for other, has in self._held.items() if has.keys() & cores.keys()]
            job.update(started=at, state="running", shares=dict(cores))
            self._note(number, "placed", at, shares=dict(cores), mates=mates)
            self._note(number, "started", at)
            self._held[number] = dict(cores)
        for node, has in cores.items() if number in self._held else ():
            if has and has != self._held[number].get(node):
                self._held[number][node] = has
                self._note(number, "resized", at, node=node, cores=has)
        if state in STATES:
            self._held.pop(number, None)
            end = re.search(r"^drom-end:([0-9.]+)$", self._output(number), re.MULTILINE)
            job.update(state=STATES[state], status=int(state != "COMPLETED"), ended=float(end[1]) if end else at)
            self._note(number, STATES[state], job["ended"])

    def _output(self, number: int) -> str:
        path = self._cluster.work / f"{number}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _judge(self) -> None:
        jobs = list(self._jobs.values())
        self._outcome.history = {
            "name": self._partition,
            "policy": "slurm",
            "parameters": {},
            "nodes": self._cluster.names,
            "cores": self._cluster.cores,
            "time": time.time(),
            "jobs": jobs,
            "entries": self._entries,
        }
        for job in jobs:
            said = re.sub(r"^drom-end:.*\n?", "", self._output(job["job"]), flags=re.MULTILINE)
            self._outcome.problems += story.judge(self._story.jobs[job["job"]], job, said)
        slowdowns = [
            (job["ended"] - job["submitted"]) / self._story.jobs[number].seconds for number, job in self._jobs.items()
        ]
        self._outcome.slowdown = sum(slowdowns) / len(slowdowns)
