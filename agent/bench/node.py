"""`drom bench node`: the costs of the node agent, measured on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.bench import agent as bench_agent
from drom.agent.bench import distribution as bench_distribution
from drom.agent.bench import publish, python, resize, scale
from drom.agent.bench.report import figure
from drom.agent.placement.kernel import distributor
from drom.agent.topology.detect import describe_host
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.sysfs import read_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class Figure(NamedTuple):
    """A measured figure: its name and unit, the limit it has to meet, and the value of the peer."""

    name: str
    unit: str
    reach: float | None
    peer: str | None = None


PEER = "(DLB, measured on another 2-core machine)"
FIGURES = {
    "poll": Figure("poll, nothing changed", "ns", 3, f"14.4 ns {PEER}"),
    "poll_loop": Figure("poll, with the loop around it", "ns", 3, f"14.4 ns {PEER}"),
    "seen_p50": Figure("publish to seen by a polling program, p50", "us", 0.65, f"0.65 us {PEER}"),
    "seen_p99": Figure("publish to seen by a polling program, p99", "us", 1.6, f"0.87-1.00 us {PEER}"),
    "python_poll": Figure("poll from Python, nothing changed", "ns", 60),
    "import": Figure("`from dromlib import attach` over plain Python", "ms", 15),
    "futex": Figure("publish to a Python program that sleeps on the futex, p50", "us", 25),
    "signal": Figure("publish to a Python program that sleeps on the ZeroMQ signal, p50", "us", 60),
    "loop": Figure("publish to a Python program that sleeps in an asyncio loop, p50", "us", 100),
    "message": Figure("a ZeroMQ message to a sleeping Python program, without drom, p50", "us", None),
    "futex_idle": Figure("the same on CPUs that sleep: futex, p50", "us", None),
    "signal_idle": Figure("the same on CPUs that sleep: ZeroMQ signal, p50", "us", None),
    "loop_idle": Figure("the same on CPUs that sleep: asyncio loop, p50", "us", None),
    "message_idle": Figure("the same on CPUs that sleep: a ZeroMQ message, without drom, p50", "us", None),
    "pipe_idle": Figure("the same on CPUs that sleep: a byte through a pipe, without drom, p50", "us", None),
    "regrant": Figure("a program's death to its CPUs granted again, p50", "ms", 5),
    "small": Figure("distribution kernel, 2 x 64 cores, 16 jobs", "us", 50),
    "large": Figure("distribution kernel, 8 x 64 cores, 256 tasks", "us", 1000),
    "launch": Figure("`drom-run true` over `true`", "ms", 5),
    "steady": Figure("Jacobi under `drom-run`, grant unchanged, over alone", "%", 1),
    "shrink": Figure("one shrink of Jacobi, lost time", "ms", 5),
    "grow": Figure("one growth of Jacobi, lost time", "ms", 5),
    "shrink_alone": Figure("the same shrink, made by Jacobi itself, without an agent", "ms", None),
    "grow_alone": Figure("the same growth, made by Jacobi itself, without an agent", "ms", None),
    "memory": Figure("agent, anonymous memory", "MB", 75),
    "idle": Figure("agent, idle, of one core", "%", 0.3),
    "start": Figure("agent, start to ready", "s", 2),
    "many_p50": Figure("1024 jobs on 8 x 64 x 2: arrival to registry written, p50", "ms", 5),
    "many_p99": Figure("1024 jobs on 8 x 64 x 2: arrival to registry written, p99", "ms", 5),
    "ranks_p50": Figure("32 jobs of 32 ranks, coming: arrival to registry written, p50", "ms", 5),
    "ranks_p99": Figure("32 jobs of 32 ranks, coming: arrival to registry written, p99", "ms", 5),
    "many_idle": Figure("agent with 1024 jobs, idle, of one core", "%", 2),
    "many_scrape": Figure("agent with 1024 jobs, Prometheus scrape", "ms", 50),
    "many_memory": Figure("agent with 1024 jobs, anonymous memory", "MB", 75),
}

RESIZES = {"shrink", "grow", "shrink_alone", "grow_alone"}
CYCLES = 5
"""Shrinks and growths of a run."""


def node(runs: int, chosen: Iterable[str] = tuple(FIGURES)) -> dict[str, Any]:
    """Measure every chosen figure `runs` times, each time with a fresh agent; return medians and extremes.

    Raises `ControlError` if a program of the benchmark fails.
    """
    wanted = _possible(set(chosen))
    found: list[dict[str, float]] = []
    _warm_up()
    for run in range(runs):
        found.append({})
        for measure in (_distribution, _publish, _python, _agent, _many, _resize):
            _show(f"drom bench: run {run + 1} of {runs}, {measure.__name__.strip('_')}")
            found[-1] |= measure(wanted)
    _show("")
    return {"schema_version": 1, "machine": describe_host(), "runs": runs, "figures": summarise(found)}


def summarise(runs: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the figures that every run has, with the median and the extremes over the runs."""
    rows = []
    for key, about in FIGURES.items():
        values = [run[key] for run in runs if key in run]
        if values and len(values) == len(runs):
            rows.append(figure(about.name, about.unit, values, about.reach, peer=about.peer))
    return rows


def report(found: Mapping[str, list[float]], figures: Mapping[str, Figure], runs: int) -> dict[str, Any]:
    """Return the result of a benchmark without peers; `found` has the values of `runs` runs by the key of a figure."""
    about = [(figures[key], values) for key, values in found.items()]
    rows = [figure(one.name, one.unit, values, one.reach) for one, values in about]
    return {"schema_version": 1, "machine": describe_host(), "runs": runs, "figures": rows}


def _possible(chosen: set[str]) -> set[str]:
    """Return the chosen figures without those that need more CPUs than there are, and report these."""
    needed = {
        "two CPUs": (len(os.sched_getaffinity(0)), {"seen_p50", "seen_p99"}),
        "two cores": (len(usable_cores(read_topology())), {"regrant", *RESIZES}),
    }
    for what, (count, keys) in needed.items():
        if count < 2 and chosen & keys:
            names = "; ".join(FIGURES[key].name for key in FIGURES if key in chosen & keys)
            sys.stderr.write(f"drom bench: left out, because it needs {what} and this machine lends one: {names}.\n")
            chosen = chosen - keys
    return chosen


def _warm_up() -> None:
    """Compile the distribution kernel unless it is compiled: agents started later then find it in the cache."""
    _show("drom bench: compiling the distribution kernel")
    distributor.kernel()


def _distribution(wanted: set[str]) -> dict[str, float]:
    """Return the kernel's times in its slowest situation."""
    if not wanted & {"small", "large"}:
        return {}
    sizes = bench_distribution.measure(runs=1)["sizes"].values()
    slowest = (max(case["median_us"] for case in cases.values()) for cases in sizes)
    return {key: time for key, time in zip(("small", "large"), slowest, strict=True) if key in wanted}


def _publish(wanted: set[str]) -> dict[str, float]:
    percents = {"seen_p50": 50, "seen_p99": 99}
    if not wanted & percents.keys():
        return {}
    cpus = sorted(os.sched_getaffinity(0))
    times = publish.seen_after(cpus[0], cpus[-1])
    return {key: publish.percentile(times, percent) for key, percent in percents.items() if key in wanted}


def _python(wanted: set[str]) -> dict[str, float]:
    found = _awake(wanted, IDLE)
    if wanted & AWAKE.keys():
        with python.cpus_awake():
            found |= _awake(wanted, AWAKE)
    return found | ({"import": python.import_ms()} if "import" in wanted else {})


def _awake(wanted: set[str], kinds: Mapping[str, str]) -> dict[str, float]:
    chosen = {key: kind for key, kind in kinds.items() if key in wanted}
    return {key: publish.percentile(python.awake_after(kind), 50) for key, kind in chosen.items()}


def _many(wanted: set[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for prefix, measure in (("many_", scale.jobs), ("ranks_", scale.ranks)):
        if any(key.startswith(prefix) for key in wanted):
            found |= measure()
    return {key: value for key, value in found.items() if key in wanted}


def _agent(wanted: set[str]) -> dict[str, float]:
    with bench_agent.running_agent() as agent:
        found: dict[str, float] = {}
        for keys, measure in AGENT.items():
            if wanted & set(keys):
                found |= zip(keys, measure(agent), strict=True)
        return {key: value for key, value in found.items() if key in wanted}


def _resize(wanted: set[str]) -> dict[str, float]:
    if not wanted & RESIZES:
        return {}
    found: dict[str, float] = {}
    for row in resize.resize_cost(CYCLES, ["jacobi"])["costs"]:
        found |= {row["change"]: row["lost_ms"]["median"], f"{row['change']}_alone": row["alone_ms"]["median"]}
    return {key: value for key, value in found.items() if key in wanted}


AGENT: dict[tuple[str, ...], Callable[[bench_agent.Agent], tuple[float, ...]]] = {
    ("start", "memory"): lambda agent: (agent.started_in, agent.memory_mb()),
    ("idle",): lambda agent: (bench_agent.idle_percent(agent),),
    ("poll", "poll_loop"): bench_agent.poll_ns,
    ("python_poll",): lambda agent: (python.poll_ns(agent),),
    ("launch",): lambda agent: (bench_agent.extra_launch_ms(agent),),
    ("steady",): lambda agent: (resize.slower_percent(agent),),
    ("regrant",): lambda agent: (bench_agent.regrant_ms(agent),),
}
"""The figures measured with one agent, in this order: memory and idle CPU time before any program has started."""


AWAKE = {"futex": "wait", "signal": "signal", "loop": "changed", "message": "message"}
"""The figures of waking a sleeping Python program, and how it sleeps, on CPUs that are kept awake."""
IDLE = {f"{key}_idle": kind for key, kind in AWAKE.items()} | {"pipe_idle": "pipe"}
"""The same on CPUs that sleep when idle; on a virtual machine the host determines for how long."""


def _show(words: str) -> None:
    """Show the progress on one line of a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{words}")
        sys.stderr.flush()
