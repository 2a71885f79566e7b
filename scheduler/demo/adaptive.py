# SPDX-License-Identifier: Apache-2.0
"""The demonstration of adaptive MPI jobs: ranks rest and return on four nodes while other jobs come and go."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drom.agent.cli.console import Console
from drom.agent.text import counted, span_of
from drom.scheduler.analysis import plots
from drom.scheduler.demo import report, story
from drom.scheduler.demo.adaptive_story import courses, digits, picture
from drom.scheduler.live.cluster.jobs import COMPLETED, FINAL
from drom.scheduler.testbed import namespaces
from drom.scheduler.testbed.cluster import HEAD, Cluster, build_adaptive, why_no_mpi
from drom.workloads.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA_VERSION = 1
NODES, CORES = 4, 2
LOOK = 0.2
"""Seconds between two checks of the cluster."""
QUIETLY = {"OMPI_MCA_mpi_yield_when_idle": "1"}
"""Ranks that wait for others give way: all nodes are on one machine."""
VERDICT = (
    "Every job ran once to its right end, and every element of its array came through all changes of ranks; no core\n"
    "was held by two, in {looks} looks at all nodes. Nothing is left behind."
)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is submitted at second `at`, runs on `least` to `most` cores, and needs so many core-seconds."""

    at: float
    name: str
    least: int
    most: int
    work: float


MIX = (
    Submission(0, "ocean", 2, 8, 180),
    Submission(6, "check", 3, 3, 24),
    Submission(12, "climate", 1, 8, 40),
    Submission(18, "render", 2, 2, 10),
    Submission(20, "survey", 5, 5, 15),
)


def run(out: Path, *, as_json: bool) -> int:
    """Run the demonstration, and draw `out`. Return the exit status: 0 if no errors were found, else 1."""
    return report.demonstrate(lambda: _run(out, as_json=as_json), as_json=as_json)


def _run(out: Path, *, as_json: bool) -> dict[str, Any]:
    if reason := namespaces.why_not() or why_no_mpi():
        raise namespaces.MachineError(reason)
    paper = Console(silent=as_json)
    paper.write(
        f"{NODES} nodes of {CORES} cores, each with a name, an address and an agent of its own, and a scheduler on\n"
        f"{HEAD} (--policy equipartition). All are namespaces of this machine, and their cores are emulated: ranks\n"
        "sleep for as long as their share of the work would take. Everything else is real: mpirun, ranks, and the\n"
        "data that moves when ranks rest and return.\n\n"
    )
    with (
        tempfile.TemporaryDirectory(prefix="drom-adaptive-") as folder,
        Cluster(Path(folder) / "c", "--policy", "equipartition", nodes=NODES, cores=CORES) as cluster,
    ):
        play = _Play(cluster, build_adaptive(Path(folder), "shared_work"), lambda line: paper.write(f"{line}\n"))
        history = play.run()
    shown = courses(history)
    paper.heading("Who had how many cores")
    for line in digits(shown, paper.width):
        paper.write(f"{line}\n")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        plots.write(picture(shown, NODES * CORES, "An adaptive job, and others that come and go"), out)
    except WorkloadError as error:
        paper.write(f"{error}\n")
    else:
        paper.write(f"As a picture: {out}\n")
    if not play.problems:
        paper.write("\n" + paper.ink(VERDICT.format(looks=play.looks), "1;32") + "\n")
    jobs = [{"name": course.name, "cores": course.cores.tolist()} for course in shown]
    return {"schema_version": SCHEMA_VERSION, "jobs": jobs, "looks": play.looks, "problems": play.problems}


class _Play:
    """Submits the jobs to a cluster, and reports events to `tell` line by line."""

    def __init__(self, cluster: Cluster, program: Path, tell: Callable[[str], None]) -> None:
        self._cluster, self._program, self._tell = cluster, program, tell
        self._begin = time.time()
        self._jobs: dict[int, Submission] = {}
        self._known: dict[int, tuple[str, int]] = {}
        """The state and the cores of each job at the last look."""
        self.looks = 0
        """The number of checks, on all nodes, of the tasks that hold each core."""
        self.problems: list[str] = []

    def run(self) -> dict[str, Any]:
        """Run until all jobs are over; return the scheduler's history. Raises `MachineError` and `ControlError`."""
        waiting, history, latest = list(MIX), dict[str, Any](), self._begin + namespaces.PATIENCE
        while waiting or any(job["state"] not in FINAL for job in history["jobs"]):
            while waiting and self._begin + waiting[0].at <= time.time():
                self._submit(waiting.pop(0))
            if time.time() > latest:
                raise namespaces.MachineError("the jobs do not come to an end: is this machine very busy?")
            history = self._cluster.ask("history", last=100)
            self._look(history)
            time.sleep(LOOK)
        self._judge(history)
        return history

    def _submit(self, job: Submission) -> None:
        spec = self._cluster.spec(str(self._program), f"{job.work:g}", name=job.name, time=600)
        number = self._cluster.submit(
            *spec.command,
            environment=spec.environment | QUIETLY,
            name=job.name,
            least=job.least,
            most=job.most,
            time=600,
        )
        self._jobs[number] = job
        self._line(f"{job.name} is submitted: {span_of(job.least, job.most, 'core')}")

    def _line(self, text: str) -> None:
        self._tell(f"{time.time() - self._begin:6.1f} s  {text}")

    def _look(self, history: dict[str, Any]) -> None:
        """Report changes, and check that no core is held by two tasks."""
        for job in history["jobs"]:
            now = job["state"], sum(job["sizes"].values())
            before, self._known[job["job"]] = self._known.get(job["job"], ("", 0)), now
            if now != before and (text := _sentence(before, *now)):
                self._line(f"{job['name']} {text}")
        for name in self._cluster.names:
            if complaint := story.double(self._cluster.tasks(name)):
                self.problems.append(f"{name}: {complaint}")
        self.looks += 1

    def _judge(self, history: dict[str, Any]) -> None:
        for job in history["jobs"]:
            output = self._cluster.work / f"drom-{job['job']}.out"
            text = output.read_text(encoding="utf-8", errors="replace").rstrip() if output.exists() else ""
            if job["state"] != COMPLETED or job["attempt"] != 1 or not text.endswith(" ok"):
                last = text.splitlines()[-1:] or ["it said nothing"]
                self.problems.append(f"{job['name']} is {job['state']} after {job['attempt']} attempts: {last[0]}")
        tasks = self._cluster.tasks
        self._cluster.wait_until(lambda: not any(map(tasks, self._cluster.names)), "all cores to be free")
        self.problems += self._cluster.stop()


def _sentence(before: tuple[str, int], state: str, cores: int) -> str:
    """Return what has happened to a job, in words; empty for what goes without saying."""
    if state == "running" and before[0] != "running":
        return f"starts on {counted(cores, 'core')}"
    if state == "running":
        return f"{'shrinks' if cores < before[1] else 'grows'} to {counted(cores, 'core')}"
    return story.ENDS.get(state, "")
