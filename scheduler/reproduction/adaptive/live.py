# SPDX-License-Identifier: Apache-2.0
"""The experiment of Kale, Kumar and DeSouza on a cluster, with a real scheduler: adaptive and rigid jobs over the load.

`drom scheduler --policy equipartition` is a process, on disk and on sockets as always. Its 32 nodes of two cores are
emulated, and time is compressed: a job has as much work as in the simulation, and is as fast as the model's speedup
says for the cores that it has. Changes cost what messages take. Rigid jobs of the same policy start first fit.
Beside each run stands a simulation of the same jobs in which changes cost nothing.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import closing
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.control import keys
from drom.agent.text import table
from drom.scheduler.analysis.estimates import Estimate, estimate
from drom.scheduler.analysis.metrics import Power, metrics
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.reproduction.adaptive.experiment import ADAPTIVE, MILLI, MODEL, PROCESSORS, RIGID, jobs_of
from drom.scheduler.simulator.simulation import Machine, Simulation
from drom.scheduler.testbed.emulated_nodes import EmulatedNodes, NodeSize
from drom.scheduler.testbed.local import scheduler
from drom.workloads.speedup import downey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.scheduler.testbed.local import Client
    from drom.workloads.workload import Workload

NODES, CORES = 32, 2
LOADS = (0.3, 0.6, 0.9)
SEEDS = 4
COUNT = 50
"""Jobs of a run."""
COMPRESSION = 10.0
AT_ONCE = 8
"""Runs at once: they hardly use a CPU."""
LOOK = 0.2
"""Seconds between two checks of what does not signal."""
FREE = MODEL._replace(shrink=0.0, expand=0.0, memory=0.0)


class Task(NamedTuple):
    """A run: the load, the seed of its jobs, and whether these are adaptive."""

    load: float
    seed: int
    adaptive: bool
    jobs: int = COUNT
    compression: float = COMPRESSION


class Outcome(NamedTuple):
    """The mean response in seconds of the experiment, and the share of all cores that jobs had; live, and simulated."""

    response: float
    utilisation: float
    simulated_response: float
    simulated_utilisation: float


def run_all(seed: int, show: Callable[[float], None]) -> dict[Task, Outcome]:
    """Make all runs, with SEEDS seeds from `seed` on, several at a time; `show` gets the fraction that is done."""
    tasks = [Task(load, one, way) for load, one, way in product(LOADS, range(seed, seed + SEEDS), (False, True))]
    stop, found = Event(), dict[Task, Outcome]()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        left = {pool.submit(run, task, stop): task for task in tasks}
        try:
            while left:
                for future in wait(left, LOOK, FIRST_EXCEPTION).done:
                    found[left.pop(future)] = future.result()
                show(len(found) / len(tasks))
        finally:
            stop.set()
    return found


def run(task: Task, stop: Event) -> Outcome:
    """Make a run. Raises ControlError if the scheduler fails, and CancelledError after `stop`."""
    if stop.is_set():
        raise CancelledError
    work = jobs_of(task.load, task.jobs, task.seed)
    with TemporaryDirectory(prefix="drom-adaptive-") as scratch:
        home, own = Path(scratch) / "queue", keys.make(Path(scratch) / "keys")
        options = ["--policy", ADAPTIVE, "--silence", "1000", "--keys", str(own.folder), "--agents", "127.0.0.1:0"]
        with scheduler(home, *options) as client:
            log = (home / "scheduler.log").read_text(encoding="utf-8")
            port = log.rpartition(" agents=")[2].split()[0]
            sizes = (NodeSize(f"n{number}", CORES, {}) for number in range(NODES))
            with closing(EmulatedNodes(f"tcp://127.0.0.1:{port}", sizes, own, _speed)) as nodes:
                _await(nodes, lambda: nodes.are_welcome, stop)
                jobs = _run_jobs(client, nodes, task, work, stop)
    response = task.compression * float(np.mean([job["ended"] - job["submitted"] for job in jobs]))
    span = max(job["ended"] for job in jobs) - min(job["submitted"] for job in jobs)
    used = sum(job["core_seconds"] for job in jobs) / (span * PROCESSORS)
    return Outcome(response, used, *_simulated(work, adaptive=task.adaptive))


def _speed(cores: int) -> float:
    """Return how much faster than on one core a job is."""
    return float(downey(np.array([cores]), MODEL.parallelism, MODEL.sigma)[0]) if cores else 0.0


def _spec(task: Task, size: int, seconds: float) -> Spec:
    """Return the submission of a job of this size, which takes so many seconds on its size."""
    if task.adaptive and size < PROCESSORS:
        return Spec(("work", f"{seconds * _speed(size):.4f}"), least=size, most=PROCESSORS, time=86_400, folder="/")
    return Spec(("sleep", f"{seconds:.4f}"), ranks=size, time=86_400, folder="/")


def _run_jobs(client: Client, nodes: EmulatedNodes, task: Task, work: Workload, stop: Event) -> list[dict[str, Any]]:
    """Submit each job when it is due; return what the scheduler says of all once they are over."""
    begin = time.monotonic()
    for submit, seconds, size in zip(
        *(column.tolist() for column in (work.submit, work.run_time, work.allocated)), strict=True
    ):
        due = begin + submit / MILLI / task.compression
        _await(nodes, lambda: time.monotonic() >= due, stop, due)  # noqa: B023 - it is awaited here
        client.ask("submit", jobs=[_spec(task, size, seconds / MILLI / task.compression).to_json()])
    _await(nodes, lambda: not client.ask("queue")["jobs"], stop)
    jobs: list[dict[str, Any]] = client.ask("history", last=task.jobs, brief=True)["jobs"]
    return jobs


def _await(nodes: EmulatedNodes, predicate: Callable[[], bool], stop: Event, due: float = math.inf) -> None:
    """Serve the nodes until a condition holds, which may be before `due`."""
    while not predicate():
        if stop.is_set():
            raise CancelledError
        nodes.serve(min(due, time.monotonic() + LOOK))


def _simulated(work: Workload, *, adaptive: bool) -> tuple[float, float]:
    """Return the mean response and the utilisation of the same jobs in a simulation."""
    run = Simulation.of(
        work, Machine(PROCESSORS), load_policy(ADAPTIVE if adaptive else RIGID), adaptive=FREE.by_ticks(MILLI)
    )
    run.run()
    told = metrics(run, Power())
    return told["mean_response_s"] / MILLI, told["node_utilisation"]


def levels(found: dict[Task, Outcome]) -> Iterator[tuple[float, str, dict[str, Estimate]]]:
    """Yield load, metric and estimates: rigid and adaptive, live and simulated, and adaptive minus rigid live."""
    for load in sorted({task.load for task in found}):
        for metric, live, simulated in (("response, s", 0, 2), ("utilisation", 1, 3)):
            values = {
                way: np.array(
                    [outcome for task, outcome in sorted(found.items()) if (task.load, task.adaptive) == (load, way)]
                )
                for way in (False, True)
            }
            yield (
                load,
                metric,
                {
                    "rigid": estimate(values[False][:, live]),
                    "adaptive": estimate(values[True][:, live]),
                    "difference": estimate(values[True][:, live] - values[False][:, live]),
                    "rigid, simulated": estimate(values[False][:, simulated]),
                    "adaptive, simulated": estimate(values[True][:, simulated]),
                },
            )


def lines(found: dict[Task, Outcome]) -> Iterator[str]:
    """Yield the table of results, each with half of its 95 % interval."""
    rows: list[Sequence[str]] = []
    heads: list[str] = []
    for load, metric, told in levels(found):
        heads = ["load", "metric", *told]
        rows.append([f"{load:.1f}", metric, *(f"{one.mean:.3g} ± {one.half:.2g}" for one in told.values())])
    yield from table(heads, rows, "> " + ">" * 5)


def to_json(found: dict[Task, Outcome]) -> dict[str, Any]:
    """Return all results as JSON values."""
    rows = [
        {"load": load, "metric": metric} | {name: one._asdict() for name, one in told.items()}
        for load, metric, told in levels(found)
    ]
    runs = [task._asdict() | outcome._asdict() for task, outcome in found.items()]
    return {"nodes": NODES, "cores": CORES, "levels": rows, "runs": runs}
