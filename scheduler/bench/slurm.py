# SPDX-License-Identifier: Apache-2.0
"""`drom bench slurm`: a real Slurm on machines of namespaces, agents with emulated cores, and a real `drom slurm`.

The delay of `drom slurm` is the time between two lines in the log of slurmctld: from the one that the job could start
(it was submitted while a node was free for it, or the job that had its node ended) to the one that its licence of the
gate was removed. Slurm's own start of the job comes after that. 1,000 jobs for all nodes wait at the gate meanwhile;
the job that is timed has a higher priority. The same is measured with the helper on libslurm.

A guest's times are those of the log, and of `date` in its script and in its task. Its mate sleeps, so that the agent
moves it without waiting for it. The mate has all cores back when `drom ps` shows that, looked at every 20 ms.

The pass of the engine is measured without Slurm, with generated jobs and nodes as the parser makes them.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from drom.agent.bench.node import Figure, report
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.settings import LIVE
from drom.scheduler.slurm.engine import Engine
from drom.scheduler.slurm.records import GATE, Job, Node
from drom.scheduler.testbed.namespaces import MachineError
from drom.scheduler.testbed.slurm import (
    SlurmCluster,
    build_helper,
    build_plugin,
    plugin_line,
    why_no_slurm,
    write_job_submit,
)

from dromlib.cpulist import parse_cpulist

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITION = "main"
NODES, CORES = 2, 4
AT_GATE = 1000
"""Jobs that wait at the gate while releases are timed."""
RELEASES, GUESTS = 8, 5
"""Releases of each kind, and guests, in a run."""
DEADLINE = 60
"""Seconds that a task may wait for its first cores."""
SETTINGS = f"""\
JobSubmitPlugins=lua
Licenses={GATE}:1000000
PriorityType=priority/multifactor
PartitionName={PARTITION} Nodes={{nodes}} Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:2
"""
PENDING, LARGE, WIDE = 10_000, 5000, 48
"""Waiting jobs, nodes, and cores of each node of the pass that is timed."""
PASSES = 10
FIGURES = {
    "submitted": Figure("1,000 jobs at the gate: submission of a job that fits, to its release, p50", "ms", 300),
    "freed": Figure("... end of the job that had the node, to the release of the next, p50", "ms", 300),
    "helped_submitted": Figure("the same with the helper: submission to release, p50", "ms", 200),
    "helped_freed": Figure("... end of the job that had the node, to the release of the next, p50", "ms", 200),
    "guest": Figure("guest: submission to first instruction, p50", "s", 2.5),
    "released": Figure("... of which until its release, by drom slurm", "s", None),
    "started": Figure("... then until the first line of its script, by Slurm", "s", None),
    "launched": Figure("... then until its task has cores, by srun and the agent", "s", None),
    "given_back": Figure("guest's end to all cores of the node with its mate again, p50", "s", 1),
    "pass": Figure("pass with 10,000 jobs waiting, 5,000 nodes: a job ends, one arrives", "s", 1),
    "first": Figure("... the first pass of a daemon", "s", None),
}
_EVENTS = (
    ("submitted", re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+)")),
    ("released", re.compile(r"changing licenses from '[^']*drom_gate[^']*' to '[^']*' for pending JobId=(\d+)")),
    ("ended", re.compile(r"_job_complete: JobId=(\d+) done")),
)
"""What slurmctld logs, and our words for it."""


def measure(runs: int) -> dict[str, Any]:
    """Measure each figure `runs` times; return medians and extremes. Raises `MachineError` where no Slurm can run."""
    if reason := why_no_slurm():
        raise MachineError(reason)
    found: dict[str, list[float]] = {key: [] for key in FIGURES}
    for _ in range(runs):  # first, as it compiles the policy, which the daemon then loads
        for key, value in passes(PENDING, LARGE).items():
            found[key].append(value)
    with TemporaryDirectory(prefix="drom-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # Slurm's daemon has another user
        write_job_submit(folder, gated=PARTITION)
        plugin, helper = plugin_line(build_plugin(folder), DEADLINE), build_helper(folder)
        prefix = f"s{os.getpid()}-"
        with SlurmCluster(folder, nodes=NODES, cores=CORES, settings=SETTINGS, plugstack=plugin, prefix=prefix) as site:
            for key, values in _with_slurm(site, helper, runs).items():
                found[key] += values
    return report(found, FIGURES, runs)


# --- without processes ----------------------------------------------------------------------------------------------


def passes(pending: int, nodes: int) -> dict[str, float]:
    """Return the seconds of the first pass of an engine, and the median of those in which a job ends and one comes."""
    now = 1_800_000_000.0
    cluster = [_node(f"n{number}") for number in range(nodes)]
    jobs = {job.number: job for job in _jobs(pending, nodes, int(now))}
    engine = Engine(load_policy("sd", LIVE["sd"]), PARTITION)
    begin = time.perf_counter()
    engine.look(jobs.values(), cluster, now)
    first, took = time.perf_counter() - begin, []
    running = [number for number, job in jobs.items() if job.runs][:PASSES]
    for number in running:
        now += 1
        jobs[number] = replace(jobs[number], states=frozenset({"COMPLETED"}))
        arrived = len(jobs) + 1
        jobs[arrived] = _waiting(arrived, int(now))
        begin = time.perf_counter()
        engine.look(jobs.values(), cluster, now)
        took.append(time.perf_counter() - begin)
    return {"first": first, "pass": statistics.median(took)}


def _node(name: str) -> Node:
    return Node(
        name=name,
        cpus=WIDE,
        usable_cpus=WIDE,
        allocated_cpus=0,
        cores=WIDE,
        threads_per_core=1,
        memory_mib=64_000,
        allocated_memory_mib=0,
        states=frozenset({"ALLOCATED"}),
        partitions=(PARTITION,),
        features=(),
        version="22.05.8",
        reason="",
    )


def _jobs(pending: int, nodes: int, now: int) -> Iterator[Job]:
    """Yield malleable jobs that run on two nodes each, on all, then jobs of 1 to 64 nodes that wait."""
    for number in range(nodes // 2):
        job = replace(_waiting(number + 1, now - 3600), least_nodes=2, most_nodes=2, tasks=2, cpus=2 * WIDE)
        places = tuple(f"n{2 * number + i}" for i in range(2))
        yield replace(job, states=frozenset({"RUNNING"}), nodes=places, licences=(), started=now - 60 * (number % 60))
    for number in range(nodes // 2, nodes // 2 + pending):
        yield _waiting(number + 1, now - 600)


def _waiting(number: int, submitted: int) -> Job:
    size = 1 << number % 7
    return Job(
        number=number,
        array=None,
        task=None,
        tasks_left="",
        user=f"user{number % 50}",
        uid=1000 + number % 50,
        account="",
        partitions=(PARTITION,),
        states=frozenset({"PENDING"}),
        reason="Licenses",
        priority=1_000_000 - number,
        submitted=submitted,
        eligible=submitted,
        started=None,
        ends=None,
        limit_min=30 + 30 * (number % 48),
        least_nodes=size,
        most_nodes=size,
        tasks=size,
        cpus_per_task=WIDE,
        cpus=size * WIDE,
        sharing="YES" if number % 2 else "NO",
        licences=((GATE, 1),),
        dependency="",
        requested_nodes=(),
        nice=0,
        het=None,
        nodes=(),
        memory="0",
        reservation="",
        restarts=0,
        name=f"job{number}",
        comment="",
        admin_comment=f"drom:malleable=1:{WIDE}" if number % 2 else "",
    )


# --- with them ------------------------------------------------------------------------------------------------------


def moments(log: str) -> dict[tuple[str, int], float]:
    """Return when jobs were submitted, released and ended (unix seconds), from the log of slurmctld in local time."""
    found: dict[tuple[str, int], float] = {}
    for line in log.splitlines():
        stamp = re.match(r"\[([0-9T:.-]{23})\] ", line)
        for what, pattern in _EVENTS if stamp else ():
            if stamp and (job := pattern.search(line)):
                found.setdefault((what, int(job[1])), datetime.fromisoformat(stamp[1]).timestamp())
    return found


class _Site:
    """The cluster, and what is done with it again and again."""

    def __init__(self, cluster: SlurmCluster) -> None:
        self.cluster = cluster
        self.ask, self.await_true, self.submit = cluster.ask, cluster.await_true, cluster.submit
        self._numbers = 0

    def moment(self, what: str, job: int) -> float:
        """Return when something happened to a job, once it has."""
        return self.await_true(lambda: self.moments().get((what, job)), f"job {job} to be {what}")

    def moments(self) -> dict[tuple[str, int], float]:
        """Return when something happened, from the log of slurmctld."""
        return moments((self.cluster.folder / "log" / "slurmctld").read_text(encoding="utf-8", errors="replace"))

    def pipe(self) -> Path:
        """Return a new named pipe."""
        self._numbers += 1
        path = self.cluster.work / f"pipe{self._numbers}"
        os.mkfifo(path)
        return path

    def end_reader(self, pipe: Path) -> None:
        """End the `cat` that reads a pipe, once it does."""
        os.close(self.await_true(lambda: _opened(pipe), "a job to read its pipe"))

    def states(self) -> Counter[str]:
        """Return how many jobs are in each state."""
        return Counter(self.ask("squeue", "-h", "-o", "%T").split())

    def await_running(self, job: int) -> None:
        """Wait until a job runs."""
        self.await_true(lambda: "R" in self.ask("squeue", "-h", "-j", str(job), "-o", "%t"), f"job {job} to run")

    def cancel_all(self) -> None:
        """End all jobs."""
        self.ask("scancel", "--user", "root")
        self.await_true(lambda: not self.states(), "the end of all jobs")

    def printed(self, job: int, lines: int) -> list[float]:
        """Return the times that a job's script prints, once it has printed so many."""
        path = self.cluster.work / f"{job}.out"

        def read() -> list[float]:
            found = path.read_text(encoding="utf-8").split() if path.exists() else []
            return [float(word) for word in found] if len(found) >= lines else []

        return self.await_true(read, f"what job {job} prints")


def _opened(pipe: Path) -> int | None:
    """Return a descriptor for writing to a pipe, None while no process has it open for reading."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _with_slurm(cluster: SlurmCluster, helper: Path, runs: int) -> dict[str, list[float]]:
    """Return the values of each figure, one of each run."""
    site = _Site(cluster)
    found: dict[str, list[float]] = {}
    with cluster.decided(PARTITION, compiled=True):
        for _ in range(runs):
            _add(found, _guests(site))
    with cluster.decided(PARTITION, compiled=True):
        blocker = _fill_gate(site)
        for _ in range(runs):
            _add(found, [_release(site, blocker) for _ in range(RELEASES)])
    with cluster.decided(PARTITION, "--helper", str(helper), compiled=True):
        for _ in range(runs):
            samples = [_release(site, blocker) for _ in range(RELEASES)]
            _add(found, [{f"helped_{key}": value for key, value in sample.items()} for sample in samples])
    if reason := re.search(r"event=slurm_failed .*", cluster.output_of("daemon")):
        raise MachineError(f"drom slurm had a fault: {reason[0]}.")
    site.cancel_all()
    return found


def _add(found: dict[str, list[float]], samples: list[dict[str, float]]) -> None:
    for key in samples[0]:
        found.setdefault(key, []).append(statistics.median(sample[key] for sample in samples))


def _fill_gate(site: _Site) -> int:
    """Occupy a node for long, and have jobs for all nodes wait at the gate; return the job that has the node."""
    blocker = site.submit("sleep 100000", "-N1", "-n1", f"-c{CORES}", "-t6000")
    site.await_running(blocker)
    words = f"sbatch -N{NODES} -n{NODES} -c{CORES} -t60 -o /dev/null --wrap true"
    site.ask("sh", "-c", f"i=0; while [ $i -lt {AT_GATE} ]; do {words} >/dev/null || exit 1; i=$((i + 1)); done")
    site.await_true(lambda: site.states()["PENDING"] == AT_GATE, "the jobs at the gate")
    return blocker


def _release(site: _Site, blocker: int) -> dict[str, float]:
    """Return the milliseconds from the moments at which two jobs could start to their releases."""
    pipe = site.pipe()
    whole = ("-N1", "-n1", f"-c{CORES}", "-t1", "--nice=-1000")  # before those at the gate
    first, second = (site.submit(script, *whole) for script in (f"cat {pipe}", "true"))
    site.end_reader(pipe)
    if ("ended", blocker) in site.moments():
        raise MachineError("a job that should run to the end of the benchmark has ended.")
    freed = site.moment("released", second) - site.moment("ended", first)
    submitted = site.moment("released", first) - site.moment("submitted", first)
    site.moment("ended", second)
    return {"submitted": 1e3 * submitted, "freed": 1e3 * freed}


def _guests(site: _Site) -> list[dict[str, float]]:
    """Return the times of guests that come one after the other while each node has a mate."""
    whole = ("-N1", "-n1", f"-c{CORES}", f"--malleable=1:{CORES}")
    mates = [site.submit("srun sleep 100000", *whole, "-t6000") for _ in range(NODES)]
    for mate in mates:
        site.await_running(mate)
    site.await_true(lambda: all(map(_has_all, _rows(site))), "the mates' cores")
    samples = [_guest(site, whole) for _ in range(GUESTS)]
    site.cancel_all()
    return samples


def _rows(site: _Site) -> list[list[dict[str, Any]]]:
    return [site.cluster.tasks(name) for name in site.cluster.names]


def _has_all(rows: list[dict[str, Any]]) -> bool:
    """Return whether a node has one task, which has all cores."""
    counts = [parse_cpulist(row[key]).bit_count() for row in rows for key in ("granted", "applied", "held")]
    return counts == [CORES] * 3


def _guest(site: _Site, whole: tuple[str, ...]) -> dict[str, float]:
    pipe = site.pipe()
    script = f"date +%s.%N; srun sh -c 'date +%s.%N; cat {pipe}; date +%s.%N'"
    begin = time.time()
    job = site.submit(script, *whole, "-t1")
    site.end_reader(pipe)
    site.await_true(lambda: all(map(_has_all, _rows(site))), "the mates' cores")
    given_back = time.time()
    script_began, task_began, task_ended = site.printed(job, 3)
    released = site.moment("released", job)
    site.moment("ended", job)
    return {
        "guest": task_began - begin,
        "released": released - begin,
        "started": script_began - released,
        "launched": task_began - script_began,
        "given_back": given_back - task_ended,
    }
