# SPDX-License-Identifier: Apache-2.0
"""The cost for an OpenMP program of a team change: by itself, by a grant, and by an agent on the same CPUs.

For a grant the program changes its own grant, so that its library does its complete work and no other process uses its
CPUs. An agent needs CPU time for an order and its effects; if all CPUs are the program's, it uses theirs.
"""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from drom.agent.bench import agent as bench_agent
from drom.agent.bench.publish import FakeAgent
from drom.agent.control import client
from drom.agent.errors import ControlError
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.sysfs import read_topology

from dromlib import native
from dromlib.cpulist import format_cpulist
from dromlib.layout import MAILBOX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.agent.bench.agent import Agent

CHANGES = 20
"""Changes of a team in one run."""
REGIONS = 150
"""Regions between two changes, at least; the program keeps the times of the last 64 of each size."""
Times = dict[str, list[float]]
"""The extra microseconds of the regions around a change, by kind: `less` threads, or `more`."""


def cpus_of_team() -> list[int]:
    """Return the masks of the CPUs of the larger team, one in each core: four or two; one on a machine of one core."""
    masks = [mask & -mask for _, _, mask in usable_cores(read_topology())]
    return masks[: 4 if len(masks) >= 4 else 2]


def alone(cpus: Sequence[int], environment: Mapping[str, str]) -> Times:
    """Run the program, which changes its team and the CPUs of its threads by itself; return the times."""
    return _extra(_on(cpus, "alone", environment).communicate()[0])


def granted(cpus: Sequence[int], environment: Mapping[str, str], llvm: str | None) -> Times:
    """Run the program, which changes its grant; return the times. `llvm` is the runtime to load with drom's library."""
    with TemporaryDirectory(prefix="drom-bench-") as folder:
        stage = FakeAgent(Path(folder), -(-max(cpus).bit_length() // 64) * 64, binds=True)
        preload = {"LD_PRELOAD": ":".join(filter(None, [str(native.preload_path()), llvm]))}
        process = _on(cpus, "granted", {**environment, **stage.environment, **preload})
        try:
            stage.admit()
            said, _ = process.communicate(timeout=bench_agent.PATIENCE)
        finally:
            process.kill()
            process.communicate()
            stage.close()
    return _extra(said)


def _on(cpus: Sequence[int], mode: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    words = ["taskset", "-c", format_cpulist(sum(cpus)), str(native.bench_path("regions")), mode, str(CHANGES)]
    env = {**environment, "OMP_NUM_THREADS": str(len(cpus))}
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)


def _extra(said: str) -> Times:
    times = re.findall(r"^(less|more) (-?\d+)$", said, re.MULTILINE)
    if len(times) < CHANGES:
        raise ControlError("a program of the benchmark has failed: run it again.")
    return {kind: [int(ns) / 1000 for k, ns in times if k == kind] for kind in ("less", "more")}


def ordered(agent: Agent, launcher: Sequence[str], cpus: Sequence[int], environment: Mapping[str, str]) -> Times:
    """Order the program, job "regions" below the launcher, to fewer CPUs and back until it has seen enough changes."""
    wide, narrow = sum(cpus), sum(cpus[: len(cpus) // 2])
    command = [*launcher, str(native.bench_path("regions")), "resize", str(CHANGES)]
    env = {**environment, "OMP_NUM_THREADS": str(len(cpus))}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            bench_agent.await_condition(lambda: agent.has_settled(process.pid), "the program is registered")
            turn = 0
            while _makes_regions(agent, process):
                _set(agent, wide if turn % 2 else narrow)
                turn += 1
            said, _ = process.communicate(timeout=bench_agent.PATIENCE)
        finally:
            process.kill()
    bench_agent.await_condition(agent.is_idle, "the agent has noticed the end of a program")
    return _extra(said)


def _makes_regions(agent: Agent, process: subprocess.Popen[str]) -> bool:
    """Wait for enough regions of one size to know their cost; return False if the program ends instead."""
    enough, deadline = _points(agent) + REGIONS, time.monotonic() + bench_agent.PATIENCE
    while _points(agent) < enough:
        if process.poll() is not None:
            return False
        if time.monotonic() > deadline:
            raise ControlError("regions are too slow to measure: try again when this machine is idle.")
        time.sleep(0.001)
    return True


def _points(agent: Agent) -> int:
    """Return how many malleability points the agent's only program has passed; 0 if it has ended."""
    try:
        return sum(MAILBOX.read(box.read_bytes(), "polls") for box in (agent.folder / "mail").iterdir())
    except OSError:
        return 0


def _set(agent: Agent, mask: int) -> None:
    try:
        client.order(agent.folder, "set", job="regions", cpus=format_cpulist(mask))
    except ControlError:
        return  # it has seen enough changes and has ended
    bench_agent.await_condition(lambda: agent.has_settled(*agent.pids().values()), "the program has applied a change")
