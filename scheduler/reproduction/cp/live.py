# SPDX-License-Identifier: Apache-2.0
"""The two tests of Bridi et al. with a real scheduler. Its 65 nodes are emulated, and time is compressed.

`drom scheduler` is a process with its planner, on disk and on sockets as always. Jobs are submitted when they are due,
and end after their run time. A run is over once all jobs have started: the metrics are about waits.
"""

from __future__ import annotations

import math
import re
import time
import urllib.request
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
from drom.agent.control import keys
from drom.scheduler.cp.rules import FIFO, WALLTIME
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.reproduction.cp.generate import SEEDS as GENERATED
from drom.scheduler.reproduction.cp.generate import TESTS
from drom.scheduler.reproduction.cp.metrics import LiveMetrics, metrics_of
from drom.scheduler.reproduction.cp.tasks import CP, EURORA, Task, setting
from drom.scheduler.simulator.worker_pool import at_most
from drom.scheduler.testbed.emulated_nodes import EmulatedNodes, NodeSize
from drom.scheduler.testbed.local import PATIENCE, scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.scheduler.cp.jobs import Jobs
    from drom.scheduler.cp.platform import Platform
    from drom.scheduler.reproduction.cp.completed import Kept
    from drom.scheduler.reproduction.cp.generate import Case
    from drom.scheduler.testbed.local import Client

POLICIES = {
    FIFO.name: ("--policy", "resources", "--set", f"depth={FIFO.depth}"),
    WALLTIME.name: ("--policy", "resources", "--set", "order=walltime", "--set", f"depth={WALLTIME.depth}"),
    CP: ("--policy", "cp"),
}
"""The options of `drom scheduler`, by engine."""
COMPRESSION = 200.0
SEEDS = 3
LOOK = 0.2
"""Seconds between two checks of what does not signal: whether to stop, and the progress of runs."""
PLANS = 'drom_scheduler_plans_total{{by="{}"}}'
MARGIN = 1
"""Seconds that a time limit is longer than the walltime: the scheduler counts whole seconds."""


def tasks_of(tests: Sequence[Case], seeds: int | None, first: int, compression: float) -> list[Task]:
    """Return all runs, with `first` jobs of each test: seed by seed, the longest of a seed first."""
    numbers = sorted((TESTS.index(test) for test in tests), reverse=True)
    chosen = GENERATED[: seeds or SEEDS]
    return [
        Task(test, seed, name, first, EURORA, compression) for seed, test, name in product(chosen, numbers, POLICIES)
    ]


def run_all(
    tasks: Sequence[Task], at_once: int | None, show: Callable[[float], None], kept: Kept[LiveMetrics] | None
) -> dict[Task, LiveMetrics]:
    """Make all runs that are not kept yet, `at_once` at a time; `show` gets the fraction that is done.

    Without `at_once` it is one run for two CPUs: of a scheduler, and of its planner. At Ctrl-C, and when a run fails,
    all stop, and nothing of them is left. Raises ControlError for a run that fails.
    """
    found = {} if kept is None else {task: kept.done[task] for task in tasks if task in kept.done}
    part = dict.fromkeys(tasks, 0.0) | dict.fromkeys(found, 1.0)
    stop = Event()
    with ThreadPoolExecutor(at_once or max(1, at_most(None) // 2)) as pool:
        left = {
            pool.submit(run, task, stop, partial(part.__setitem__, task)): task for task in tasks if task not in found
        }
        try:
            while left:
                for future in wait(left, LOOK, FIRST_EXCEPTION).done:
                    found[left[future]] = metrics = future.result()
                    if kept is not None:
                        kept.keep(left[future], metrics)
                    del left[future]
                show(sum(part.values()) / len(part))
        finally:
            stop.set()
    return found


def run(task: Task, stop: Event, show: Callable[[float], None] = lambda _: None) -> LiveMetrics:
    """Make a run. Raises ControlError if the scheduler fails, and CancelledError after `stop`."""
    if stop.is_set():
        raise CancelledError
    platform, jobs = setting(task)
    with TemporaryDirectory(prefix="drom-live-") as scratch:
        home, own = Path(scratch) / "queue", keys.make(Path(scratch) / "keys")
        config = Path(scratch) / "scheduler.toml"
        config.write_text("".join(_tables(platform)), encoding="utf-8")
        options = ["--config", str(config), "--silence", "1000", "--keys", str(own.folder)]
        options += ["--agents", "127.0.0.1:0", "--metrics", "127.0.0.1:0", *POLICIES[task.scheduler]]
        with scheduler(home, *options) as client:
            log = (home / "scheduler.log").read_text(encoding="utf-8")
            ports = dict(re.findall(r"event=(\w+) .*\b(?:port|agents)=(\d+)", log))
            address = f"tcp://127.0.0.1:{ports['ready']}"
            with closing(EmulatedNodes(address, _sizes(platform), own)) as nodes:
                _await(nodes, lambda: nodes.are_welcome, stop)
                metrics = f"http://127.0.0.1:{ports['metrics']}/metrics"
                before = _await_plan(client, nodes, metrics, stop) if task.scheduler == CP else _scrape(metrics)
                _submit_all(client, nodes, task, stop, show)
                told = _scrape(metrics)  # before a long answer holds up the loop
                waits = _waits(client, nodes, len(jobs.submit), stop)
    start = jobs.submit + np.rint(task.compression * waits).astype(np.int64)
    counts = {name: value - before.get(name, 0.0) for name, value in told.items() if "longest" not in name}
    return _measured(task, platform, jobs, start, told | counts)


def _tables(platform: Platform) -> Iterator[str]:
    """Yield a partition for each queue."""
    for queue in platform.queues:
        yield f'[partition.{queue.name}]\nexpected_wait = "{queue.expected_wait_s}s"\n'


def _sizes(platform: Platform) -> Iterator[NodeSize]:
    """Yield the nodes. Memory is left out: on Eurora a unit has as many GB as cores, of which no node has more."""
    for number, amounts in enumerate(platform.capacity.tolist()):
        has = {name: amount for name, amount in zip(platform.resources, amounts, strict=True) if amount}
        cores = has.pop("cores")
        has.pop("memory")
        yield NodeSize(f"n{number}", cores, has)


def spec_of(job: int, platform: Platform, jobs: Jobs, compression: float) -> Spec:
    """Return the submission of a job of one chunk. Units that ask for GPUs or MICs are on different nodes."""
    units, asked = int(jobs.units[job]), dict(zip(platform.resources, jobs.request[job].tolist(), strict=True))
    counted = {name: amount for name, amount in asked.items() if amount and name not in {"cores", "memory"}}
    return Spec(
        command=("sleep", f"{jobs.run_time[job] / compression:.4f}"),
        nodes=units if counted else 0,
        ranks=units,
        threads=asked["cores"],
        time=math.ceil(jobs.walltime[job] / compression) + MARGIN,
        folder="/",
        partition=platform.queues[jobs.queue[job]].name,
        resources=counted,
    )


def _await_plan(client: Client, nodes: EmulatedNodes, metrics: str, stop: Event) -> dict[str, float]:
    """Submit jobs that do nothing until the planner, which may still compile, has planned one; return the metrics."""
    spec = Spec(("sleep", "0"), ranks=1, time=1, folder="/", partition="debug").to_json()
    while not (told := _scrape(metrics))[PLANS.format("rule")]:
        job = client.ask("submit", jobs=[spec])["jobs"][0]
        _await(nodes, lambda: client.ask("job", job=job)["ended"] is not None, stop)  # noqa: B023 - it is awaited here
    return told


def _submit_all(client: Client, nodes: EmulatedNodes, task: Task, stop: Event, show: Callable[[float], None]) -> None:
    """Submit each job when it is due, and wait until all programs have begun."""
    platform, jobs = setting(task)
    begin, before, count = time.monotonic(), len(nodes.launched), len(jobs.submit)

    def all_begun() -> bool:
        launched = len(nodes.launched) - before
        show(launched / count)
        return launched == count

    for job, submit in enumerate(jobs.submit.tolist()):
        due = begin + submit / task.compression
        _await(nodes, lambda: time.monotonic() >= due, stop, due)  # noqa: B023 - it is awaited here
        client.ask("submit", jobs=[spec_of(job, platform, jobs, task.compression).to_json()])
        show((len(nodes.launched) - before) / count)
    _await(nodes, all_begun, stop)


def _await(nodes: EmulatedNodes, predicate: Callable[[], bool], stop: Event, due: float = math.inf) -> None:
    """Serve the nodes until a condition holds, which may be before `due`."""
    while not predicate():
        if stop.is_set():
            raise CancelledError
        nodes.serve(min(due, time.monotonic() + LOOK))


def _waits(
    client: Client, nodes: EmulatedNodes, count: int, stop: Event
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the seconds from the submission of each job to its start.

    A job whose program ends before all of its nodes report that they have started it counts as started at its end.
    """
    starts: dict[int, float] = {}

    def all_started() -> bool:
        found = client.ask("history", last=count, brief=True)["jobs"]
        starts.update({one["job"]: at - one["submitted"] for one in found if (at := one["started"] or one["ended"])})
        return len(starts) == count

    _await(nodes, all_started, stop)
    return np.array([starts[job] for job in sorted(starts)])


def _scrape(address: str) -> dict[str, float]:
    """Return the metrics of the scheduler by name, with their labels."""
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:  # noqa: S310 - a scheduler of our own
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def _measured(task: Task, platform: Platform, jobs: Jobs, start: np.ndarray, told: dict[str, float]) -> LiveMetrics:
    """Return the metrics of a run."""
    solver, rule, fallback = (told[PLANS.format(by)] for by in ("solver", "rule", "fallback"))
    if task.scheduler == CP:
        seconds, calls = told["drom_scheduler_plan_cpu_seconds_sum"], solver + rule + fallback
    else:
        seconds, calls = told["drom_scheduler_pass_duration_seconds_sum"], 2 * len(start)
    window = TESTS[task.test].hours * 3600
    inside = np.clip(np.minimum(start + jobs.run_time, window) - start, 0, None)
    cores = jobs.total[:, platform.resources.index("cores")]
    return LiveMetrics(
        *metrics_of(jobs, platform, start, seconds, round(calls)),
        cores=float((cores * inside).sum() / window),
        loop=told['drom_scheduler_longest_turn_seconds{clock="real"}'],
        loop_cpu=told['drom_scheduler_longest_turn_seconds{clock="cpu"}'],
        solver=round(solver),
        rule=round(rule),
        fallback=round(fallback),
    )
