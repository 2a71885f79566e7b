"""`drom bench resize-cost`: the time that programs lose when they shrink, grow and move.

A program repeats one parallel region and notes when each began and ended. Meanwhile an agent orders it onto half of
the cores, over to the other half, and onto all of them again. Once it has settled after a change, the median of its
steps is the ideal for that many cores; what the change cost is the time inside the malleability point plus what the
steps right after it took longer than that ideal. The same sum over steps with no change nearby is the control: what
noise alone would "lose". The agent's own work is in the figure, as it runs on the very same cores.

The same program then makes the same changes by itself, without an agent. What it loses is the machine's: a CPU that has
slept, caches that have to fill again.
"""

from __future__ import annotations

import array
import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.bench import agent as bench_agent
from drom.agent.bench.publish import percentile
from drom.agent.control import client
from drom.agent.errors import ControlError
from drom.agent.system import python_command
from drom.agent.topology.machine import usable_cores
from drom.agent.topology.sysfs import read_topology

from dromlib import native
from dromlib.cpulist import format_cpulist
from dromlib.layout import MAILBOX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from drom.agent.bench.agent import Agent

SCHEMA_VERSION = 1
WINDOW_NS = 50_000_000
"""Time after a change in which its after-effects are measured."""
LOOK_S = WINDOW_NS / 1e9
"""Seconds between two checks of a program's progress: each check takes time from it."""
STEADY = 3
"""Steps after the window from which the ideal is known, as a multiple of those in it."""
PAIRS = 9
ITERATIONS = 2000
"""Pairs of runs of Jacobi and sweeps of each, for its speed under an unchanged grant."""
ALONE_S = 8 * LOOK_S
"""Seconds between two changes of a program that makes them by itself."""
NEGLIGIBLE = 0.01
"""Part of its time that a program resized once a second may lose for the cost to count as negligible."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to resize: its name, a description of its step, and its command without the file of its steps."""

    name: str
    step: str
    command: tuple[str, ...]


def programs() -> tuple[Program, ...]:
    """Return the programs that are resized."""
    resize = str(native.bench_path("resize"))
    blas = tuple(python_command.module("drom.agent.bench.blas_program", "700"))
    return (
        Program("jacobi", "sweep over 1000 x 1000 points, OpenMP C", (resize, "jacobi", "1000")),
        Program("stream", "triad over 3 x 32 MB, OpenMP C", (resize, "triad", "4000000")),
        Program("blas", "product of 700 x 700 matrices, NumPy", blas),
    )


class Step(NamedTuple):
    """One step of a program, in nanoseconds of CLOCK_MONOTONIC; `changed` is 1 if it applied a grant."""

    begin: int
    region: int
    end: int
    ncpus: int
    changed: int

    @property
    def work(self) -> int:
        """The nanoseconds of its parallel region."""
        return self.end - self.region


class Change(NamedTuple):
    """The cost of one change, in nanoseconds: the malleability point, the first step after it, the whole window."""

    kind: str
    call: int
    first: float
    lost: float
    control: float
    step: float


def resize_cost(cycles: int, chosen: Iterable[str] = ("jacobi", "stream", "blas")) -> dict[str, Any]:
    """Resize each chosen program `cycles` times each way, and return the time it lost.

    Raises `ControlError` if a program of the benchmark fails, or if there is only one core.
    """
    from drom.agent.topology.detect import describe_host

    rows = usable_cores(read_topology())
    if len(rows) < 2:
        raise ControlError("a program cannot shrink on one core: run this where two may be used.")
    middle = len(rows) // 2
    halves = [sum(mask for _, _, mask in part) for part in (rows[:middle], rows[middle:])]
    masks = (*halves, sum(halves))
    crosses = {row[0] for row in rows[:middle]}.isdisjoint(row[0] for row in rows[middle:])
    found = []
    for program in programs():
        if program.name in chosen:
            traces = (_trace(program, masks, cycles), _trace_alone(program, masks, cycles))
            found += _summary(program, *(changes(steps, ("shrink", "move", "grow")) for steps in traces))
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": describe_host(),
        "cores": len(rows),
        "moves_cross_sockets": crosses,
        "window_ms": WINDOW_NS / 1e6,
        "negligible_percent": NEGLIGIBLE * 100,
        "costs": found,
    }


def _trace(program: Program, masks: Sequence[int], cycles: int) -> list[Step]:
    """Run the program under an agent, order it onto each mask in turn, and return its steps."""
    with TemporaryDirectory(prefix="drom-bench-") as folder, bench_agent.running_agent() as agent:
        path = Path(folder) / "steps"
        with agent.launch(*program.command, path) as process:
            pid = process.pid
            bench_agent.await_condition(lambda: agent.has_settled(pid), f"{program.name} is registered")
            for mask in [masks[-1], *(list(masks) * cycles)]:
                before = _points(agent)
                client.order(agent.folder, "set", job=str(pid), cpus=format_cpulist(mask))
                time.sleep(2 * LOOK_S)
                bench_agent.await_condition(lambda: agent.has_settled(pid), f"{program.name} has applied a change")
                time.sleep(LOOK_S)
                _let_run(agent, program, STEADY * (_points(agent) - before) + 1)
            process.terminate()
            if process.wait(bench_agent.PATIENCE):
                raise _failure(program)
        return read_steps(path.read_bytes())


def _trace_alone(program: Program, masks: Sequence[int], cycles: int) -> list[Step]:
    """Run the program without an agent, while it moves itself onto each mask in turn, and return its steps."""
    plan = [str(round(ALONE_S * 1000)), *map(format_cpulist, masks)]
    with TemporaryDirectory(prefix="drom-bench-") as folder:
        path = Path(folder) / "steps"
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        with subprocess.Popen([*program.command, path, *plan], env=environment) as process:
            time.sleep((len(masks) * cycles + 2) * ALONE_S)
            process.terminate()
            if process.wait(bench_agent.PATIENCE):
                raise _failure(program)
        return read_steps(path.read_bytes())


def _failure(program: Program) -> ControlError:
    return ControlError(f"{program.name}, a program of the benchmark, has failed: its words stand above.")


def _let_run(agent: Agent, program: Program, steps: int) -> None:
    """Wait until the program has made `steps` more steps. Raises `ControlError` if that takes too long."""
    enough, deadline = _points(agent) + steps, time.monotonic() + bench_agent.PATIENCE
    while _points(agent) < enough:
        if time.monotonic() > deadline:
            raise ControlError(f"{program.name} makes too few steps to measure: try again when this machine is idle.")
        time.sleep(LOOK_S)


def _points(agent: Agent) -> int:
    """Return how many malleability points the agent's only program has passed."""
    (mailbox,) = (agent.folder / "mail").iterdir()
    return MAILBOX.read(mailbox.read_bytes(), "polls")


def read_steps(data: bytes) -> list[Step]:
    """Return the steps that a program has written."""
    words = array.array("Q", data)
    return [Step(*words[i : i + 5].tolist()) for i in range(0, len(words), 5)]


def changes(steps: Sequence[Step], kinds: Sequence[str]) -> list[Change]:
    """Return the cost of each change after the first one; the changes have `kinds` in turn.

    A change without enough steps after it to know the ideal is left out.
    """
    at = [i for i, step in enumerate(steps) if step.changed]
    found = []
    for number, (begin, end) in enumerate(zip(at[1:], [*at[2:], len(steps)], strict=True)):
        change = _change(kinds[number % len(kinds)], steps[begin:end])
        if change:
            found.append(change)
    return found


def _change(kind: str, steps: Sequence[Step]) -> Change | None:
    """Return the cost of the change before the first of these steps; the later ones show the ideal."""
    window = next((i for i, step in enumerate(steps) if step.begin - steps[0].region > WINDOW_NS), len(steps))
    settled = [step.work for step in steps[window:]]
    if len(settled) < STEADY * window:
        return None
    ideal = statistics.median(settled)
    blocks = [settled[i : i + window] for i in range(0, len(settled) - window + 1, window)]
    after = sum(step.work - ideal for step in steps[:window])
    call = steps[0].region - steps[0].begin
    control = statistics.median(sum(block) - window * ideal for block in blocks)
    return Change(kind, call, steps[0].work - ideal, call + after, control, ideal)


def _summary(program: Program, found: Sequence[Change], alone: Sequence[Change]) -> list[dict[str, Any]]:
    """Return a row for each kind of change, in milliseconds."""
    rows = []
    for kind in ("shrink", "grow", "move"):
        group, by_itself = ([change for change in changes if change.kind == kind] for changes in (found, alone))
        if min(len(group), len(by_itself)) < 3:
            msg = f"{program.name} had too few steps between changes to measure: try again when this machine is idle."
            raise ControlError(msg)
        lost = _spread([change.lost - change.control for change in group])
        rows.append(
            {
                "program": program.name,
                "step": program.step,
                "change": kind,
                "changes": len(group),
                "step_ms": _spread([change.step for change in group]),
                "call_ms": _spread([change.call for change in group]),
                "first_step_ms": _spread([change.first for change in group]),
                "control_ms": _spread([change.control for change in group]),
                "lost_ms": lost,
                "alone_ms": _spread([change.lost - change.control for change in by_itself]),
                "negligible": lost["median"] <= NEGLIGIBLE * 1000,
            }
        )
    return rows


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the tenths of nanoseconds, as milliseconds."""
    ordered = [value / 1e6 for value in values]
    return {"median": statistics.median(ordered), "p10": percentile(ordered, 10), "p90": percentile(ordered, 90)}


def slower_percent(agent: Agent, pairs: int = PAIRS) -> float:
    """Return the extra time of Jacobi under `drom-run` over its time alone on the same CPUs, in per cent of the latter.

    Both use as many threads as CPUs. Only the time of the computation counts: the launch is a figure of its own.
    """
    jacobi = [str(native.example_path("jacobi")), "--iterations", str(ITERATIONS)]
    threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    ratios = []
    for _ in range(pairs):
        alone = _seconds(jacobi, agent.environment | threads)
        managed = _seconds([str(native.run_path()), "--require", "--", *jacobi], agent.environment | threads)
        ratios.append(managed / alone - 1)
        bench_agent.await_condition(agent.is_idle, "the agent has noticed the end of a program")
    return statistics.median(ratios) * 100


def _seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the seconds of computation that Jacobi reports."""
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return float(said.split()[-2])
