# SPDX-License-Identifier: Apache-2.0
"""Table 5 and Figures 3 to 5 of Kale, Kumar and DeSouza: what the ranks that a job leaves behind cost, on real cores.

Table 5: adaptive jobs that share a node equally, each with ranks that rest on the others' cores, beside rigid jobs of
the same size. Figures 3 to 5: an adaptive job that another one drives from half of its cores for a while, its steps a
second, and the CPU time of the ranks that rest. The node is this machine, with its agent and a scheduler.
"""

from __future__ import annotations

import os
import statistics
import time
from contextlib import closing, contextmanager
from itertools import count, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from drom.agent.bench.steady import interval
from drom.agent.control import client
from drom.agent.text import table
from drom.scheduler.reproduction.adaptive.experiment import ADAPTIVE
from drom.scheduler.testbed.cluster import build_adaptive
from drom.scheduler.testbed.local import agents, await_condition, scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.scheduler.testbed.local import Client

PROCESSORS = 16
"""Processors of the paper's experiment; here at most those of this machine."""
SHARED_BY = (2, 4, 8)
"""Jobs that share them."""
PAIRS = 20
"""Pairs of runs. Processes differ by how they lie in memory and caches: many short runs tell more than few long."""
WINDOW = 2.0
"""Seconds for which steps are counted."""
PHASE = 20.0
"""Seconds for which the job of the figures has all cores, then half of them, then all again."""
SAMPLE = 1.0
PAPER = 0.0198
"""By how much longer two jobs of 8 processors took; the paper's other values are lost."""


class Progress(NamedTuple):
    """What the program prints: when (seconds, CLOCK_MONOTONIC), all steps so far, and the ranks that run."""

    at: float
    steps: int
    ranks: int


class Sample(NamedTuple):
    """Seconds since the begin, steps a second, ranks that run, and the share of a CPU of one that rests, if any."""

    at: float
    rate: float
    ranks: int
    resting: float | None


class Node:
    """This machine's cores under a scheduler with the paper's policy, and a program that counts its steps."""

    def __init__(self, folder: Path, scheduler_client: Client, program: Path) -> None:
        self._folder, self._client, self._program = folder, scheduler_client, program
        self.runtime_dir = folder / "queue" / "n0"
        (node,) = scheduler_client.ask("nodes")["nodes"]
        self.cores: int = node["cores"]

    def submit(self, least: int, most: int) -> int:
        """Submit the program on `least` to `most` cores and return the job's number."""
        size = {"ranks": least} if least == most else {"least": least, "most": most}
        yields = {"PATH": os.environ["PATH"], "OMPI_MCA_mpi_yield_when_idle": "1"}
        return self._client.submit(self._folder, str(self._program), time=3600, environment=yields, **size)

    def said(self, job: int) -> list[Progress]:
        """Return what a job has printed so far."""
        file = self._folder / f"drom-{job}.out"
        whole = file.read_text(encoding="utf-8").rpartition("\n")[0] if file.exists() else ""
        rows = (line.split() for line in whole.splitlines())
        return [Progress(float(at), int(steps), int(ranks)) for at, steps, ranks in rows]

    def await_ranks(self, ranks: int, *jobs: int) -> None:
        """Wait until so many ranks of each job run."""
        await_condition(lambda: all((said := self.said(job)) and said[-1].ranks == ranks for job in jobs))

    def end(self, *jobs: int) -> None:
        """Cancel jobs, and wait until they are over."""
        for job in jobs:
            self._client.ask("cancel", job=job)
        await_condition(lambda: all(self._client.ask("job", job=job)["ended"] is not None for job in jobs))

    def close(self) -> None:
        """Cancel all jobs that are left."""
        self.end(*(job["job"] for job in self._client.ask("queue")["jobs"]))


@contextmanager
def node() -> Iterator[Node]:
    """Run the scheduler and the agent for the length of a block. Raises `ControlError` and `MachineError`."""
    with TemporaryDirectory(prefix="drom-residual-") as name:
        folder = Path(name)
        program = build_adaptive(folder, "steps")
        queue = folder / "queue"
        with scheduler(queue, "--policy", ADAPTIVE) as found, agents(queue, 1, ()) as started:
            found.await_nodes(1, started)
            with closing(Node(folder, found, program)) as here:
                yield here


def interference(here: Node, jobs: int, pairs: int, window: float, show: Callable[[], None]) -> list[float]:
    """Return by which share adaptive jobs took longer than rigid ones for the same steps, for each pair of runs."""
    own = min(PROCESSORS, here.cores) // jobs
    found = []
    for pair in range(pairs):
        rates = {}
        for adaptive in (True, False) if pair % 2 else (False, True):
            rates[adaptive] = _rate(here, jobs, own, own * jobs if adaptive else own, window)
            show()
        found.append(rates[False] / rates[True] - 1)
    return found


def _rate(here: Node, jobs: int, least: int, most: int, window: float) -> float:
    """Return the steps a second of all of so many equal jobs."""
    started = []
    for _ in range(jobs):
        started.append(here.submit(least, most))
        here.await_ranks(max(least, most // len(started)), started[-1])
    here.await_ranks(least, *started)
    begin = time.monotonic()
    await_condition(lambda: all(here.said(job)[-1].at > begin + window for job in started))
    total = sum(_pace(here.said(job), begin) for job in started)
    here.end(*started)
    return total


def _pace(said: Sequence[Progress], since: float) -> float:
    """Return the steps a second that a job has made since its last report before then; 0.0 without another report."""
    first, last = max((one for one in said if one.at <= since), default=said[0]), said[-1]
    return (last.steps - first.steps) / (last.at - first.at) if last is not first else 0.0


def course(here: Node, phase: float, show: Callable[[float], None]) -> list[Sample]:
    """Return samples of an adaptive job that has all cores, for a phase half of them, and all again."""
    job = here.submit(1, here.cores)
    here.await_ranks(here.cores, job)
    begin, busy, found, other = time.monotonic(), dict[int, float](), list[Sample](), 0
    while (now := time.monotonic() - begin) < 3 * phase:
        if not other and now >= phase:
            other = here.submit(here.cores - here.cores // 2, here.cores - here.cores // 2)
        if other > 0 and now >= 2 * phase:
            here.end(other)
            other = -1
        due = begin + SAMPLE * (len(found) + 1)
        await_condition(lambda: time.monotonic() >= due)  # noqa: B023 - it is awaited here
        show(min(1.0, now / (3 * phase)))
        found.append(_sample(here, job, due - begin, busy))
    here.end(job)
    return found


def _sample(here: Node, job: int, at: float, busy: dict[int, float]) -> Sample:
    """Return what has happened since the sample before, after which ranks that rest had used so many seconds of CPU."""
    resting = []
    before = dict(busy)
    busy.clear()
    for task in client.order(here.runtime_dir, "ps")["tasks"]:
        if task["state"] == "resting" and task["job"] == f"drom-{job}":
            times = psutil.Process(task["pid"]).cpu_times()
            busy[task["pid"]] = times.user + times.system
            if task["pid"] in before:
                resting.append((busy[task["pid"]] - before[task["pid"]]) / SAMPLE)
    said = here.said(job)
    pace = _pace(said, said[-1].at - SAMPLE)
    return Sample(at, pace, said[-1].ranks, statistics.fmean(resting) if resting else None)


class Outcome(NamedTuple):
    """The cores of the node, the interference of so many jobs in each pair of runs, and the course of one job."""

    cores: int
    interference: dict[int, list[float]]
    course: list[Sample]


def run_all(show: Callable[[float], None]) -> Outcome:
    """Run both experiments; `show` gets the fraction that is done.

    Raises `MachineError` without Open MPI, and `ControlError` if the scheduler, the agent or a job fails.
    """
    with node() as here:
        chosen = [jobs for jobs in SHARED_BY if jobs <= min(PROCESSORS, here.cores)]
        rounds, whole = count(1), 2 * PAIRS * len(chosen) + 1

        def advance() -> None:
            show(next(rounds) / whole)

        found = {jobs: interference(here, jobs, PAIRS, WINDOW, advance) for jobs in chosen}
        samples = course(here, PHASE, lambda done: show((whole - 1 + done) / whole)) if here.cores > 1 else []
        return Outcome(here.cores, found, samples)


def lines(found: Outcome) -> Iterator[str]:
    """Yield Table 5, and what Figures 3 to 5 show in numbers."""
    cores = min(PROCESSORS, found.cores)
    yield f"Table 5: adaptive jobs that share {cores} cores take longer than rigid ones by (95 % interval)"
    rows = []
    for jobs, values in found.interference.items():
        low, high = interval(values)
        paper = f"{PAPER:.2%}" if cores // jobs == 8 else "lost" if cores == PROCESSORS else "-"
        rows.append(
            [f"{jobs} of {cores // jobs}", f"{statistics.median(values):+.2%}", f"{low:+.2%}", f"{high:+.2%}", paper]
        )
    yield from table(["jobs, cores", "median", "from", "to", "paper"], rows, "<>>>>")
    yield ""
    yield "Figures 3 to 5: an adaptive job loses half of its cores for a while"
    rows = []
    for words, part in phases(found.course):
        resting = [one.resting for one in part if one.resting is not None]
        rates = [one.rate for one in part]
        shares = [f"{statistics.fmean(resting):.2%}", f"{max(resting):.2%}"] if resting else ["-", "-"]
        rows.append([words, str(part[-1].ranks), f"{statistics.median(rates):.0f}", *shares])
    yield from table(["phase", "ranks", "steps/s", "CPU of a resting rank", "most"], rows, "<>>>>")
    yield ""


def phases(samples: Sequence[Sample]) -> Iterator[tuple[str, list[Sample]]]:
    """Yield the name and the samples of each phase with the same number of ranks."""
    groups = (list(group) for _, group in groupby(samples, key=lambda one: one.ranks))
    return zip(("all cores", "half of them", "all again"), groups, strict=False)


def to_json(found: Outcome) -> dict[str, Any]:
    """Return all values as JSON values."""
    return {
        "cores": found.cores,
        "interference": [{"jobs": jobs, "slower": values} for jobs, values in found.interference.items()],
        "course": [sample._asdict() for sample in found.course],
    }
