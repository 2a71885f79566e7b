# SPDX-License-Identifier: Apache-2.0
"""The jobs that were submitted to a real Slurm and what became of them, found out by looking at the cluster.

The history has the form of that of `drom scheduler`, so that the same pictures, figures and checks apply.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from drom.scheduler.live.cluster.jobs import CANCELLED, COMPLETED, FAILED, FINAL, NODE_FAIL, TIMEOUT

from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from drom.scheduler.testbed.slurm import SlurmCluster

SCRIPT = "{command}; status=$?; date +drom-end:%s.%N; exit $status"
STATES = {"COMPLETED": COMPLETED, "FAILED": FAILED, "CANCELLED": CANCELLED, "TIMEOUT": TIMEOUT, "NODE_FAIL": NODE_FAIL}
"""The final states of Slurm's jobs, and our words for them."""
_END = re.compile(r"^drom-end:([0-9.]+)\n?", re.MULTILINE)


class SlurmHistory:
    """The history of jobs in one partition of a cluster. Methods raise `MachineError` and `ControlError`.

    `jobs` are those that were submitted, by number, and `entries` their events, both as in a scheduler's answer to
    `history`. Times are unix seconds: those of submissions and ends are exact, others those of the looks.
    """

    def __init__(self, cluster: SlurmCluster, partition: str) -> None:
        self._cluster, self._partition = cluster, partition
        self.jobs: dict[int, dict[str, Any]] = {}
        self.entries: list[dict[str, Any]] = []
        self._held: dict[int, dict[str, int]] = {}
        """The cores that each job that runs had on its nodes at the last look."""

    def submit(self, command: str, name: str, nodes: int, limit: int, *options: str) -> int:
        """Submit a job that runs a shell command, with a time limit in seconds, and return its number.

        Slurm rounds the limit up to whole minutes. `options` are those of sbatch for cores, tasks and sharing.
        """
        at, minutes = time.time(), -(-limit // 60)
        words = ("-p", self._partition, "-J", name, f"-N{nodes}", f"-t{minutes}", "--no-requeue", *options)
        number = self._cluster.submit(SCRIPT.format(command=command), *words)
        self.jobs[number] = {
            "job": number,
            "name": name,
            "user": "root",
            "class": "malleable",
            "nodes": nodes,
            "requested": limit,
            "limit": minutes * 60,
            "submitted": at,
            "started": None,
            "ended": None,
            "state": "waiting",
            "status": None,
            "reason": "",
            "attempt": 1,
            "shares": {},
            "saving": "",
        }
        self._note(number, "submitted", at)
        return number

    @property
    def left(self) -> int:
        """The number of jobs that have not ended."""
        return sum(job["state"] not in FINAL for job in self.jobs.values())

    def look(self) -> dict[str, list[dict[str, Any]]]:
        """Record the events since the last look; return the tasks of each node, as `drom ps` lists them."""
        states = self._states()
        tasks = {name: self._cluster.tasks(name) for name in self._cluster.names}
        cores: dict[int, dict[str, int]] = defaultdict(dict)
        for name, rows in tasks.items():
            for row in rows:
                has = cores[int(row["job"].partition("-")[2])]
                has[name] = has.get(name, 0) + parse_cpulist(row["granted"]).bit_count()
        at = time.time()
        open_jobs = [number for number, job in self.jobs.items() if job["state"] not in FINAL]
        for number in open_jobs:
            if self.jobs[number]["started"] is None:
                self._start(number, cores, at)
            self._resize(number, cores[number], at)
        for number in open_jobs:
            if (state := states.get(number, "")) in STATES:
                self._end(number, state, at)
        return tasks

    def output(self, number: int) -> str:
        """Return what a job has printed, without the line that marks its end."""
        return _END.sub("", self._output(number))

    def to_json(self, name: str) -> dict[str, Any]:
        """Return the history as a scheduler's answer to `history`; `name` is that of the cluster."""
        return {
            "name": name,
            "policy": "slurm",
            "parameters": {},
            "nodes": self._cluster.names,
            "cores": self._cluster.cores,
            "time": time.time(),
            "jobs": list(self.jobs.values()),
            "entries": self.entries,
        }

    def _note(self, number: int, what: str, at: float, **detail: Any) -> None:  # noqa: ANN401 - JSON values
        self.entries.append({"job": number, "what": what, "at": at, "detail": detail})

    def _states(self) -> dict[int, str]:
        rows = self._cluster.ask("squeue", "--noheader", "--states=all", "-o", "%i %T").split()
        return {int(number): state for number, state in zip(rows[::2], rows[1::2], strict=True)}

    def _start(self, number: int, cores: dict[int, dict[str, int]], at: float) -> None:
        """Record that a job has started, once it has cores on all its nodes."""
        job, has = self.jobs[number], cores[number]
        if len(has) < job["nodes"] or not all(has.values()):
            return
        mates = [other for other in self._held if cores[other].keys() & has.keys()]
        job.update(started=at, state="running", shares=dict(has))
        self._note(number, "placed", at, shares=dict(has), mates=mates)
        self._note(number, "started", at)
        self._held[number] = dict(has)

    def _resize(self, number: int, cores: dict[str, int], at: float) -> None:
        for node, has in cores.items() if number in self._held else ():
            if has and has != self._held[number].get(node):
                self._held[number][node] = has
                self._note(number, "ordered", at, node=node, cores=has)
                self._note(number, "resized", at, node=node, cores=has)

    def _end(self, number: int, state: str, at: float) -> None:
        self._held.pop(number, None)
        end = _END.search(self._output(number))
        ended = float(end[1]) if end else at
        self.jobs[number].update(state=STATES[state], status=int(state != "COMPLETED"), ended=ended)
        self._note(number, STATES[state], ended)

    def _output(self, number: int) -> str:
        path = self._cluster.work / f"{number}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
