# SPDX-License-Identifier: Apache-2.0
"""Measure an agent of an emulated machine of 1024 hardware threads that has 1024 tasks.

The programs are idle processes that have registered as `drom-run` does; no affinity is set on an emulated machine. In
the hard case each is a job of its own and has one hardware thread; in the other case 32 are the ranks of a job.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import time
from typing import TYPE_CHECKING
from urllib.request import urlopen

from drom.agent.bench import agent as bench_agent
from drom.agent.bench.agent import PATIENCE
from drom.agent.bench.publish import percentile
from drom.agent.errors import ControlError

from dromlib import layout, native
from dromlib.layout import REQUEST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from drom.agent.bench.agent import Agent

MACHINE = "pack:8 core:64 pu:2"
TASKS = 1024
RANKS = 32
CHANGES = 200
"""Number of ends, each followed by an arrival, once all tasks have arrived."""
SCRAPES = 11
IDLE_SECONDS = 5.0


class IdlePrograms:
    """Idle programs of one agent. `slots` has the slots of the present ones."""

    def __init__(self, agent: Agent, process: subprocess.Popen[bytes], request: Path) -> None:
        self._agent = agent
        self._process = process
        self._request = request
        self._pids: dict[int, int] = {}

    @property
    def slots(self) -> list[int]:
        """The slots of the programs."""
        return list(self._pids)

    def arrive(self, slot: int, rank: int = 0, ranks: int = 1) -> float:
        """Start one program; return the seconds from its request to its first grant in `slot`, the lowest free one.

        Consecutive programs with the ranks 0, 1, 2 ... are one job.
        """
        self._request.write_bytes(_request(f"{len(self._pids) // ranks}" if ranks > 1 else "", rank, ranks))
        epoch = self._agent.epoch_of(slot)
        before = epoch[0]
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError(self._process)
        self._process.stdin.write(b"+")
        self._process.stdin.flush()
        said = self._process.stdout.readline().split()
        if len(said) != 2:
            raise ControlError("a program of the benchmark has failed: its words stand above.")
        _await_change(epoch, before)
        seconds = time.monotonic() - int(said[1]) / 1e9
        self._pids[slot] = int(said[0])
        if self._agent.read(slot, "pid") != self._pids[slot]:
            raise ControlError("a program of the benchmark is not where it is looked for: run it again.")
        return seconds

    def leave(self, slot: int) -> None:
        """End the program in a slot, and wait until the slot is free."""
        epoch = self._agent.epoch_of(slot)
        before = epoch[0]
        os.kill(self._pids.pop(slot), signal.SIGKILL)
        _await_change(epoch, before)


def _await_change(epoch: memoryview, before: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while epoch[0] == before:
        if time.monotonic() > deadline:
            raise ControlError(f"the benchmark has waited {PATIENCE:g} seconds in vain for a grant.")


@contextlib.contextmanager
def crowd(agent: Agent) -> Iterator[IdlePrograms]:
    """Yield an empty crowd; all its programs have ended when the block ends."""
    request = agent.folder.parent / "request"
    words = [native.bench_path("idle_programs"), agent.folder / "door", request]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield IdlePrograms(agent, process, request)
        finally:
            process.kill()


def _request(session: str, rank: int, ranks: int) -> bytes:
    data = bytearray(REQUEST.size)
    kind = layout.ENUMS["KNOCK"].index("launch")
    REQUEST.write(data, magic=layout.DOOR_MAGIC, protocol=layout.PROTOCOL_VERSION, kind=kind)
    REQUEST.write(data, session=session, local_rank=rank, local_size=ranks)
    return bytes(data)


@contextlib.contextmanager
def emulating_agent() -> Iterator[tuple[Agent, str]]:
    """Start an agent of the emulated machine; return it and the address of its metrics."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    words = ("--emulate", MACHINE, "--unit", "thread", "--capacity", str(TASKS), "--metrics", address)
    with bench_agent.running_agent(*words) as agent:
        yield agent, f"http://{address}/metrics"


def jobs(tasks: int = TASKS, changes: int = CHANGES) -> dict[str, float]:
    """Return the milliseconds of arrivals at an agent that has `tasks` jobs, and other costs of such an agent."""
    with emulating_agent() as (agent, address), crowd(agent) as programs:
        for slot in range(tasks):
            programs.arrive(slot)
        memory = agent.memory_mb()
        idle = bench_agent.idle_percent(agent, IDLE_SECONDS)
        scrape = scrape_ms(address)
        order = random.Random(1)  # noqa: S311 - which programs end is to be the same in every run
        took = []
        for _ in range(changes):
            slot = order.choice(programs.slots)
            programs.leave(slot)
            took.append(programs.arrive(slot) * 1e3)
    arrivals = {"many_p50": percentile(took, 50), "many_p99": percentile(took, 99)}
    return {**arrivals, "many_memory": memory, "many_idle": idle, "many_scrape": scrape}


def ranks(tasks: int = TASKS, size: int = RANKS) -> dict[str, float]:
    """Return the milliseconds of arrivals while jobs of `size` ranks arrive one after the other."""
    with emulating_agent() as (agent, _), crowd(agent) as programs:
        took = [programs.arrive(slot, slot % size, size) * 1e3 for slot in range(tasks)]
    return {"ranks_p50": percentile(took, 50), "ranks_p99": percentile(took, 99)}


def scrape_ms(address: str) -> float:
    """Return the median time of a scrape, in milliseconds."""
    return statistics.median(_one_scrape_ms(address) for _ in range(SCRAPES))


def _one_scrape_ms(address: str) -> float:
    begin = time.monotonic()
    with urlopen(address, timeout=PATIENCE) as answer:  # noqa: S310 - our own http address
        answer.read()
    return (time.monotonic() - begin) * 1e3
