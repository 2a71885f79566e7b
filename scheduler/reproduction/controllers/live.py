# SPDX-License-Identifier: Apache-2.0
"""Real schedulers on a real etcd of three members with emulated nodes: what a job costs, and how well the model fits.

Emulated nodes answer as agents do, and run nothing. Times to launch a program are measured with two real agents. CPU
times are those of processes, since other work on the machine disturbs all others.
"""

from __future__ import annotations

import os
import re
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil
from drom.agent.control import keys
from drom.agent.system import python_command
from drom.agent.system.unix_signals import WITH_US
from drom.agent.testbed.agent_process import AgentProcess, clean_environment
from drom.scheduler.live.accounting import entries_of
from drom.scheduler.live.cluster.jobs import COMPLETED
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.live.server.etcd import Etcd, StoreAddress, absent, put
from drom.scheduler.reproduction.controllers.events import NONE, Costs, Options
from drom.scheduler.reproduction.controllers.model import MEDIUM, SMALL, Result, Setup, simulate, sizes_of
from drom.scheduler.testbed import etcd
from drom.scheduler.testbed.emulated_nodes import EmulatedNodes, NodeSize
from drom.scheduler.testbed.local import PATIENCE, agents, await_condition, scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.scheduler.interface import Floats, Ints
    from drom.scheduler.testbed.etcd import Member
    from drom.scheduler.testbed.local import Client

PARTITION = 50
"""The nodes of a controller of several, as in the paper."""
MOST_IN_ORDER = 50
"""The most different jobs of an order."""
IDLE_S = 5.0
LOOK_S = 0.2
"""Seconds between two questions whether all jobs are over: each costs the controller CPU time."""
TRIES = 20
"""Messages to the store, and launches, of which the lower quartile counts: other work only makes them longer."""
REPEATS = 3
SINGLE = "one by one"
"""Small jobs in an order each, which more messages to the store belong to."""
WORK = (SMALL, MEDIUM)
ALONE = Options(pick=NONE, watch=True, spread=True)
_MESSAGES, _CPU = "drom_scheduler_store_messages_total", "process_cpu_seconds_total"


class Used(NamedTuple):
    """What was used so far: messages to the store, and seconds of CPU by all controllers, members and nodes."""

    messages: float
    controllers: float
    leader: float
    members: float
    nodes: float

    def since(self, before: Used) -> Used:
        """Return what was used in between."""
        return Used(*(now - then for now, then in zip(self, before, strict=True)))


class Run(NamedTuple):
    """A real run: its setup and jobs, the seconds from the first submission to the last end, and what it used."""

    setup: Setup
    workload: str
    sizes: tuple[int, ...]
    seconds: float
    throughput: float
    submit: float
    """The seconds that an order took, per job."""
    used: Used
    load: float
    """The machine's load average at its end."""


class Measured(NamedTuple):
    """All runs, the costs that follow from those with one controller of `PARTITION` nodes, and what the model says."""

    runs: list[Run]
    costs: Costs
    """On machines of their own: the store's are those of the member that leads."""
    members: Costs
    """The same, with the CPU time of all members of the store."""

    def predicted(self, run: Run) -> Result:
        """Return what the model says of a run, on one machine with the cores of this one."""
        setup = run.setup._replace(cores=len(os.sched_getaffinity(0)), order=MOST_IN_ORDER)
        return simulate(setup, np.array(run.sizes), self.members, ALONE)


class Cluster:
    """Controllers with emulated nodes, on one etcd."""

    def __init__(
        self, setup: Setup, clients: dict[str, Client], metrics: list[str], members: list[Member], nodes: list[int]
    ) -> None:
        self._setup, self._clients, self._metrics, self._nodes = setup, clients, metrics, nodes
        self._members, self._leader = members, next(member for member in members if member.is_leader)
        self.idle = Used(0, 0, 0, 0, 0)
        """What is used per second when there are no jobs."""
        before = self._used()
        time.sleep(IDLE_S)
        self.idle = Used(*(value / IDLE_S for value in self._used().since(before)))

    def _used(self) -> Used:
        told = [_scrape(address) for address in self._metrics]
        return Used(
            sum(one[_MESSAGES] for one in told),
            sum(one[_CPU] for one in told),
            _cpu([_pid(self._leader)]),
            _cpu([_pid(member) for member in self._members]),
            _cpu(self._nodes),
        )

    def latency(self) -> float:
        """Return how long a small message to the store takes."""
        store, took = Etcd(StoreAddress(tuple(member.at for member in self._members), "latency")), list[float]()
        for number in range(TRIES):
            begin, key = time.monotonic(), f"latency/{number}"
            store.transact([absent(key)], [put(key, b"x")], key, PATIENCE)
            took.append(time.monotonic() - begin)
        store.close()
        return _quartile(took)

    def run(self, workload: str, sizes: Ints, *, at_once: int = MOST_IN_ORDER) -> Run:
        """Submit jobs with these sizes, `at_once` in an order, and wait until all are over."""
        before, begin = self._used(), time.monotonic()
        parts = sizes.reshape(self._setup.controllers, -1).tolist()
        with ThreadPoolExecutor(len(parts)) as pool:
            spans = list(pool.map(partial(_run_part, at_once=at_once), self._clients.items(), parts))
        used, idle = self._used().since(before), time.monotonic() - begin
        return Run(
            self._setup,
            workload,
            tuple(sizes.tolist()),
            max(span.end for span in spans) - min(span.begin for span in spans),
            sum(len(part) / (span.end - span.begin) for part, span in zip(parts, spans, strict=True)),
            min(span.submit for span in spans),
            Used(*(max(0.0, value - idle * rate) for value, rate in zip(used, self.idle, strict=True))),
            os.getloadavg()[0],
        )


class _Span(NamedTuple):
    """When the first job of a controller was submitted and its last ended, and the seconds per job of an order."""

    begin: float
    end: float
    submit: float


def _run_part(place: tuple[str, Client], sizes: list[int], at_once: int) -> _Span:
    """Run the jobs of one controller."""
    home, client = place
    begin = time.monotonic()
    for first in range(0, len(sizes), at_once):
        client.ask("submit", jobs=[_spec(size) for size in sizes[first : first + at_once]], home=home)
    submit = (time.monotonic() - begin) / len(sizes)
    while client.ask("queue", home=home)["jobs"]:
        time.sleep(LOOK_S)
    jobs = client.ask("history", last=len(sizes), brief=True, home=home)["jobs"]
    return _Span(min(job["submitted"] for job in jobs), max(job["ended"] for job in jobs), submit)


def _spec(size: int) -> dict[str, object]:
    return Spec(("sleep", "0"), nodes=size, time=60, folder="/", job_class="rigid").to_json()


def _scrape(address: str) -> dict[str, float]:
    """Return the metrics of a scheduler by name, with their labels."""
    with urllib.request.urlopen(address, timeout=PATIENCE) as answer:  # noqa: S310 - a scheduler of our own
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")}


def _pid(member: Member) -> int:
    assert member.process is not None  # noqa: S101 - it was started
    return member.process.pid


def _cpu(pids: Sequence[int]) -> float:
    """Return the CPU time of processes, in seconds."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


# --- the cluster ------------------------------------------------------------------------------------------------------


@contextmanager
def cluster(setup: Setup) -> Iterator[Cluster]:
    """Run schedulers, each with a home partition of emulated nodes. Raises SchedulerError or ControlError."""
    with TemporaryDirectory(prefix="drom-controllers-") as scratch, ExitStack() as stack:
        folder, clients, metrics, nodes = Path(scratch), dict[str, "Client"](), list[str](), list[AgentProcess]()
        own = keys.make(folder / "keys")
        members = stack.enter_context(etcd.running(folder, 3))
        store = f"etcd://{','.join(member.at for member in members)}/controllers"
        options = ["--policy", "fcfs", "--store", store, "--lease", "60", "--silence", "1000", "--no-lend"]
        options += ["--keys", str(own.folder), "--agents", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        for home in (f"p{number}" for number in range(setup.controllers)):
            clients[home] = stack.enter_context(scheduler(folder / home, *options, "--home-partition", home))
            log = folder / home / "scheduler.log"
            await_condition(lambda: "ready" in _ports(log))  # noqa: B023 - it is awaited here
            ports = _ports(log)
            metrics.append(f"http://127.0.0.1:{ports['metrics']}/metrics")
            for begin in range(0, setup.nodes, PARTITION):
                count = min(PARTITION, setup.nodes - begin)
                words = [f"tcp://127.0.0.1:{ports['ready']}", str(own.folder), home, str(begin), str(count)]
                nodes.append(_nodes(folder, words))
                stack.callback(nodes[-1].close, PATIENCE)
        for home, client in clients.items():
            await_condition(partial(_are_up, client, home, setup.nodes), [one.process for one in nodes])
        yield Cluster(setup, clients, metrics, members, [one.pid for one in nodes])


def _ports(log: Path) -> dict[str, str]:
    """Return the ports that a scheduler has logged, by event."""
    return dict(re.findall(r"event=(\w+) .*\b(?:port|agents)=(\d+)", log.read_text(encoding="utf-8")))


def _are_up(client: Client, home: str, count: int) -> bool:
    states = [node["state"] for node in client.ask("nodes", home=home)["nodes"]]
    return states.count("up") == count


def _nodes(folder: Path, words: list[str]) -> AgentProcess:
    """Start a process with emulated nodes."""
    code = f"from {__name__} import serve; import sys; serve(*sys.argv[1:])"
    return AgentProcess([*WITH_US, *python_command.python(code, *words)], folder / "nodes.log", clean_environment())


def serve(address: str, own: str, home: str, begin: str, count: str) -> None:
    """Be the nodes of a home partition with these numbers, until this process is ended."""
    sizes = (NodeSize(f"{home}-{number}", 1, {}) for number in range(int(begin), int(begin) + int(count)))
    with closing(EmulatedNodes(address, sizes, keys.load(Path(own)), home=home)) as nodes:
        while True:
            nodes.serve(time.monotonic() + 1)


# --- what it costs ----------------------------------------------------------------------------------------------------


def measure(nodes: int, seed: int, show: Callable[[float], None] = lambda _: None) -> Measured:
    """Measure one controller, and make the runs with `nodes` nodes in all, for one controller and for several.

    Raises SchedulerError or ControlError.
    """
    etcd.program()
    launch, agent = _launches()
    one = Setup(1, PARTITION, SMALL.jobs)
    with cluster(one) as some:
        latency, idle = some.latency(), some.idle
        runs = [some.run(SINGLE, np.ones(SMALL.jobs, np.int64), at_once=1) for _ in range(REPEATS)]
        runs += [some.run(work.name, sizes_of(work, one, seed)) for work in WORK for _ in range(REPEATS)]
    show(1 / 3)
    base = Costs(beat=idle.controllers / PARTITION, latency=latency, launch=launch, agent=agent)
    measured = Measured(
        [], base._replace(**_fitted(runs, "leader")), base._replace(**_fitted(runs, "members"), launch=0.0, agent=0.0)
    )
    for setup in setups(nodes):
        with cluster(setup) as some:
            runs += [some.run(work.name, sizes_of(work, setup, seed)) for work in WORK for _ in range(REPEATS)]
        show(0.5 + 0.5 * (setup.controllers > 1))
    return measured._replace(runs=runs)


def setups(nodes: int) -> list[Setup]:
    """Return one controller with so many nodes, and several with `PARTITION` each, for the same jobs."""
    several = nodes // PARTITION
    return [Setup(1, nodes, several * SMALL.jobs), Setup(several, PARTITION, SMALL.jobs)]


def _fitted(runs: list[Run], store: str) -> dict[str, float]:
    """Return what a message, a job and a node cost the controller and the store, in CPU time of this name."""
    loads = np.array([(run.used.messages, len(run.sizes), sum(run.sizes)) for run in runs], np.float64)

    def costs(name: str) -> Floats:
        return fit(loads, np.array([getattr(run.used, name) for run in runs]))

    found = dict(zip(("message", "job", "node"), costs("controllers"), strict=True))
    found |= dict(zip(("store", "store_job", "store_node"), costs(store), strict=True))
    answer = sum(run.used.nodes for run in runs) / loads[:, 2].sum()
    submit = min(run.submit for run in runs if run.workload == SMALL.name)
    return {name: float(value) for name, value in found.items()} | {"answer": float(answer), "submit": submit}


def fit(loads: Floats, seconds: Floats) -> Floats:
    """Return the costs, none below 0, that explain seconds of several runs best, by least squares of relative errors.

    `loads` has a row for each run.
    """
    found, kept = np.zeros(loads.shape[1]), list(range(loads.shape[1]))
    weights = 1 / np.maximum(seconds, 1e-3)
    while kept:
        part = np.linalg.lstsq(loads[:, kept] * weights[:, None], seconds * weights, rcond=None)[0]
        if (part >= 0).all():
            found[kept] = part
            break
        del kept[int(part.argmin())]
    return found


def _launches() -> tuple[float, float]:
    """Return the seconds from placement to end of a program on a node, and what another node adds, by real agents."""
    with TemporaryDirectory(prefix="drom-controllers-") as scratch:
        home, options = Path(scratch) / "queue", ("--emulate", "pack:1 core:1")
        with scheduler(home, "--policy", "fcfs") as client, agents(home, 2, options) as started:
            client.await_nodes(2, started)
            for nodes in [1] * TRIES + [2] * TRIES:
                client.await_end(client.submit(home, script="#!/bin/sh\ntrue\n", nodes=nodes, output="/dev/null"))
            told = client.ask("history")
    entries = list(entries_of(told).values())
    alone, both = (_quartile([_span(one) for one in part]) for part in (entries[:TRIES], entries[TRIES:]))
    return alone, max(0.0, both - alone)


def _span(entries: list[dict[str, Any]]) -> float:
    at = {entry["what"]: entry["at"] for entry in entries}
    return float(at[COMPLETED] - at["placed"])


def _quartile(values: Sequence[float]) -> float:
    """Return the lower quartile."""
    return statistics.quantiles(values, n=4)[0]
