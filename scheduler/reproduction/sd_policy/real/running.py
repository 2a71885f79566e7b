# SPDX-License-Identifier: Apache-2.0
"""One run of workload 5: on its own cluster, with all jobs submitted at their times, and their results kept."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.errors import ControlError
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.reproduction.sd_policy.real.jobs import limit_of, make, speeds
from drom.scheduler.reproduction.sd_policy.real.measured import Meter, program
from drom.scheduler.reproduction.sd_policy.real.settings import ENVIRONMENT, POLICIES, SCALES
from drom.scheduler.testbed.local import Client, agents, await_condition, scheduler

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from drom.scheduler.reproduction.sd_policy.real.jobs import PlannedJob
    from drom.scheduler.reproduction.sd_policy.real.measured import WorkModel
    from drom.scheduler.reproduction.sd_policy.real.settings import Scale

LOOK_S = 1.0
COSTS = 50
"""The least time between two checks of a shrinking queue: in seconds, and as a multiple of the time of a check."""
LAUNCH = '#!/bin/sh\nexec "$@"\n'
"""A job of several nodes is a script: it starts itself on the other ones."""


class Task(NamedTuple):
    """A run: the first jobs of a scale and a seed under a policy, with the speed-up `curves` of emulated programs."""

    scale: str
    seed: int
    policy: str
    first: int
    compression: float
    curves: str = "mixed"

    def jobs(self) -> list[PlannedJob]:
        """Return the jobs of the run."""
        return make(SCALES[self.scale], self.seed)[: self.first]

    def seconds(self) -> float:
        """Return the seconds that the run takes at least, without any losses."""
        return sum(job.nodes * job.run_time for job in self.jobs()) / SCALES[self.scale].nodes / self.compression


def run(task: Task, amounts: Mapping[str, WorkModel], show: Callable[[float], None]) -> dict[str, Any]:
    """Make a run and return the scheduler's history of it, the output of jobs in `said`, and the `joules` by RAPL.

    `amounts` are those of work on real cores (`calibration`). Raises ControlError if the cluster does not start, and
    KeyboardInterrupt on Ctrl-C, after which nothing of it is left.
    """
    scale, jobs = SCALES[task.scale], task.jobs()
    meter = Meter()
    with _signals_restored(), TemporaryDirectory(prefix="drom-real-") as scratch:
        home, work = Path(scratch) / "c", Path(scratch) / "work"
        work.mkdir()
        specs = [spec_of(job, task, amounts, work) for job in jobs]
        with scheduler(home, *POLICIES[task.policy]) as client, agents(home, scale.nodes, _options(scale)) as nodes:
            try:
                client.await_nodes(scale.nodes, nodes)
                meter.begin()
                numbers = _submit_all(client, jobs, specs, task.compression, show)
                _await_ends(client, len(jobs), show)
                joules = meter.end()
                told: dict[str, Any] = client.ask("history", last=100_000)
            finally:
                _clear(client)
        said = {number: _said(work / f"{number}.out") for number in numbers}
    return told | {"said": said, "joules": joules}


def spec_of(job: PlannedJob, task: Task, amounts: Mapping[str, WorkModel], folder: Path) -> Spec:
    """Return the submission of a job."""
    scale = SCALES[task.scale]
    seconds = job.run_time / task.compression
    real = scale.name == "cores"
    if real:
        command = program(job.application, amounts[job.application].units(seconds))
    else:
        curve = [f"{speed:.4f}" for speed in speeds(job.application, task.curves, scale.cores)]
        command = [str(native.bench_path("paced")), f"{seconds:.4f}", *curve]
    return Spec(
        command=tuple(command),
        script=LAUNCH if job.nodes > 1 else "",
        name=job.application,
        nodes=job.nodes,
        time=limit_of(job, scale, task.compression),
        output=str(folder / "%j.out"),
        folder=str(folder),
        environment={"PATH": os.environ["PATH"], "TMPDIR": str(folder)} | (ENVIRONMENT if real else {}),
        requeue=False,
    )


def _options(scale: Scale) -> list[str]:
    """Return the options of the agents."""
    if scale.name == "cores":
        rest = sorted(os.sched_getaffinity(0))[scale.cores :]
        return ["--reserved", ",".join(map(str, rest))] if rest else []
    return ["--emulate", f"pack:2 core:{scale.cores // 2} pu:1"]


def _submit_all(
    client: Client, jobs: list[PlannedJob], specs: list[Spec], compression: float, show: Callable[[float], None]
) -> list[int]:
    """Submit each job when it is due; return the numbers of the jobs."""
    numbers: list[int] = []
    begin = time.monotonic()
    for job, spec in zip(jobs, specs, strict=True):
        time.sleep(max(0.0, begin + job.submit / compression - time.monotonic()))
        numbers += client.ask("submit", jobs=[spec.to_json()])["jobs"]
        show(len(numbers) / len(jobs) / 3)
    return numbers


def _await_ends(client: Client, count: int, show: Callable[[float], None]) -> None:
    """Wait until the queue is empty."""
    begin = time.monotonic()
    while left := len(client.ask("queue")["jobs"]):
        show((1 + 2 * (1 - left / count)) / 3)
        time.sleep(max(LOOK_S, COSTS * (time.monotonic() - begin)))
        begin = time.monotonic()


def _clear(client: Client) -> None:
    """End all remaining jobs, so that nothing outlives the cluster; later Ctrl-C and SIGTERM are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for job in client.ask("queue")["jobs"]:
        with contextlib.suppress(ControlError):  # it may have ended meanwhile
            client.ask("cancel", job=job["job"])
    await_condition(lambda: not client.ask("queue")["jobs"])


def _said(path: Path) -> str:
    """Return the last line of a job's output; empty if there is none."""
    try:
        return (path.read_text(encoding="utf-8", errors="replace").splitlines() or [""])[-1]
    except OSError:
        return ""


@contextlib.contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after a block."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
