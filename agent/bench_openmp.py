# SPDX-License-Identifier: Apache-2.0
"""`drom bench openmp`: what an OpenMP program, or one of MPI, that knows nothing of drom pays under `drom run`.

One program, `regions`, built by gcc, is run alone and under an agent on the same CPUs, on libgomp and, where it is
installed, on LLVM's runtime. Pairs of runs follow each other, so that both meet the same machine.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from agent import bench_agent, bench_dlb, bench_mpi, control
from agent.bench_publish import percentile
from agent.control import ControlError
from agent.sysfs import read_topology
from agent.topology import usable_cores
from dromlib import native
from dromlib.cpulist import format_cpulist
from dromlib.layout import MAILBOX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from agent.bench_agent import Agent

SCHEMA_VERSION = 1
BURSTS = (1000, 300)
"""Regions in a burst, and bursts: the best of many short ones meets no other program."""
CHANGES = 20
"""Changes of a team in one run."""
REGIONS = 150
"""Regions between two changes, at least; the program keeps the times of the last 64 of each size."""
STEADY = {"fine": (5, 40_000, 3.0), "coarse": (1000, 400, 0.5)}
"""Microseconds of a region, regions, and the most per cent that the program may be slower."""
PEER = "94 ns (DLB, measured on another 2-core machine)"
LLVM = "libomp.so.5"


class Runtime(NamedTuple):
    """An OpenMP runtime, what a region on it may cost more (ns) and a change of a team (us), and the peer's cost."""

    name: str
    region_ns: float
    resize_us: float
    peer: str | None


RUNTIMES = (Runtime("libgomp", 12, 40, None), Runtime("libomp", 60, 10, PEER))


def measure(runs: int, names: Iterable[str] = ("libgomp", "libomp", "mpi")) -> dict[str, Any]:
    """Measure each figure `runs` times; return medians and extremes.

    A runtime that is not installed is left out. Raises `ControlError` when a program of the benchmark fails.
    """
    from agent.bench import machine

    chosen = [runtime for runtime in RUNTIMES if runtime.name in names and _is_there(runtime)]
    dlb = bench_dlb.library()
    figures = [row for runtime in chosen for row in _figures(runtime, runs, dlb if runtime.name == "libomp" else None)]
    if "mpi" in names and bench_mpi.is_possible():
        figures.append(_mpi(runs))
    return {"schema_version": SCHEMA_VERSION, "machine": machine(), "runs": runs, "figures": figures}


def _figures(runtime: Runtime, runs: int, dlb: Path | None) -> list[dict[str, Any]]:
    rows = []
    with bench_agent.running_agent() as agent:
        bench = Bench(agent, runtime)
        extra = [bench.extra_ns() for _ in range(runs)]
        name = f"{runtime.name}: extra per parallel region, nothing changed, serial team"
        measured = [bench.dlb_extra_ns(dlb) for _ in range(runs)] if dlb else []
        peer = f"{statistics.median(measured):.0f} ns (DLB, {dlb})" if measured else runtime.peer
        rows.append(_row(name, "ns", extra, runtime.region_ns, peer))
        for grain, (us, count, reach) in STEADY.items():
            slower = [bench.slower_percent(grain) for _ in range(runs)]
            words = f"{count} regions of {us} us under `drom run`, grant unchanged, over alone"
            rows.append(_row(f"{runtime.name}: {words}", "%", slower, reach))
        for change, (times, alone) in bench.resizes(runs).items():
            words = f"{runtime.name}: region that brings a team from {change}"
            peer = f"{statistics.median(alone):.3g} us (a program that does it by itself)"
            rows.append(_row(words, "us", times, runtime.resize_us, peer))
    return rows


def _mpi(runs: int) -> dict[str, Any]:
    with bench_agent.running_agent() as agent:
        extra = [bench_mpi.extra_call_ns(agent) for _ in range(runs)]
    return _row("MPI: extra per call, nothing changed", "ns", extra, 3)


def _row(name: str, unit: str, values: Sequence[float], reach: float, peer: str | None = None) -> dict[str, Any]:
    spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {"name": name, "unit": unit, **spread, "reach": reach, "peer": peer, "runs": list(values)}


class Bench:
    """The program on one runtime, alone and under an agent."""

    def __init__(self, agent: Agent, runtime: Runtime) -> None:
        self._agent = agent
        self._program = str(native.bench_path("regions"))
        self._managed = [
            str(native.run_path()),
            "--require",
            "--job",
            "regions",
            "--openmp-runtime",
            runtime.name,
            "--",
        ]
        threads = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
        self._environment = agent.environment | threads
        self._alone = self._environment | ({"LD_PRELOAD": LLVM} if runtime.name == "libomp" else {})

    def extra_ns(self) -> float:
        """Return how much longer an empty serial region takes under `drom-run`, in nanoseconds."""
        alone, managed = self._pair("empty", *BURSTS)
        return managed - alone

    def dlb_extra_ns(self, library: Path) -> float:
        """Return how much longer an empty serial region takes with DLB's DROM, in nanoseconds."""
        command = [self._program, "empty", *map(str, BURSTS)]
        alone = float(_run(command, self._alone))
        return float(_run(command, self._environment | bench_dlb.environment(library, LLVM))) - alone

    def slower_percent(self, grain: str) -> float:
        """Return how much longer regions of a size take under `drom-run`, in per cent."""
        us, count, _ = STEADY[grain]
        alone, managed = self._pair("work", us, count)
        return (managed / alone - 1) * 100

    def _pair(self, *words: str | int) -> tuple[float, float]:
        command = [self._program, *map(str, words)]
        alone = float(_run(command, self._alone))
        managed = float(_run([*self._managed, *command], self._environment))
        bench_agent.await_that(self._agent.is_idle, "the agent has noticed the end of a program")
        return alone, managed

    def resizes(self, runs: int) -> dict[str, tuple[list[float], list[float]]]:
        """Return for each change of size the median extra time of the region that brings it, of each run (us).

        The second list is of a program without drom, which changes its own team and the CPUs of its threads.
        """
        masks = [mask for _, _, mask in usable_cores(read_topology())]
        if len(masks) < 2:
            return {}
        most = 4 if len(masks) >= 4 else 2
        cpus = [mask & -mask for mask in masks[:most]]
        sizes = {"less": f"{most} to {most // 2}", "more": f"{most // 2} to {most}"}
        found: dict[str, tuple[list[float], list[float]]] = {words: ([], []) for words in sizes.values()}
        for _ in range(runs):
            pair = (self._changes(cpus), self._changes_alone(cpus))
            for kind, words in sizes.items():
                for times, changes in zip(found[words], pair, strict=True):
                    times.append(percentile(changes[kind], 50))
        return found

    def _changes_alone(self, cpus: Sequence[int]) -> dict[str, list[float]]:
        command = ["taskset", "-c", format_cpulist(sum(cpus)), self._program, "alone", str(CHANGES)]
        return _extra(_run(command, self._alone | {"OMP_NUM_THREADS": str(len(cpus))}))

    def _changes(self, cpus: Sequence[int]) -> dict[str, list[float]]:
        """Resize the program back and forth until it has said enough; return the extra microseconds by kind."""
        wide, narrow = sum(cpus), sum(cpus[: len(cpus) // 2])
        command = [*self._managed, self._program, "resize", str(CHANGES)]
        environment = self._environment | {"OMP_NUM_THREADS": str(len(cpus))}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                bench_agent.await_that(lambda: self._agent.has_settled(process.pid), "the program is seated")
                turn = 0
                while self._makes_regions(process):
                    self._set(wide if turn % 2 else narrow)
                    turn += 1
                said, _ = process.communicate(timeout=bench_agent.PATIENCE)
            finally:
                process.kill()
        bench_agent.await_that(self._agent.is_idle, "the agent has noticed the end of a program")
        if process.returncode:
            raise ControlError(f"the program of the benchmark has failed, with exit code {process.returncode}.")
        return _extra(said)

    def _makes_regions(self, process: subprocess.Popen[str]) -> bool:
        """Await enough regions of one size to know what one costs; return False if the program ends instead."""
        enough, deadline = self._points() + REGIONS, time.monotonic() + bench_agent.PATIENCE
        while self._points() < enough:
            if process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise ControlError("regions are too slow to measure: try again when this machine is idle.")
            time.sleep(0.001)
        return True

    def _points(self) -> int:
        """Return how many malleability points the agent's only program has passed; 0 when it is gone."""
        try:
            return sum(MAILBOX.read(box.read_bytes(), "polls") for box in (self._agent.folder / "mail").iterdir())
        except OSError:
            return 0

    def _set(self, mask: int) -> None:
        try:
            control.order(self._agent.folder, "set", job="regions", cpus=format_cpulist(mask))
        except ControlError:
            return  # it has seen enough changes and has ended
        bench_agent.await_that(self._is_settled, "the program has applied a change")

    def _is_settled(self) -> bool:
        return self._agent.has_settled(*self._agent.pids().values())


def _extra(said: str) -> dict[str, list[float]]:
    """Return the extra microseconds that the program has printed, by kind of change."""
    times = re.findall(r"^(less|more) (-?\d+)$", said, re.MULTILINE)
    return {kind: [int(ns) / 1000 for k, ns in times if k == kind] for kind in ("less", "more")}


def _is_there(runtime: Runtime) -> bool:
    """Tell whether the runtime is installed: the loader complains about a library it cannot preload."""
    if runtime.name == "libgomp":
        return True
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LD_PRELOAD": LLVM}
    return not subprocess.run(
        [native.run_path(), "--version"], env=environment, capture_output=True, check=False
    ).stderr


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    try:
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise ControlError(f"a program of the benchmark has failed, with exit code {error.returncode}.") from None
