# SPDX-License-Identifier: Apache-2.0
"""One run of the jobs on a real, unpatched Slurm: on its own cluster, at one of the levels of docs/slurm.md."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil
from drom.scheduler.demo.story import double
from drom.scheduler.reproduction.sd_policy.real.jobs import limit_of, speeds
from drom.scheduler.reproduction.sd_policy.real.settings import LEVELS, SCALES
from drom.scheduler.testbed.namespaces import PATIENCE, MachineError
from drom.scheduler.testbed.slurm import SlurmCluster, build_plugin, plugin_line, write_job_submit
from drom.scheduler.testbed.slurm_history import SlurmHistory

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from drom.scheduler.reproduction.sd_policy.real.jobs import PlannedJob
    from drom.scheduler.reproduction.sd_policy.real.running import Task

LOOK = 0.5
"""Seconds between two looks at the cluster."""
DEADLINE = 300
"""Seconds that a task may wait for its first cores."""
PARTITION = "main"
SETTINGS = """\
PriorityType=priority/multifactor
PartitionName={partition} Nodes={{nodes}} Default=YES MaxTime=INFINITE State=UP OverSubscribe={sharing}
"""
LUA = "JobSubmitPlugins=lua\n"
GATE = "Licenses=drom_gate:1000000\n"
STEP = "srun -K1 {launcher} sh -c 'exec {program} --task {table} $SLURM_PROCID $SLURM_NTASKS {work}'"
"""The command of a job: a task on each of its nodes; one that fails ends the others."""


def run(task: Task, show: Callable[[float], None], stop: Event) -> dict[str, Any]:
    """Make a run and return its history, in the form of a scheduler's.

    It also has the last words of each job's program in `said`, sentences about errors in `problems`, the part of the
    time that this machine's processors were busy in `busy`, and in `taken_back` how often `drom slurm` took back a job
    that Slurm had not started. Raises MachineError and ControlError, also soon after `stop` is set; nothing of the
    cluster is left then.
    """
    scale, level = SCALES[task.scale], list(LEVELS).index(task.policy)
    with TemporaryDirectory(prefix="drom-real-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # Slurm's daemon has another user
        plugin = plugin_line(build_plugin(folder), DEADLINE) if level else ""
        if level:
            write_job_submit(folder, gated=PARTITION if level == 2 else "")
        settings = SETTINGS.format(partition=PARTITION, sharing="YES:2" if level else "NO")
        cluster = SlurmCluster(
            folder,
            nodes=scale.nodes,
            cores=scale.cores,
            settings=settings + (LUA if level else "") + (GATE if level == 2 else ""),
            plugstack=plugin,
            prefix=f"m{os.getpid()}-{level}-",  # Slurm's control groups have the names of nodes
            agent_options=("--slurm-limits",),
        )
        with cluster, cluster.decided(PARTITION, compiled=True) if level == 2 else nullcontext():
            return _Run(cluster, task, level).run(show, stop)


class _Run:
    def __init__(self, cluster: SlurmCluster, task: Task, level: int) -> None:
        self._cluster, self._task, self._level = cluster, task, level
        self._history = SlurmHistory(cluster, PARTITION)
        self._problems: list[str] = []

    def run(self, show: Callable[[float], None], stop: Event) -> dict[str, Any]:
        """Submit each job when it is due, until all are over."""
        jobs, waiting = self._task.jobs(), self._task.jobs()
        before, begin = psutil.cpu_times(), time.monotonic()
        latest = 5 * self._task.seconds() + waiting[-1].submit / self._task.compression + PATIENCE
        while waiting or self._history.left:
            now = time.monotonic() - begin
            while waiting and waiting[0].submit / self._task.compression <= now:
                self._submit(waiting.pop(0))
            if now > latest:
                raise MachineError("the jobs do not come to an end: is this machine very busy?")
            for name, rows in self._history.look().items():
                if complaint := double(rows):
                    self._problems.append(f"{name}: {complaint}")
            left = len(waiting) + self._history.left
            show(1 - left / len(jobs))
            if left and stop.wait(LOOK):
                raise MachineError("the run was stopped.")
        told = self._history.to_json(self._task.policy)
        said = {number: self._said(number) for number in self._history.jobs}
        return told | {
            "said": said,
            "problems": self._problems,
            "busy": _busy_since(before),
            "taken_back": self._cluster.output_of("daemon").count(" event=slurm_taken_back "),
            "joules": None,
        }

    def _submit(self, job: PlannedJob) -> None:
        scale, task = SCALES[self._task.scale], self._task
        curve = " ".join(f"{speed:.4f}" for speed in speeds(job.application, task.curves, scale.cores))
        step = STEP.format(
            launcher="" if self._level else f"{native.run_path()} --min 1 --cpus {scale.cores}",
            program=native.bench_path("paced"),
            table=self._cluster.work / "$SLURM_JOB_ID.table",
            work=f"{job.run_time / task.compression:.4f} {curve}",
        )
        options = [f"-n{job.nodes}", f"-c{scale.cores}"]
        if self._level:
            options += [f"--malleable=1:{scale.cores}"]
        self._history.submit(step, job.application, job.nodes, limit_of(job, scale, task.compression), *options)

    def _said(self, number: int) -> str:
        """Return the last line of a job's output; record if it is not that of one program's right end."""
        lines = self._history.output(number).splitlines() or [""]
        if len(lines) != 1 or not lines[0].startswith("paced: ") or self._history.jobs[number]["status"] != 0:
            state = self._history.jobs[number]["state"]
            self._problems.append(f"job {number} is {state}, and has printed {lines[-1]!r} in {len(lines)} lines.")
        return lines[-1]


def _busy_since(before: Any) -> float:  # noqa: ANN401 - psutil has a type for each system
    """Return the part of the time since `before` that this machine's processors were busy."""
    spent = {name: after - getattr(before, name) for name, after in psutil.cpu_times()._asdict().items()}
    return float(1 - (spent["idle"] + spent.get("iowait", 0.0)) / sum(spent.values()))
