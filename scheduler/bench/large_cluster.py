# SPDX-License-Identifier: Apache-2.0
"""A benchmark of a scheduler with 1,000 nodes and 20,000 waiting jobs: the time of each order, the longest turn.

It is a process with a real queue on disk and a real socket for users. Its nodes are added without agents.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.agent.bench.report import figure
from drom.agent.execution import protocol as say
from drom.agent.observe.log import Log
from drom.agent.system import python_command
from drom.agent.system.sd_notify import ServiceManager
from drom.agent.testbed.agent_process import clean_environment
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.jobs import User
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import MOST_AT_ONCE, Spec
from drom.scheduler.live.server.server import Server
from drom.scheduler.testbed.local import Client, await_condition

if TYPE_CHECKING:
    from collections.abc import Callable

NODES, CORES, WAITING = 1000, 48, 20_000
TIMES = 40
"""The number of times that a repeated order is given."""
WORDS = ("interval=1", "reservations=nodes", "resolution=1", "max_slowdown=infinite")
REQUEST_MS, LISTING_MS, ANSWER_MB = 100.0, 200.0, 10.0
"""Targets: the time of a request in the loop, the total time of a listing, and the memory of a request."""


class Timed(Server):
    """A scheduler with nodes that all have a job, which records the time of its longest turn, in milliseconds."""

    def __init__(self, folder: Path, log: Log, nodes: int) -> None:
        settings = Settings(silence=1e9, default_time=7200)
        super().__init__(folder, load_policy("sd", WORDS), settings, log, begins=False)
        self._nodes = nodes
        self.longest = self.memory = 0.0

    def advance(self) -> bool:
        """Begin with all nodes."""
        begins = super().advance()
        if begins:
            _fill_nodes(self, self._nodes)
            self.longest, self.memory = 0.0, _memory()
        return begins

    def turn(self) -> None:
        """Run a turn and record its time."""
        begin = time.perf_counter()
        super().turn()
        self.longest = max(self.longest, 1e3 * (time.perf_counter() - begin))


def serve(folder: str, nodes: int) -> None:
    """Run the scheduler until SIGTERM, with a job on each node; print its longest turn and its memory."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        server = Timed(Path(folder), Log(nowhere), nodes)
        server.run((Path(folder) / "ready").touch, ServiceManager({}, os.getpid()))
    sys.stdout.write(json.dumps({"turn": server.longest, "memory": (_memory("VmHWM") - server.memory) / 1e6}))


def _fill_nodes(server: Server, nodes: int) -> None:
    cluster, now = server.cluster, time.time()
    for number in range(nodes):
        hello = say.Hello(say.PROTOCOL, "1", f"n{number}", "host", "boot", CORES, 1, 0, {}, (), True, now, ())
        cluster.agents.hello(hello, now)
    spec = Spec(command=("true",), nodes=1, time=7200, folder="/", job_class="rigid")
    jobs = cluster.submit_many(spec, User(os.geteuid(), os.getegid(), "bench"), now, nodes)
    cluster.turn(now)
    for job in jobs:
        for name in job.shares:
            cluster.agents.on_message(name, say.Started(job.number, job.attempt, 1, now), now)
    server.turn()


def _memory(name: str = "VmRSS") -> float:
    """Return the memory of this process, in bytes; psutil does not have the most that it was (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(nodes: int = NODES, waiting: int = WAITING) -> list[dict[str, Any]]:
    """Return the figures of one scheduler. Raises ControlError if it does not answer."""
    with TemporaryDirectory(prefix="drom-bench-") as scratch:
        folder = Path(scratch) / "state"
        code = f"from drom.scheduler.bench.large_cluster import serve; serve({str(folder)!r}, {nodes})"
        with subprocess.Popen(python_command.python(code), stdout=subprocess.PIPE, env=clean_environment()) as process:
            try:
                await_condition((folder / "ready").exists, [process])
                with closing(Client(folder)) as client:
                    took = _orders(client, nodes, waiting)
            finally:
                process.send_signal(signal.SIGTERM)
            told = json.loads(process.communicate()[0])
    rows = [figure(name, "ms", values, reach) for name, values, reach in took]
    rows.append(figure("the longest turn of the loop", "ms", [told["turn"]], None))
    return [*rows, figure("memory that all of this took at most", "MB", [told["memory"]], None)]


def _orders(client: Client, nodes: int, waiting: int) -> list[tuple[str, list[float], float]]:
    """Give each order; return its name, the milliseconds of each answer, and the target."""
    found: list[tuple[str, list[float], float]] = []

    def timed(name: str, reach: float, times: int, give: Callable[[int], object]) -> None:
        values = []
        for number in range(times):
            begin = time.perf_counter()
            give(number)
            values.append(1e3 * (time.perf_counter() - begin))
        for word, at in (("p50", 50), ("p99", 99)):
            found.append((f"{name}, {word}", [float(np.percentile(values, at))], reach))

    spec = Spec(command=("true",), folder="/", time=7200, job_class="rigid").to_json()
    some = [spec | {"time": 600 + number} for number in range(TIMES)]
    count = waiting // MOST_AT_ONCE
    timed(
        f"submit --count {MOST_AT_ONCE}",
        REQUEST_MS,
        count,
        lambda _: client.ask("submit", jobs=[spec], count=MOST_AT_ONCE),
    )
    timed("submit", REQUEST_MS, TIMES, lambda number: client.ask("submit", jobs=[some[number]]))
    timed("queue, its first 1,000 jobs", LISTING_MS, TIMES, lambda _: client.ask("queue", limit=1000))
    timed("queue, all jobs in pages", 1e3 * LISTING_MS / 100, 3, lambda _: client.ask("queue"))
    timed("nodes", LISTING_MS, TIMES, lambda _: client.ask("nodes"))
    timed("job, one that runs", REQUEST_MS, TIMES, lambda number: client.ask("job", job=1 + number))
    waits = [1 + nodes + waiting // (TIMES + 10) * number for number in range(TIMES)]
    timed("job, one that waits", REQUEST_MS, TIMES, lambda number: client.ask("job", job=waits[number]))
    timed("hold", REQUEST_MS, TIMES, lambda number: client.ask("hold", job=waits[number]))
    timed("hold --release", REQUEST_MS, TIMES, lambda number: client.ask("hold", job=waits[number], held=False))
    timed("cancel", REQUEST_MS, TIMES, lambda number: client.ask("cancel", job=waits[number]))
    timed("drain", REQUEST_MS, TIMES, lambda number: client.ask("drain", node=f"n{number}", reason="bench"))
    return found
