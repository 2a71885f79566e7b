# SPDX-License-Identifier: Apache-2.0
"""Gap filling on a real cluster: real containers, saved and moved, beside the same regular jobs without them.

Nodes of one emulated core each stand for the slots of the paper (Polyakov and Dubenskaya, GRID 2018). Regular jobs
sleep for their run times; run times and requests are those of `drom.workloads.lomonosov` at p = 0.5, a second for a
minute, and arrivals are a Poisson process. Fillers count ticks, and there are always more of them than nodes. Four
runs have the same regular jobs, from the beginning of a slot on: starts at any time, and at the ends of slots, each
without and with fillers. The first pair shows policy B, the second policy A.

The times to save and to restore are those of this machine, and not compressed.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from drom.agent.execution.protocol import CONTAINER, PROGRAM
from drom.scheduler.live.accounting import entries_of
from drom.scheduler.live.cluster.jobs import FINAL
from drom.scheduler.live.cluster.spec import Spec
from drom.scheduler.testbed.local import agents, scheduler
from drom.workloads.lomonosov import MINUTES, requests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drom.scheduler.testbed.local import Client

NODES = 4
LOAD = 0.75
"""The load that regular jobs would be at the same time as they come, without gaps."""
ACCURACY = 0.5
LEAD = 3
"""Seconds between the first order to save a filler and the end of a slot, or the beginning of a reservation."""
SLOT = 60
"""Policy A: T in seconds."""
TICK = 0.1
"""Seconds of work that a filler counts as one."""
LONGEST = 235
"""Most seconds of a regular job, less than four slots with its start and its end."""
DELAYED = 1.0
"""A regular job that begins so many seconds after it was placed was delayed."""
RUNS = {
    "none": (),
    "B": (),
    "slots": ("--filler-slot", f"{SLOT}s"),
    "A": ("--filler-slot", f"{SLOT}s"),
}
"""The runs with their options of `drom scheduler`."""
SLOTTED = [name for name, options in RUNS.items() if options]
"""The runs with slots."""
FILLED = ("A", "B")
_COUNT = f"""#!/bin/sh
exec python3 -c '
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(85))
while True:
    time.sleep({TICK})
    print("x", end="", flush=True)
'
"""
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
_SPIN = """#!/bin/sh
exec python3 -c '
import time
for _ in range(3):
    end, n = time.monotonic() + 1, 0
    while time.monotonic() < end:
        n += sum(range(1000))
    print(n, flush=True)
'
"""


class RegularJob(NamedTuple):
    """A regular job: its submission, run time and request in seconds, and its nodes."""

    submit: float
    run_time: float
    requested: int
    nodes: int


class Stay(NamedTuple):
    """A job had the core of a node from one time to another."""

    node: str
    begin: float
    end: float


class LiveRow(NamedTuple):
    """The result of a run; shares are of the core-time of all nodes until the last submission."""

    name: str
    regular: float
    """The share that regular jobs had."""
    load: float
    """The share that any job had."""
    filled: float
    """The share that fillers had of the slots without a regular job; 0 in runs without slots."""
    gain: float
    """The share of useful work of fillers."""
    responses: tuple[float, ...]
    """The times from submission to end of regular jobs, in seconds."""
    delayed: int
    """Regular jobs that began more than `DELAYED` seconds after they had been placed."""
    delay: float
    """The longest such time, in seconds."""
    saves: int
    moves: int
    """Starts on another node than the one of the last save."""
    save_s: float
    """The median time to save, from the order until the node is free."""
    restore_s: float
    """The median time to restore, from the order until the program runs."""


def jobs_of(seed: int, seconds: int) -> list[RegularJob]:
    """Return the regular jobs of so many seconds; the same seed gives the same jobs.

    The first one comes after a second, and not at the beginning of a slot, which it might just reach or miss.
    """
    chance = np.random.default_rng(seed)
    found, at = list[RegularJob](), 1.0
    while at < seconds:
        minutes = int(MINUTES.draw(1, 1 << 20, chance)[0])
        run_time = float(min(LONGEST, minutes))
        nodes = int(chance.integers(1, NODES // 2 + 1))
        requested = int(requests(np.array([round(run_time * 60)]), ACCURACY, chance)[0]) // 60 + 5
        found.append(RegularJob(at, run_time, requested, nodes))
        at += float(chance.exponential(run_time * nodes / (NODES * LOAD)))
    return found


class LiveResult(NamedTuple):
    """The results of all runs, how fillers were saved, and c: a container's work per second, bare programs do 1."""

    rows: list[LiveRow]
    saving: str
    efficiency: float


def run_all(seed: int, seconds: int, show: Callable[[float], None] = lambda _: None) -> LiveResult:
    """Make all runs. Raises ControlError if the cluster fails."""
    jobs, found = jobs_of(seed, seconds), list[LiveRow]()
    with TemporaryDirectory(prefix="drom-gaps-") as scratch:
        saving, efficiency = _efficiency(Path(scratch))
    for number, (name, options) in enumerate(RUNS.items()):
        with TemporaryDirectory(prefix="drom-gaps-") as scratch:
            found.append(_run(Path(scratch), name, options, jobs, saving))
        show((number + 1) / len(RUNS))
    return LiveResult(found, saving, efficiency)


def _run(home: Path, name: str, options: Sequence[str], jobs: Sequence[RegularJob], saving: str) -> LiveRow:
    words = ("--policy", "resources", "--filler-lead", str(LEAD), "--kill-wait", "2", *options)
    with (
        scheduler(home / "queue", *words) as client,
        agents(home / "queue", NODES, ["--emulate", "pack:1 core:1"]) as started,
    ):
        client.await_nodes(NODES, started)
        fillers = _submit_fillers(client, home, 2 * NODES, saving) if name in FILLED else []
        begin, regular = math.ceil(time.time() / SLOT) * SLOT, []
        _sleep_until(begin)
        before = _ticks(home)
        for job in jobs:
            _sleep_until(begin + job.submit)
            regular.append(_submit(client, home, job))
        until, ticks = time.time(), _ticks(home) - before
        told = client.ask("history")
        _await_end(client, regular)
        ended = client.ask("history")
        for filler in fillers:
            if client.ask("job", job=filler)["state"] not in FINAL:
                client.ask("cancel", job=filler)
        _await_end(client, fillers)
    return _row(name, told, ended, (begin, until), ticks)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def _ticks(home: Path) -> int:
    """Return how often fillers have counted."""
    return sum(path.stat().st_size for path in home.glob("filler-*"))


def _submit(client: Client, home: Path, job: RegularJob) -> int:
    spec = Spec(
        script=f"#!/bin/sh\nexec sleep {job.run_time}\n", nodes=job.nodes, tasks=1, time=job.requested, folder=str(home)
    )
    return int(client.ask("submit", jobs=[spec.to_json() | {"output": "/dev/null"}])["jobs"][0])


def _submit_fillers(client: Client, home: Path, count: int, saving: str) -> list[int]:
    spec = Spec(script=_COUNT, saving=saving, output="filler-%j", folder=str(home), environment=_ENVIRONMENT)
    return [int(number) for number in client.ask("submit", jobs=[spec.to_json()], count=count)["jobs"]]


def _await_end(client: Client, jobs: Sequence[int]) -> None:
    """Wait until all of these jobs are over."""
    for number in jobs:
        while client.ask("job", job=number)["state"] not in FINAL:
            time.sleep(0.2)


def _efficiency(home: Path) -> tuple[str, float]:
    """Return how these nodes save fillers, and how much a program does as a filler of what it does as a regular job."""
    with (
        scheduler(home / "queue", "--policy", "resources") as client,
        agents(home / "queue", 1, ["--emulate", "pack:1 core:1"]) as started,
    ):
        client.await_nodes(1, started)
        (node,) = client.ask("nodes")["nodes"]
        saving = CONTAINER if CONTAINER in node["saves"] else PROGRAM
        rates = []
        for way in ("", saving):
            spec = Spec(script=_SPIN, saving=way, output=f"spin-{way}", folder=str(home), environment=_ENVIRONMENT)
            _await_end(client, client.ask("submit", jobs=[spec.to_json()])["jobs"])
            rates.append(statistics.median(map(int, (home / f"spin-{way}").read_text("ascii").split())))
    return saving, rates[1] / rates[0]


def _row(name: str, told: dict[str, Any], ended: dict[str, Any], window: tuple[float, float], ticks: int) -> LiveRow:
    """Return the result of a run: `told` is its history at the last submission, `ended` that at its end."""
    whole = NODES * (window[1] - window[0])
    regular = {job["job"]: job["ended"] - job["submitted"] for job in ended["jobs"] if not job["saving"]}
    histories = entries_of(told)
    ours = [entries for job, entries in histories.items() if job in regular]
    fillers = [entries for job, entries in histories.items() if job not in regular]
    held = [_held(_stays(ours, "started"), window), _held(_stays(fillers, "placed"), window)]
    saves = [entry["detail"]["seconds"] for entries in fillers for entry in entries if entry["what"] == "saved"]
    restores = [seconds for entries in fillers for seconds in _restores(entries)]
    moves = sum(map(_moves, fillers))
    waits = [_waits(entries) for job, entries in entries_of(ended).items() if job in regular]
    return LiveRow(
        name,
        held[0] / whole,
        sum(held) / whole,
        _filled(_stays(ours, "started"), _stays(fillers, "placed"), window) if name in SLOTTED else 0.0,
        ticks * TICK / whole,
        tuple(regular.values()),
        sum(wait > DELAYED for wait in waits),
        max(waits),
        len(saves),
        moves,
        statistics.median(saves) if saves else 0.0,
        statistics.median(restores) if restores else 0.0,
    )


def _stays(histories: Sequence[Sequence[dict[str, Any]]], first: str) -> list[Stay]:
    """Return when jobs had which nodes, in each attempt from the event `first` on; the last may have no end."""
    found = list[Stay]()
    for entries in histories:
        nodes, since = list[str](), None
        for entry in [*entries, {"what": "requeued", "at": math.inf, "detail": {}}]:
            if entry["what"] == "placed":
                nodes = list(entry["detail"]["shares"])
            if entry["what"] == first:
                since = entry["at"]
            elif since is not None and (entry["what"] == "requeued" or entry["what"] in FINAL):
                found += [Stay(node, since, entry["at"]) for node in nodes]
                since = None
    return found


def _held(stays: Sequence[Stay], window: tuple[float, float]) -> float:
    """Return the core-seconds of stays in a window."""
    return sum(max(0.0, min(stay.end, window[1]) - max(stay.begin, window[0])) for stay in stays)


def _filled(regular: Sequence[Stay], fillers: Sequence[Stay], window: tuple[float, float]) -> float:
    """Return the share that fillers had of the whole slots in a window on nodes without a regular job."""
    slots = [(at * SLOT, (at + 1) * SLOT) for at in range(math.ceil(window[0] / SLOT), math.floor(window[1] / SLOT))]
    used = {(stay.node, slot) for stay in regular for slot in slots if _held([stay], slot)}
    idle = NODES * len(slots) - len(used)
    held = sum(_held([stay], slot) for stay in fillers for slot in slots if (stay.node, slot) not in used)
    return held / (idle * SLOT) if idle else 0.0


def _waits(entries: Sequence[dict[str, Any]]) -> float:
    """Return the seconds from when a job was last placed until it began."""
    placed = max((entry["at"] for entry in entries if entry["what"] == "placed"), default=0.0)
    return max((entry["at"] - placed for entry in entries if entry["what"] == "started"), default=0.0)


def _restores(entries: Sequence[dict[str, Any]]) -> list[float]:
    """Return the seconds from placement to start of each attempt of a filler that was saved before."""
    found, placed, saved = list[float](), 0.0, False
    for entry in entries:
        saved = saved or entry["what"] == "saved"
        if entry["what"] == "placed":
            placed = entry["at"]
        elif entry["what"] == "started" and saved:
            found.append(entry["at"] - placed)
    return found


def _moves(entries: Sequence[dict[str, Any]]) -> int:
    """Return how often a filler went on on another node than where it had been saved."""
    moves, on = 0, ""
    for entry in entries:
        if entry["what"] == "saved":
            on = entry["detail"]["node"]
        elif entry["what"] == "placed" and on:
            moves += on not in entry["detail"]["shares"]
    return moves
