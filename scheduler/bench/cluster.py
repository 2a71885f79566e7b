# SPDX-License-Identifier: Apache-2.0
"""`drom bench cluster`: a real scheduler, real agents with emulated cores, and real jobs."""

from __future__ import annotations

import os
import re
import statistics
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from drom.agent.bench.report import figure
from drom.agent.execution import protocol as say
from drom.agent.system import python_command
from drom.agent.topology.detect import describe_host
from drom.scheduler.bench import large_cluster
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.live.cluster.cluster import Cluster
from drom.scheduler.live.cluster.jobs import Job, User
from drom.scheduler.live.cluster.settings import Settings
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.testbed import etcd
from drom.scheduler.testbed.local import Client, agents, await_condition, scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

NODES, CORES = 4, 4
LARGE, WIDE, QUEUED = 49, 48, 10_000
"""Nodes, cores of each, and waiting jobs of the pass that is timed."""
UNLIKE, KINDS = 1000, ((16, 64, 0), (32, 128, 0), (64, 512, 0), (32, 256, 4))
"""Unlike nodes, and the cores, GiB of memory and GPUs of each kind."""
DEEP = 100
"""Reservations of the pass that makes many."""
PASSES = 30
STARTS = 30
SUBMISSIONS = 2000
NOTHINGS = 400
FREELY = ("--set", "max_slowdown=infinite")
EMULATED = ("--emulate", f"pack:1 core:{CORES} pu:1")
MANY = ("--emulate", f"pack:2 core:{WIDE // 2} pu:1")
WORDS = ("interval=1", "reservations=nodes", "resolution=1", "max_slowdown=infinite")

MATE = """
import dromlib, time
session = dromlib.attach()
open("mate", "w").close()
while True:
    grant = session.poll()
    if grant:
        session.apply(grant)
    time.sleep(0.01)
"""
"""A malleable program that polls every 10 ms."""


def measure(runs: int) -> dict[str, Any]:
    """Measure everything `runs` times; return medians and extremes. Raises ControlError if a part does not answer."""
    passes = [_pass_ms() for _ in range(runs)]
    divided = [[_divided_pass_ms(depth) for _ in range(runs)] for depth in (1, DEEP)]
    found: dict[str, list[float]] = {}
    for _ in range(runs):
        for name, value in _once():
            found.setdefault(name, []).append(value)
    rows = [
        ("pass with 10,000 jobs waiting, 49 nodes", "ms", passes, 50.0),
        ("policy resources: pass with 10,000 jobs waiting, 1,000 unlike nodes", "ms", divided[0], 100.0),
        (f"the same with {DEEP} reservations (depth={DEEP})", "ms", divided[1], 100.0),
        ("one-node job: submission to first instruction, p50", "ms", found["start"], 100.0),
        ("guest: submission to first instruction, mate polls each 10 ms, p50", "ms", found["guest"], 200.0),
        ("a submission that survives a kill (2 ms: 500 a second)", "ms", found["NORMAL"], 2.0),
        ("a submission that survives loss of power", "ms", found["FULL"], None),
        ("a one-node job that does nothing, of many on 4 nodes (10 ms: 100 a second)", "ms", found["jobs"], 10.0),
        ("a one-core job that does nothing, of many on 4 nodes of 48 cores", "ms", found["cores"], 10.0),
    ]
    if "etcd" in found:
        nothing = "a one-node job that does nothing, with the queue in an etcd of three members"
        slower = [etcd_ms / ms for etcd_ms, ms in zip(found["etcd"], found["jobs"], strict=True)]
        rows += [
            (f"{nothing} (16.7 ms: 60 a second)", "ms", found["etcd"], 16.7),
            ("the same, compared to a queue in a file", "times", slower, 2.0),
            ("messages to etcd for each of these jobs", "messages", found["messages"], 12.0),
        ]
    figures = [*(figure(*row) for row in rows), *large_cluster.measure()]
    return {"schema_version": 1, "machine": describe_host(), "runs": runs, "figures": figures}


# --- without processes ----------------------------------------------------------------------------------------------


def _pass_ms() -> float:
    """Return the median time of a turn in which one job ends and another arrives, in milliseconds."""
    cluster, now = Cluster(load_policy("sd", WORDS), Settings()), 1000.0
    for number in range(LARGE):
        hello = say.Hello(say.PROTOCOL, "1", f"n{number}", "host", "boot", WIDE, 1, 0, {}, (), True, now, ())
        cluster.agents.hello(hello, now)
    user = User(os.geteuid(), os.getegid(), "bench")
    spec = Spec(command=("true",), nodes=1, time=3600, folder="/", job_class="rigid")
    jobs = [cluster.submit(spec, user, now) for _ in range(LARGE + QUEUED)]
    cluster.turn(now)
    took = []
    for job in jobs[:PASSES]:
        now += 1
        for name in job.shares:
            cluster.members.alive(name, now)
            attempt = job.attempt
            cluster.agents.on_message(name, say.Started(job.number, attempt, 1, now), now)
            cluster.agents.on_message(name, say.Ended(job.number, attempt, 0, now, 0.0, 0), now)
        cluster.submit(spec, user, now)
        begin = time.perf_counter()
        cluster.turn(now)
        took.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(took)


def _divided_pass_ms(depth: int) -> float:
    """Return the same for jobs that share unlike nodes, each with other amounts of cores, memory and GPUs."""
    cluster, now, chance = (
        Cluster(load_policy("resources", (f"depth={depth}",)), Settings()),
        1000.0,
        np.random.default_rng(1),
    )
    for number in range(UNLIKE):
        cores, memory, gpus = KINDS[number % len(KINDS)]
        name, resources = f"n{number}", {"gpu": gpus} if gpus else {}
        has = cores, 1, memory << 30, resources, ()
        cluster.agents.hello(say.Hello(say.PROTOCOL, "1", name, "host", "boot", *has, True, now, ()), now)
    user = User(os.geteuid(), os.getegid(), "bench")

    def submit() -> None:
        """Submit a job; a quarter of them ask for GPUs."""
        choices = ((1, 4, 8, 16, 32), (0, 0, 0, 0, 0, 0, 1, 4), (1, 1, 1, 2, 4, 16))
        cores, gpus, nodes = (int(chance.choice(choice)) for choice in choices)
        memory, limit = int(chance.integers(1, 60)) << 30, int(chance.integers(60, 86400))
        wanted = {"gpu": gpus} if gpus else {}
        spec = Spec(("true",), nodes=nodes, threads=cores, time=limit, folder="/", memory=memory, resources=wanted)
        cluster.submit(spec, user, now)

    def running() -> list[Job]:
        return [job for job in cluster.jobs.values() if job.left]

    while len(cluster.jobs) < QUEUED:
        submit()
    cluster.turn(now)
    for _ in running():
        submit()
    took = []
    for job in running()[:PASSES]:
        now += 1
        for name in list(job.shares):
            cluster.members.alive(name, now)
            cluster.agents.on_message(name, say.Ended(job.number, job.attempt, 0, now, 0.0, 0), now)
        submit()
        begin = time.perf_counter()
        cluster.turn(now)
        took.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(took)


# --- with them ------------------------------------------------------------------------------------------------------


def _once() -> Iterator[tuple[str, float]]:
    with TemporaryDirectory(prefix="drom-bench-") as folder:
        for name, durable in (("NORMAL", ()), ("FULL", ("--durable",))):
            home = Path(folder) / name
            with scheduler(home, *FREELY, *durable) as client, agents(home, 1, EMULATED):
                client.await_nodes(1)
                yield name, _submissions(client)
        home = Path(folder) / "cluster"
        with scheduler(home, *FREELY) as client, agents(home, NODES, EMULATED):
            client.await_nodes(NODES)
            yield "start", statistics.median(_start_ms(client, home) for _ in range(STARTS))
            yield "jobs", _job_ms(client, home)
            yield "guest", statistics.median(_guest_ms(client, home, turn) for turn in range(5))
        home = Path(folder) / "cores"
        with scheduler(home, "--policy", "resources") as client, agents(home, NODES, MANY):
            client.await_nodes(NODES)
            yield "cores", _job_ms(client, home)
        if etcd.is_installed():
            yield from _in_etcd(Path(folder))


def _in_etcd(folder: Path) -> Iterator[tuple[str, float]]:
    home = folder / "etcd"
    with etcd.running(folder, 3) as members:
        store = f"etcd://{','.join(member.at for member in members)}"
        options = (*FREELY, "--store", store, "--metrics", "127.0.0.1:0")
        with scheduler(home, *options) as client, agents(home, NODES, EMULATED):
            client.await_nodes(NODES)
            before = _messages(home)
            yield "etcd", _job_ms(client, home)
            yield "messages", (_messages(home) - before) / NOTHINGS


def _messages(home: Path) -> float:
    """Return how many messages a scheduler has sent to etcd so far."""
    (port,) = re.findall(r"event=metrics .*port=(\d+)", (home / "scheduler.log").read_text(encoding="utf-8"))
    with closing(HTTPConnection(f"127.0.0.1:{port}")) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    (found,) = re.findall(r"^drom_scheduler_store_messages_total (.*)$", text, re.MULTILINE)
    return float(found)


def _submissions(client: Client) -> float:
    """Return the milliseconds per submission of one user; each is on disk before the next begins."""
    folder = Path("/")
    begin = time.monotonic()
    for _ in range(SUBMISSIONS):
        client.submit(folder, "true", hold=True)
    return 1e3 * (time.monotonic() - begin) / SUBMISSIONS


def _start_ms(client: Client, home: Path) -> float:
    begin = time.time()
    job = client.submit(home, "date", "+%s.%N", output="start")
    client.await_end(job)
    return 1e3 * (float((home / "start").read_text(encoding="utf-8")) - begin)


def _guest_ms(client: Client, home: Path, turn: int) -> float:
    """Return the milliseconds from a guest's submission to its first instruction while all nodes have a mate."""
    mates = [client.submit(home, *python_command.python(MATE)) for _ in range(NODES)]
    await_condition(lambda: all(client.ask("job", job=mate)["state"] == "running" for mate in mates))
    await_condition((home / "mate").exists)
    begin = time.time()
    guest = client.submit(home, "date", "+%s.%N", output=f"guest{turn}", time=60)
    client.await_end(guest)
    for mate in mates:
        client.ask("cancel", job=mate)
    await_condition(lambda: not client.ask("queue")["jobs"])
    return 1e3 * (float((home / f"guest{turn}").read_text(encoding="utf-8")) - begin)


def _job_ms(client: Client, home: Path) -> float:
    """Return the mean milliseconds from the end of one of many jobs that do nothing to the next end."""
    command, out = ("true",), "nothing"
    spec = Spec(command, ranks=1, folder=str(home), time=60, output=out, job_class="rigid").to_json()
    begin = time.monotonic()
    client.ask("submit", jobs=[spec], count=NOTHINGS)
    await_condition(lambda: not client.ask("queue")["jobs"])
    return 1e3 * (time.monotonic() - begin) / NOTHINGS
