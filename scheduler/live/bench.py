# SPDX-License-Identifier: Apache-2.0
"""`drom bench cluster`: a real scheduler with real agents, each of which has emulated cores, and real jobs."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import zmq

from agent import claims, control
from agent.bench import machine
from agent.control import ControlError
from agent.steward import protocol as say
from scheduler.bench import figure
from scheduler.compiling import load_policy
from scheduler.live.cluster import Cluster
from scheduler.live.jobs import COMPLETED, User
from scheduler.live.settings import Settings
from scheduler.live.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NODES, CORES = 4, 4
LARGE, WIDE, QUEUED = 49, 48, 10_000
"""Nodes, cores of each, and waiting jobs of the pass that is timed."""
PASSES = 30
STARTS = 30
SUBMISSIONS = 2000
NOTHINGS = 400
PATIENCE = 300.0
WORDS = ("interval=1", "reservations=nodes", "resolution=1", "max_slowdown=infinite")

MATE = """
import dromlib, time
session = dromlib.attach()
open("mate", "w").close()
while True:
    if session.poll():
        session.apply()
    time.sleep(0.01)
"""
"""A malleable program that looks each 10 ms."""


def measure(runs: int) -> dict[str, Any]:
    """Measure everything `runs` times; return medians and extremes. Raises ControlError when a part does not answer."""
    passes = [_pass_ms() for _ in range(runs)]
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for name, value in _once():
            found.setdefault(name, []).append(value)
    rows = [
        ("pass with 10,000 jobs waiting, 49 nodes", "ms", passes, 50.0),
        ("one-node job: submission to first instruction, p50", "ms", found["start"], 100.0),
        ("guest: submission to first instruction, mate polls each 10 ms, p50", "ms", found["guest"], 200.0),
        ("a submission that survives a kill (2 ms: 500 a second)", "ms", found["NORMAL"], 2.0),
        ("a submission that survives loss of power", "ms", found["FULL"], None),
        ("a one-node job that does nothing, of many on 4 nodes (10 ms: 100 a second)", "ms", found["jobs"], 10.0),
    ]
    return {"schema_version": 1, "machine": machine(), "runs": runs, "figures": [figure(*row) for row in rows]}


# --- without processes ----------------------------------------------------------------------------------------------


def _pass_ms() -> float:
    """Return the median time of a turn at which a job ends and another one comes, in milliseconds."""
    cluster, now = Cluster(load_policy("sd", WORDS), Settings()), 1000.0
    for number in range(LARGE):
        hello = say.Hello(say.PROTOCOL, "1", f"n{number}", "host", "boot", WIDE, 1, 0, {}, (), True, now, ())
        cluster.hello(hello, now)
    user = User(os.geteuid(), os.getegid(), "bench")
    spec = Spec(command=("true",), nodes=1, time=3600, folder="/", job_class="rigid")
    jobs = [cluster.submit(spec, user, now) for _ in range(LARGE + QUEUED)]
    cluster.turn(now)
    took = []
    for job in jobs[:PASSES]:
        now += 1
        for name in job.shares:
            cluster.alive(name, now)
            attempt = job.attempt
            cluster.heard(name, say.Started(job.number, attempt, 1, now), now)
            cluster.heard(name, say.Ended(job.number, attempt, 0, now, 0.0, 0), now)
        cluster.submit(spec, user, now)
        begin = time.perf_counter()
        cluster.turn(now)
        took.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(took)


# --- with them ------------------------------------------------------------------------------------------------------


def _once() -> Iterator[tuple[str, float]]:
    with TemporaryDirectory(prefix="drom-bench-") as folder:
        for name, durable in (("NORMAL", False), ("FULL", True)):
            with _scheduler(Path(folder) / name, durable=durable) as client, _agents(Path(folder) / name, 1):
                client.await_nodes(1)
                yield name, _submissions(client)
        home = Path(folder) / "cluster"
        with _scheduler(home) as client, _agents(home, NODES):
            client.await_nodes(NODES)
            yield "start", statistics.median(_start_ms(client, home) for _ in range(STARTS))
            yield "jobs", _job_ms(client, home)
            yield "guest", statistics.median(_guest_ms(client, home, turn) for turn in range(5))


class _Client:
    """One connection to a scheduler, for many orders."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], state: Path) -> None:
        self._sock: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self._sock.setsockopt(zmq.LINGER, 0)
        self._sock.connect(control.endpoint(state, "control"))

    def ask(self, name: str, **fields: object) -> Any:  # noqa: ANN401 - a JSON value
        """Give an order and return the answer."""
        self._sock.send(json.dumps({"protocol": control.PROTOCOL, "order": name, **fields}).encode())
        if not self._sock.poll(int(PATIENCE * 1000)):
            raise ControlError("the scheduler of the benchmark does not answer: its words stand above.")
        answer = json.loads(self._sock.recv())
        if not answer["ok"]:
            raise ControlError(answer["error"])
        return answer["value"]

    def submit(self, home: Path, *command: str, **more: object) -> int:
        """Submit a job and return its number."""
        spec = Spec(command=command, folder=str(home), time=600, environment={"PATH": os.environ["PATH"]})
        jobs = self.ask("submit", jobs=[spec.to_json() | more])["jobs"]
        return int(jobs[0])

    def await_nodes(self, count: int) -> None:
        """Wait until so many nodes are up."""
        _await(lambda: sum(node["state"] == "up" for node in self.ask("nodes")["nodes"]) == count)

    def await_end(self, job: int) -> None:
        """Wait until a job is over. Raises ControlError if it did not end well."""
        _await(lambda: self.ask("job", job=job)["ended"] is not None)
        state = self.ask("job", job=job)["state"]
        if state != COMPLETED:
            msg = f"a job of the benchmark is {state}: {self.ask('job', job=job)['reason']}."
            raise ControlError(msg)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


def _await(predicate: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not predicate():
        if time.monotonic() > deadline:
            raise ControlError("a part of the benchmark's cluster does not answer: its words stand above.")
        time.sleep(0.01)


@contextlib.contextmanager
def _scheduler(home: Path, *, durable: bool = False) -> Iterator[_Client]:
    """Run a scheduler with its state in `home` and give a connection to it."""
    home.mkdir()
    words = ["scheduler", "--state", str(home), "--set", "max_slowdown=infinite", *(["--durable"] if durable else [])]
    with _process(home / "scheduler.log", *words) as process, zmq.Context() as context:
        _await(lambda: (home / "control").exists() or process.poll() is not None)
        client = _Client(context, home)
        try:
            yield client
        finally:
            client.close()


@contextlib.contextmanager
def _agents(home: Path, count: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for number in range(count):
            words = ["--emulate", f"pack:1 core:{CORES} pu:1", "--scheduler", f"ipc://{home}/agents"]
            words += ["--runtime-dir", str(home / f"n{number}"), "--node", f"n{number}"]
            stack.enter_context(_process(home / f"n{number}.log", "agent", *words))
        yield


@contextlib.contextmanager
def _process(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    claimed = log.parent / "claims"
    claimed.mkdir(exist_ok=True)
    environment = dict(os.environ) | {claims.VARIABLE: str(claimed)}
    with log.open("wb") as stream:
        process = subprocess.Popen([sys.executable, "-m", "agent", *words], stderr=stream, env=environment)
    try:
        yield process
    except ControlError:
        sys.stderr.write(log.read_text(encoding="utf-8"))
        raise
    finally:
        process.terminate()
        process.wait()


def _submissions(client: _Client) -> float:
    """Return the milliseconds of a submission by one user, each of which is on disk before the next begins."""
    folder = Path("/")
    begin = time.monotonic()
    for _ in range(SUBMISSIONS):
        client.submit(folder, "true", hold=True)
    return 1e3 * (time.monotonic() - begin) / SUBMISSIONS


def _start_ms(client: _Client, home: Path) -> float:
    begin = time.time()
    job = client.submit(home, "date", "+%s.%N", output="start")
    client.await_end(job)
    return 1e3 * (float((home / "start").read_text(encoding="utf-8")) - begin)


def _guest_ms(client: _Client, home: Path, turn: int) -> float:
    """Return how long a guest takes from its submission to its first instruction, as all nodes have a mate."""
    mates = [client.submit(home, sys.executable, "-c", MATE) for _ in range(NODES)]
    _await(lambda: all(client.ask("job", job=mate)["state"] == "running" for mate in mates))
    _await((home / "mate").exists)
    begin = time.time()
    guest = client.submit(home, "date", "+%s.%N", output=f"guest{turn}", time=60)
    client.await_end(guest)
    for mate in mates:
        client.ask("cancel", job=mate)
    _await(lambda: not client.ask("queue")["jobs"])
    return 1e3 * (float((home / f"guest{turn}").read_text(encoding="utf-8")) - begin)


def _job_ms(client: _Client, home: Path) -> float:
    """Return the milliseconds from one end of such a job to the next."""
    spec = Spec(command=("true",), folder=str(home), time=60, output="nothing", job_class="rigid").to_json()
    begin = time.monotonic()
    client.ask("submit", jobs=[spec] * NOTHINGS)
    _await(lambda: not client.ask("queue")["jobs"])
    return 1e3 * (time.monotonic() - begin) / NOTHINGS
