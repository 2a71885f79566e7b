# SPDX-License-Identifier: Apache-2.0
"""`drom bench faults`: the time to recover from a death, from a rewritten mask, and from the death of the agent.

It also measures the cost of an idle agent with very many tasks and threads, which is that of checking for faults.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psutil
from drom.agent.bench import agent as bench_agent
from drom.agent.bench import scale
from drom.agent.bench.agent import PATIENCE, agent_in, await_condition, running_agent
from drom.agent.bench.node import Figure, report
from drom.agent.bench.publish import percentile
from drom.agent.errors import ControlError
from drom.agent.system.proc import start_time

from dromlib import native

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from drom.agent.bench.agent import Agent

DEATHS = 40
"""Programs killed in a run."""
REPAIRS = 5
CROWDS = ((250, 4), (1024, 4))
"""Processes of a task, and threads of each."""
IDLE_SECONDS = 20.0
PROGRAMS = 64
MACHINE = "pack:2 core:64"
SOFT_LIMIT = 1024
"""Descriptors, Debian's default limit."""
FIGURES = {
    "regrant_p50": Figure("a program's death to its cores granted anew, p50", "ms", None),
    "regrant_p99": Figure("a program's death to its cores granted anew, p99", "ms", 20),
    "running_p50": Figure("... to another one, that polls each 10 ms, running on them, p50", "ms", None),
    "running_p99": Figure("... to another one, that polls each 10 ms, running on them, p99", "ms", 40),
    "repair_1000": Figure("masks of 1000 threads rewritten to all repaired, the longest of 5", "s", 1),
    "repair_4096": Figure("masks of 4096 threads rewritten to all repaired, the longest of 5", "s", 5),
    "adopt": Figure("agent killed: the next one's start to its 64 programs adopted", "s", 2),
    "disturbed": Figure("... programs disturbed", "", 0),
    "threads_idle": Figure("agent with 1024 processes of 4 threads, idle, of one core", "%", 2),
    "many_idle": Figure("agent with 1024 tasks, started under `ulimit -Sn 1024`, idle, of one core", "%", 2),
    "many_scrape": Figure("agent with 1024 tasks, started under `ulimit -Sn 1024`, Prometheus scrape", "ms", 50),
}


def deaths(agent: Agent, count: int = DEATHS) -> tuple[list[float], list[float]]:
    """Return the milliseconds from a program's kill to the grant of its CPUs, and until another program runs on them.

    The other program polls every 10 ms. The clock starts before the kill.
    """
    granted, running = [], []
    with agent.launch(native.bench_path(), "regain") as holder:
        for _ in range(count):
            _await_settled(agent, holder.pid)
            with agent.launch(native.bench_path(), "follow") as victim:
                _await_settled(agent, holder.pid, victim.pid)
                _forget(holder)
                epoch = agent.epoch_word(holder.pid)
                before, begin = epoch[0], time.monotonic_ns()
                os.kill(victim.pid, signal.SIGKILL)
                os.waitid(os.P_PID, victim.pid, os.WEXITED | os.WNOWAIT)
                await_condition(lambda now=epoch, old=before: now[0] != old, "cores are granted anew")  # type: ignore[misc]
                seen, runs = time.monotonic_ns() - begin, _line(holder) - begin
                granted.append(min(seen, runs) / 1e6)  # the grant came before the program ran, even if seen later
                running.append(runs / 1e6)
    await_condition(agent.is_idle, "the agent has noticed the end of a program")
    return granted, running


def _await_settled(agent: Agent, *pids: int) -> None:
    await_condition(lambda: agent.has_settled(*pids), "programs have settled")


def _forget(program: subprocess.Popen[str]) -> None:
    while program.stdout and select.select([program.stdout], [], [], 0)[0]:
        os.read(program.stdout.fileno(), 1 << 16)


def _line(program: subprocess.Popen[str]) -> int:
    """Return the number on the next line of a program's output."""
    if program.stdout is None or not select.select([program.stdout], [], [], PATIENCE)[0]:
        raise ControlError("a program of the benchmark does not run on the CPUs that it was granted.")
    return int(os.read(program.stdout.fileno(), 1 << 16).split()[0])


def repairs(agent: Agent, processes: int, threads: int, times: int = REPAIRS) -> list[float]:
    """Return the seconds from rewriting all masks of a task until all of them are restored, `times` times.

    The task has `processes` processes of `threads` threads each.
    """
    took = []
    chance = random.Random(1)  # noqa: S311 - when masks are rewritten, between two rounds, is to be the same in every run
    with (
        _start_idle_programs(agent, processes, threads) as (program, tids),
        agent.launch(native.bench_path(), "follow") as neighbour,
    ):
        _await_settled(agent, program.pid, neighbour.pid)
        for _ in range(times):
            mine = os.sched_getaffinity(program.pid)
            await_condition(lambda own=mine: _all_have(tids, own), "masks are repaired")  # type: ignore[misc]
            time.sleep(chance.random())
            everywhere = mine | os.sched_getaffinity(neighbour.pid)
            begin = time.monotonic()
            for tid in tids:
                os.sched_setaffinity(tid, everywhere)
            while not _all_have(tids, mine):
                if time.monotonic() - begin > PATIENCE:
                    raise ControlError("the benchmark's agent does not repair masks.")
                time.sleep(0.01)
            took.append(time.monotonic() - begin)
    await_condition(agent.is_idle, "the agent has noticed the end of a program")
    return took


def idle_percent(agent: Agent, processes: int, threads: int) -> float:
    """Return the per cent of one core that an agent uses for a task of `processes` processes of `threads` threads."""
    with _start_idle_programs(agent, processes, threads):
        idle = bench_agent.idle_percent(agent, IDLE_SECONDS)
    await_condition(agent.is_idle, "the agent has noticed the end of a program")
    return idle


@contextlib.contextmanager
def _start_idle_programs(
    agent: Agent, processes: int, threads: int
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    with agent.launch(native.bench_path(), "crowd", str(processes), str(threads)) as program:
        await_condition(lambda: len(_threads(program.pid)) == processes * threads, "a program has all its threads")
        _await_settled(agent, program.pid)
        yield program, _threads(program.pid)


def _threads(pid: int) -> list[int]:
    program, found = psutil.Process(pid), list[int]()
    for member in (program, *program.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # drom-run asks the loader in a child of its own
            found += [thread.id for thread in member.threads()]
    return found


def _all_have(tids: list[int], mask: set[int]) -> bool:
    return all(os.sched_getaffinity(tid) == mask for tid in tids)


def adoption(programs: int = PROGRAMS) -> tuple[float, float]:
    """Return the seconds that a second agent takes to start after the first was killed, and the disturbed programs.

    The start lasts from launch to readiness. Programs that have ended, or been granted anything, count as disturbed.
    """
    options = ("--emulate", MACHINE, "--capacity", str(programs))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="drom-bench-")))
        first = stack.enter_context(agent_in(folder, *options))
        crowd = stack.enter_context(scale.crowd(first))
        for slot in range(programs):
            crowd.arrive(slot)
        before = _tasks(first, programs)
        os.kill(first.pid, signal.SIGKILL)
        second = stack.enter_context(agent_in(folder, *options))
        changed = sum(one != other for one, other in zip(before, _tasks(second, programs), strict=True))
        ended = sum(start_time(pid) is None for pid, _ in before)
        return second.started_in, float(changed + ended)


def _tasks(agent: Agent, count: int) -> list[tuple[int, tuple[int, int]]]:
    return [(agent.read(slot, "pid"), agent.grant(slot)) for slot in range(count)]


def crowded() -> tuple[float, float]:
    """Return the per cent of a core that an agent of very many tasks uses, and the milliseconds of a scrape.

    The agent is started with a low soft limit of descriptors.
    """
    with _soft_limit(SOFT_LIMIT), scale.emulating_agent() as (agent, address), scale.crowd(agent) as crowd:
        for slot in range(scale.TASKS):
            crowd.arrive(slot)
        return bench_agent.idle_percent(agent, IDLE_SECONDS), scale.scrape_ms(address)


@contextlib.contextmanager
def _soft_limit(descriptors: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def faults(runs: int) -> dict[str, Any]:
    """Measure each figure `runs` times; return medians and extremes. Raises `ControlError` if a program fails."""
    found: dict[str, list[float]] = {key: [] for key in FIGURES}
    for _ in range(runs):
        for key, value in _one_run().items():
            found[key].append(value)
    return report(found, FIGURES, runs)


def _one_run() -> dict[str, float]:
    found: dict[str, float] = {}
    with running_agent() as agent:
        granted, running = deaths(agent)
        found |= {f"regrant_p{percent}": percentile(granted, percent) for percent in (50, 99)}
        found |= {f"running_p{percent}": percentile(running, percent) for percent in (50, 99)}
        found |= {f"repair_{p * t}": max(repairs(agent, p, t)) for p, t in CROWDS}
        found["threads_idle"] = idle_percent(agent, *CROWDS[-1])
    found["adopt"], found["disturbed"] = adoption()
    found["many_idle"], found["many_scrape"] = crowded()
    return found
