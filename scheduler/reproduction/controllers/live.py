# SPDX-License-Identifier: Apache-2.0
"""Real schedulers on a real etcd of three members with emulated nodes: what a job costs, and how well the model fits.

Emulated nodes answer as agents do, and run nothing. Times to launch a program are measured with two real agents.

Costs are CPU times of processes, which other work on the machine hardly changes. It changes how long things take: each
run also measures how long its processes waited for a core, and how long small messages to the store took meanwhile.
With these `Conditions` the model says how long a run takes on this machine, beside the other work.
"""

from __future__ import annotations

import os
import re
import statistics
import threading
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
from drom.agent.errors import ControlError
from drom.agent.system import python_command
from drom.agent.system.unix_signals import DIE_WITH_PARENT
from drom.agent.testbed.agent_process import AgentProcess, clean_environment
from drom.scheduler.live.accounting import entries_of
from drom.scheduler.live.cluster.jobs import COMPLETED
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.live.server.etcd import Etcd, StoreAddress, absent, put
from drom.scheduler.reproduction.controllers.model import LARGE, MEDIUM, SMALL, Result, Setup, simulate, sizes_of
from drom.scheduler.reproduction.controllers.world import NONE, Costs, Options
from drom.scheduler.testbed import etcd
from drom.scheduler.testbed.emulated_nodes import EmulatedNodes, NodeSize
from drom.scheduler.testbed.local import PATIENCE, agents, await_condition, scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from drom.scheduler.interface import Floats, Ints
    from drom.scheduler.testbed.etcd import Member
    from drom.scheduler.testbed.local import Client
    from typing_extensions import Self

PARTITION = 50
"""The nodes of a controller of several, as in the paper."""
PER_PROCESS = 250
"""The most emulated nodes of a process."""
MOST_IN_ORDER = 50
"""The most different jobs of an order."""
IDLE_S = 5.0
LOOK_S = 0.2
"""Seconds between two questions whether all jobs are over."""
TRIES = 20
"""Messages to the store, and launches, of which the lower quartile counts: other work only makes them longer."""
PROBE_S = 0.05
"""Seconds between small messages to the store while a run goes on."""
REPEATS = 3
SINGLE = "one by one"
"""Small jobs in an order each, which more messages to the store belong to."""
WORK = (SMALL._replace(jobs=10 * SMALL.jobs), MEDIUM, LARGE)
"""The paper's small jobs ten times: those of one run are over after too few messages to compare."""
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


class Conditions(NamedTuple):
    """How other work on the machine disturbed a run.

    `message` is the mean of seconds that small messages to the store took. The others are for how long the main threads
    of controllers and nodes, and all threads of the store, ran or waited for a core, for each second of CPU time that
    their processes used.
    """

    message: float
    controllers: float = 1.0
    nodes: float = 1.0
    store: float = 1.0


class Run(NamedTuple):
    """A real run: its setup and jobs, the seconds from the first submission to the last end, and what it used."""

    setup: Setup
    workload: str
    sizes: tuple[int, ...]
    seconds: float
    throughput: float
    submit: float
    """The mean of seconds that an order took, per job."""
    beat: float
    """The seconds of CPU that controllers used for each heartbeat without jobs, with all that they did besides."""
    used: Used
    conditions: Conditions
    load: float
    """The machine's load average at its end."""


class Measured(NamedTuple):
    """All runs, the costs that follow from their CPU times, and what the model says."""

    runs: list[Run]
    costs: Costs
    """On machines of their own: the store's are those of the member that leads."""

    def predicted(self, run: Run) -> Result:
        """Return what the model says of a run under its conditions; its CPU time is without waits."""
        costs, waits = self.costs, run.conditions
        longer = {name: getattr(costs, name) * waits.controllers for name in ("message", "job", "node")}
        longer |= {name: getattr(costs, name) * waits.store for name in ("store", "store_job", "store_node")}
        longer |= {"latency": max(0.0, waits.message - longer["store"]), "answer": costs.answer * waits.nodes}
        longer |= {"submit": run.submit, "beat": run.beat * waits.controllers}
        costs = costs._replace(**longer, start=0.0, launch=0.0, agent=0.0)
        found = simulate(run.setup._replace(cores=_processes(run.setup)), np.array(run.sizes), costs, ALONE)
        return found._replace(cpu=found.cpu / waits.controllers)


class Place(NamedTuple):
    """A controller: a connection for orders, the addresses of its metrics and for agents, and its process."""

    client: Client
    metrics: str
    agents: str
    pid: int


class Cluster:
    """Controllers with emulated nodes, on one etcd."""

    def __init__(
        self, setup: Setup, places: dict[str, Place], members: list[Member], nodes: list[AgentProcess]
    ) -> None:
        self._setup, self._nodes = setup, nodes
        self._clients = {home: place.client for home, place in places.items()}
        self._metrics = [place.metrics for place in places.values()]
        self._controllers = [place.pid for place in places.values()]
        self._members, self._leader = members, next(member for member in members if member.is_leader)
        self.idle = Used(0, 0, 0, 0, 0)
        """What is used per second when there are no jobs."""
        with Probe(self._members):
            before = self._used()
            time.sleep(IDLE_S)
            self.idle = Used(*(value / IDLE_S for value in self._used().since(before)))

    @property
    def beat(self) -> float:
        """The seconds of CPU that controllers use for each heartbeat when there are no jobs."""
        return self.idle.controllers / self._setup.controllers / self._setup.nodes

    def _used(self) -> Used:
        told = [_scrape(address) for address in self._metrics]
        members = {member: _cpu([_pid(member)]) for member in self._members}
        return Used(
            sum(one[_MESSAGES] for one in told),
            sum(one[_CPU] for one in told),
            members[self._leader],
            sum(members.values()),
            _cpu([one.pid for one in self._nodes]),
        )

    def _runnable(self) -> tuple[float, float, float]:
        """Return for how many seconds all controllers, nodes and members ran or waited for a core.

        Of controllers and nodes main threads count.
        """
        members = [int(path.name) for one in self._members for path in Path(f"/proc/{_pid(one)}/task").iterdir()]
        nodes = [one.pid for one in self._nodes]
        return sum(map(_ran, self._controllers)), sum(map(_ran, nodes)), sum(map(_ran, members))

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
        before, begin, ready = self._used(), time.monotonic(), self._runnable()
        parts = sizes.reshape(self._setup.controllers, -1).tolist()
        with Probe(self._members) as probe, ThreadPoolExecutor(len(parts)) as pool:
            spans = list(pool.map(partial(self._run_part, at_once=at_once), self._clients.items(), parts))
        used, idle = self._used().since(before), time.monotonic() - begin
        runnable = (now - then for now, then in zip(self._runnable(), ready, strict=True))
        ratios = map(_ratio, runnable, (used.controllers, used.nodes, used.members))
        return Run(
            self._setup._replace(jobs=len(parts[0]), order=at_once),
            workload,
            tuple(sizes.tolist()),
            max(span.end for span in spans) - min(span.begin for span in spans),
            sum(len(part) / (span.end - span.begin) for part, span in zip(parts, spans, strict=True)),
            statistics.mean(span.submit for span in spans),
            self.beat,
            Used(*(max(0.0, value - idle * rate) for value, rate in zip(used, self.idle, strict=True))),
            Conditions(probe.mean, *ratios),
            os.getloadavg()[0],
        )

    def _run_part(self, place: tuple[str, Client], sizes: list[int], at_once: int) -> _Span:
        """Run the jobs of one controller. Raises ControlError."""
        home, client = place
        begin = time.monotonic()
        for first in range(0, len(sizes), at_once):
            client.ask("submit", jobs=[_spec(size) for size in sizes[first : first + at_once]], home=home)
        submit = (time.monotonic() - begin) / len(sizes)
        while not _are_over(client, home):
            for one in self._nodes:
                if one.ended():
                    raise ControlError(f"emulated nodes have ended: {one.last_words()}")
            time.sleep(LOOK_S)
        jobs = client.ask("history", last=len(sizes), brief=True, home=home)["jobs"]
        return _Span(min(job["submitted"] for job in jobs), max(job["ended"] for job in jobs), submit)


class Probe:
    """Sends small messages to the store while its block runs, and measures the `mean` of seconds that they take.

    What its thread waits for a core does not count.
    """

    def __init__(self, members: list[Member]) -> None:
        self._store = Etcd(StoreAddress(tuple(member.at for member in members), "latency"))
        self._stop, self._took = threading.Event(), list[float]()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join()
        self._store.close()

    def _run(self) -> None:
        own = Path("/proc/thread-self/schedstat")
        while not (self._took and self._stop.wait(PROBE_S)):
            begin, waited = time.monotonic(), _counted(own)[1]
            self._store.transact([], [put("latency/probe", b"x")], "latency/probe", PATIENCE)
            self._took.append(time.monotonic() - begin - (_counted(own)[1] - waited))

    @property
    def mean(self) -> float:
        """The mean of seconds that a message took."""
        return statistics.mean(self._took)


def _counted(path: Path) -> tuple[float, float]:
    """Return the seconds that a thread ran, and those that it waited for a core; none where Linux does not count."""
    try:
        ran, waited, _ = path.read_text(encoding="ascii").split()
    except OSError:
        return 0.0, 0.0
    return int(ran) / 1e9, int(waited) / 1e9


def _ran(thread: int) -> float:
    """Return the seconds that a thread ran or waited for a core; the main one has the number of its process."""
    return sum(_counted(Path(f"/proc/{thread}/schedstat")))


def _ratio(runnable: float, used: float) -> float:
    """Return seconds for each second of CPU time; 1 where Linux does not count them."""
    return runnable / used if runnable and used else 1.0


class _Span(NamedTuple):
    """When the first job of a controller was submitted and its last ended, and the seconds per job of an order."""

    begin: float
    end: float
    submit: float


def _are_over(client: Client, home: str) -> bool:
    """Return whether all jobs are over; the newest one is looked at first, as a list of many costs the controller."""
    newest = client.ask("history", last=1, brief=True, home=home)["jobs"][0]
    return newest["ended"] is not None and not client.ask("queue", home=home)["jobs"]


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
        folder, places, nodes = Path(scratch), dict[str, Place](), list[AgentProcess]()
        own = keys.make(folder / "keys")
        members = stack.enter_context(etcd.running(folder, 3))
        store = f"etcd://{','.join(member.at for member in members)}/controllers"
        options = ["--policy", "fcfs", "--store", store, "--lease", "60", "--silence", "1000", "--no-lend"]
        options += ["--keys", str(own.folder), "--agents", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
        for home in (f"p{number}" for number in range(setup.controllers)):
            client = stack.enter_context(scheduler(folder / home, *options, "--home-partition", home))
            places[home] = _place(client, folder / home / "scheduler.log")
        for words in _shared_out(setup, places):
            nodes.append(_nodes(folder, [str(own.folder), *words]))
            stack.callback(nodes[-1].close, PATIENCE)
        for home, place in places.items():
            await_condition(partial(_are_up, place.client, home, setup.nodes), [one.process for one in nodes])
        yield Cluster(setup, places, members, nodes)


def _place(client: Client, log: Path) -> Place:
    """Return what a controller has logged of itself."""

    def found(pattern: str) -> list[str]:
        return re.findall(pattern, log.read_text(encoding="utf-8"))

    await_condition(lambda: bool(found("event=ready")))
    (metrics,), (agents,), (pid,) = map(found, (r"event=metrics .*port=(\d+)", r"agents=(\d+)", r"pid=(\d+)"))
    return Place(client, f"http://127.0.0.1:{metrics}/metrics", f"tcp://127.0.0.1:{agents}", int(pid))


def _processes(setup: Setup) -> int:
    """Return how many processes have all nodes of a setup."""
    return -(-setup.controllers * setup.nodes // PER_PROCESS)


def _shared_out(setup: Setup, places: dict[str, Place]) -> Iterator[list[str]]:
    """Yield words for each process of nodes: ADDRESS HOME FIRST COUNT for each group of nodes."""
    step = min(PARTITION, setup.nodes)
    groups = [
        [place.agents, home, str(first), str(min(step, setup.nodes - first))]
        for home, place in places.items()
        for first in range(0, setup.nodes, step)
    ]
    for number in range(_processes(setup)):
        yield [word for group in groups[number :: _processes(setup)] for word in group]


def _are_up(client: Client, home: str, count: int) -> bool:
    states = [node["state"] for node in client.ask("nodes", home=home)["nodes"]]
    return states.count("up") == count


def _nodes(folder: Path, words: list[str]) -> AgentProcess:
    """Start a process with emulated nodes."""
    code = f"from {__name__} import serve; import sys; serve(*sys.argv[1:])"
    return AgentProcess(
        [*DIE_WITH_PARENT, *python_command.python(code, *words)], folder / "nodes.log", clean_environment()
    )


def serve(own: str, *words: str) -> None:
    """Be the nodes in `words`, ADDRESS HOME FIRST COUNT for each group, until this process is ended."""
    with closing(EmulatedNodes("", (), keys.load(Path(own)))) as nodes:
        for address, home, first, count in zip(*[iter(words)] * 4, strict=True):
            numbers = range(int(first), int(first) + int(count))
            nodes.connect(address, (NodeSize(f"{home}-{number}", 1, {}) for number in numbers), home)
        while True:
            nodes.serve(time.monotonic() + 1)


# --- what it costs ----------------------------------------------------------------------------------------------------


def measure(nodes: int, seed: int, show: Callable[[float], None] = lambda _: None) -> Measured:
    """Measure one controller, and make the runs with `nodes` nodes in all, for one controller and for several.

    Raises SchedulerError or ControlError.
    """
    etcd.program()
    launches = _launches()
    one = Setup(1, PARTITION, 0)
    with cluster(one) as some:
        latency = some.latency()
        runs = [some.run(SINGLE, np.ones(SMALL.jobs, np.int64), at_once=1) for _ in range(REPEATS)]
        runs += runs_of(some, one, seed)
    show(1 / 3)
    for setup in setups(nodes):
        with cluster(setup) as some:
            runs += runs_of(some, setup, seed)
        show(0.5 + 0.5 * (setup.controllers > 1))
    beat = min(run.beat for run in runs)  # with few nodes most is what a controller does for itself
    return Measured(runs, _fitted(runs)._replace(beat=beat, latency=latency, **launches))


def runs_of(some: Cluster, setup: Setup, seed: int) -> list[Run]:
    """Run each workload several times: as many jobs for each 50 nodes as in the paper, none too large to run there."""
    found = []
    for work in WORK:
        fits = work._replace(most=min(work.most, setup.nodes))
        sizes = sizes_of(fits, setup._replace(jobs=work.jobs * (setup.nodes // PARTITION)), seed)
        found += [some.run(work.name, sizes) for _ in range(REPEATS)]
    return found


def setups(nodes: int) -> list[Setup]:
    """Return one controller with so many nodes, and several with `PARTITION` each; each run has jobs of its own."""
    return [Setup(1, nodes, 0), Setup(nodes // PARTITION, PARTITION, 0)]


def _fitted(runs: list[Run]) -> Costs:
    """Return what a message, a job and a node cost the controller and the store."""
    loads = np.array([(run.used.messages, len(run.sizes), sum(run.sizes)) for run in runs], np.float64)

    def costs(name: str) -> Floats:
        return fit(loads, np.array([getattr(run.used, name) for run in runs]))

    found = dict(zip(("message", "job", "node"), costs("controllers"), strict=True))
    found |= dict(zip(("store", "store_job", "store_node"), costs("leader"), strict=True))
    answer = sum(run.used.nodes for run in runs) / loads[:, 2].sum()
    submit = min(run.submit for run in runs)
    return Costs(**{name: float(value) for name, value in found.items()}, answer=float(answer), submit=submit)


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


def _launches() -> dict[str, float]:
    """Return the seconds from placement to start and end of a program on a node, and what another node adds to its end.

    Two real agents run it.
    """
    with TemporaryDirectory(prefix="drom-controllers-") as scratch:
        home, options = Path(scratch) / "queue", ("--emulate", "pack:1 core:1")
        with scheduler(home, "--policy", "fcfs") as client, agents(home, 2, options) as started:
            client.await_nodes(2, started)
            for nodes in [1] * TRIES + [2] * TRIES:
                client.await_end(client.submit(home, script="#!/bin/sh\ntrue\n", nodes=nodes, output="/dev/null"))
            told = client.ask("history")
    entries = list(entries_of(told).values())
    alone, both = entries[:TRIES], entries[TRIES:]
    launch = _quartile([_span(one, COMPLETED) for one in alone])
    agent = max(0.0, _quartile([_span(one, COMPLETED) for one in both]) - launch)
    return {"start": _quartile([_span(one, "started") for one in alone]), "launch": launch, "agent": agent}


def _span(entries: list[dict[str, Any]], what: str) -> float:
    at = {entry["what"]: entry["at"] for entry in entries}
    return float(at[what] - at["placed"])


def _quartile(values: Sequence[float]) -> float:
    """Return the lower quartile."""
    return statistics.quantiles(values, n=4)[0]
