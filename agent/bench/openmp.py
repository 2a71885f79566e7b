# SPDX-License-Identifier: Apache-2.0
"""`drom bench openmp`: the cost of `drom run` for an unmodified OpenMP or MPI program.

One program, `regions`, built by gcc, is run alone and under an agent on the same CPUs, on libgomp and, if it is
installed, on LLVM's runtime. Runs of both alternate, so that both meet the same conditions of the machine.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.bench import agent as bench_agent
from drom.agent.bench import steady, teams
from drom.agent.bench.publish import PATIENCE, percentile
from drom.agent.bench.report import figure
from drom.agent.errors import ControlError

from dromlib import native

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from drom.agent.bench.agent import Agent


SCHEMA_VERSION = 1
BURSTS = (1000, 100)
"""Empty regions in a burst, and bursts in a turn: the best of many short bursts is not disturbed by other programs."""
PAIRS = 40
"""Pairs of turns in one run."""
STEADY = {"fine": (5, 4000, 3.0), "coarse": (1000, 20, 0.5)}
"""Microseconds of a region, regions in a turn, and the most per cent that the program may be slower."""
POLICIES = {"": {}, ", threads that wait asleep": {"OMP_WAIT_POLICY": "passive"}}
"""Environments in which a team is resized. By default waiting threads spin first, on a CPU that another may need."""
PEER = "94 ns (DLB, measured on another 2-core machine)"
LLVM = "libomp.so.5"
TOOL = "idle_tool.so"
DLB_ARGS = f"--drom --ompt --shm-key=drom-bench-{os.getpid()}"
"""DLB_ARGS as a user of DROM sets it, with a key of its own for the shared segments."""
MPI_REPETITIONS = 5


class Runtime(NamedTuple):
    """An OpenMP runtime, the limits of the extra cost of a region (ns) and a team change (us), and the peer's cost."""

    name: str
    region_ns: float
    resize_us: float
    peer: str | None


RUNTIMES = (Runtime("libgomp", 12, 40, None), Runtime("libomp", 60, 10, PEER))


def measure(runs: int, names: Iterable[str] = ("libgomp", "libomp", "mpi")) -> dict[str, Any]:
    """Measure each figure `runs` times; return medians and extremes.

    A runtime that is not installed is left out. Raises `ControlError` if a program of the benchmark fails.
    """
    from drom.agent.topology.detect import describe_host

    chosen = [runtime for runtime in RUNTIMES if runtime.name in names and _is_there(runtime)]
    dlb = dlb_library()
    figures = [row for runtime in chosen for row in _figures(runtime, runs, dlb if runtime.name == "libomp" else None)]
    if "mpi" in names and has_mpi():
        figures.append(_mpi(runs))
    return {"schema_version": SCHEMA_VERSION, "machine": describe_host(), "runs": runs, "figures": figures}


def _figures(runtime: Runtime, runs: int, dlb: Path | None) -> list[dict[str, Any]]:
    rows = []
    with bench_agent.running_agent() as agent:
        bench = Bench(agent, runtime)
        extra = [bench.extra_ns() for _ in range(runs)]
        name = f"{runtime.name}: extra per parallel region, nothing changed, serial team"
        measured = [bench.extra_beside_ns(dlb_environment(dlb)) for _ in range(runs)] if dlb else []
        peer = f"{statistics.median(measured):.0f} ns (DLB, {dlb})" if measured else runtime.peer
        rows.append(figure(name, "ns", extra, runtime.region_ns, peer=peer))
        if runtime.name == "libomp":
            idle = [bench.extra_beside_ns({"LD_PRELOAD": f"{native.bench_path(TOOL)}:{LLVM}"}) for _ in range(runs)]
            rows.append(figure("libomp: the same with a tool that does nothing, in drom's place", "ns", idle, None))
        for grain, (us, _, reach) in STEADY.items():
            pairs = bench.slower_percents(grain, runs)
            name = f"{runtime.name}: regions of {us} us under `drom run`, grant unchanged, over alone"
            row = figure(name, "%", [statistics.median(run) for run in pairs], reach)
            rows.append(row | {"interval": steady.interval([ratio for run in pairs for ratio in run])})
        for words, environment in POLICIES.items():
            for change, (times, alone, ordered) in bench.resizes(runs, environment).items():
                name = f"{runtime.name}: a grant that brings a team from {change}{words}"
                peer = f"{statistics.median(alone):.3g} us (a program that does it by itself)"
                rows.append(figure(name, "us", times, runtime.resize_us, peer=peer))
                rows.append(figure(f"{name}, with an agent on the same CPUs", "us", ordered, None))
    return rows


def _mpi(runs: int) -> dict[str, Any]:
    with bench_agent.running_agent() as agent:
        extra = [extra_call_ns(agent) for _ in range(runs)]
    return figure("MPI: extra per call, nothing changed", "ns", extra, 3)


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
        self._llvm = LLVM if runtime.name == "libomp" else None
        self._alone = self._environment | ({"LD_PRELOAD": self._llvm} if self._llvm else {})

    def extra_ns(self) -> float:
        """Return the extra time of an empty serial region under `drom-run`, in nanoseconds."""
        with self._both("empty", *BURSTS) as (alone, managed):
            return _extra_ns(alone, managed)

    def extra_beside_ns(self, environment: dict[str, str]) -> float:
        """Return the extra time of an empty serial region with these variables and without drom, in nanoseconds."""
        command = [self._program, "empty", *map(str, BURSTS)]
        with (
            steady.running(command, self._alone) as alone,
            steady.running(command, self._environment | environment) as other,
        ):
            alone.stop()
            other.stop()
            return _extra_ns(alone, other)

    def slower_percents(self, grain: str, runs: int) -> list[list[float]]:
        """Return the extra time of regions under `drom-run` for each pair of turns of each run, in per cent."""
        us, count, _ = STEADY[grain]
        steps = _run([self._program, "steps", str(us)], self._alone).strip()
        with self._both("work", steps, count) as (alone, managed):
            turns = [steady.turns(alone, managed, PAIRS) for _ in range(runs)]
        return [[(longer / took - 1) * 100 for took, longer in run] for run in turns]

    @contextlib.contextmanager
    def _both(self, *words: str | int) -> Iterator[tuple[steady.Program, steady.Program]]:
        """Run the program alone and under `drom-run` for the length of a block, both stopped."""
        command = [self._program, *map(str, words)]
        with (
            steady.running(command, self._alone) as alone,
            steady.running([*self._managed, *command], self._environment) as managed,
        ):
            alone.stop()
            bench_agent.await_condition(lambda: self._agent.has_settled(managed.pid), "the program is registered")
            managed.stop()
            yield alone, managed
        bench_agent.await_condition(self._agent.is_idle, "the agent has noticed the end of a program")

    def resizes(self, runs: int, environment: Mapping[str, str]) -> dict[str, list[list[float]]]:
        """Return for each change of size the median cost in microseconds, of each run, in three ways.

        The ways are a grant, a change by the program itself, and an order to an agent on the same CPUs. `environment`
        is added to the program's environment.
        """
        managed, itself = {**self._environment, **environment}, {**self._alone, **environment}
        cpus = teams.cpus_of_team()
        if len(cpus) < 2:
            return {}
        sizes = {"less": f"{len(cpus)} to {len(cpus) // 2}", "more": f"{len(cpus) // 2} to {len(cpus)}"}
        found: dict[str, list[list[float]]] = {words: [[], [], []] for words in sizes.values()}
        for _ in range(runs):
            ways = (
                teams.granted(cpus, managed, self._llvm),
                teams.alone(cpus, itself),
                teams.ordered(self._agent, self._managed, cpus, managed),
            )
            for kind, words in sizes.items():
                for medians, times in zip(found[words], ways, strict=True):
                    medians.append(percentile(times[kind], 50))
        return found


def _is_there(runtime: Runtime) -> bool:
    """Return whether the runtime is installed: the loader reports a library that it cannot preload."""
    if runtime.name == "libgomp":
        return True
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LD_PRELOAD": LLVM}
    return not subprocess.run(
        [native.run_path(), "--version"], env=environment, capture_output=True, check=False
    ).stderr


def _extra_ns(one: steady.Program, other: steady.Program) -> float:
    turns = steady.turns(one, other, PAIRS)
    return statistics.median(longer - took for took, longer in turns) * 1e9


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    try:
        return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise ControlError(f"a program of the benchmark has failed, with exit code {error.returncode}.") from None


def dlb_library(environment: dict[str, str] | None = None) -> Path | None:
    """Return libdlb.so of the installation in `$DLB_HOME`, or None if that is not set.

    Raises `ControlError` if the installation has none.
    """
    home = (os.environ if environment is None else environment).get("DLB_HOME")
    if not home:
        return None
    for pattern in ("lib/libdlb.so", "lib64/libdlb.so", "lib/*/libdlb.so"):
        for found in sorted(Path(home).glob(pattern)):
            return found
    raise ControlError(f"DLB_HOME is {home}, which has no lib/libdlb.so: name an installation of DLB, or unset it.")


def dlb_environment(preload: Path) -> dict[str, str]:
    """Return the environment variables of a program that runs on LLVM's runtime with DLB's tool."""
    return {"LD_PRELOAD": f"{preload}:{LLVM}", "DLB_ARGS": DLB_ARGS}


def has_mpi() -> bool:
    """Return whether MPI programs can be compiled here."""
    try:
        native.bench_path("mpi")
    except FileNotFoundError:
        return False
    return True


def extra_call_ns(agent: Agent, repetitions: int = MPI_REPETITIONS) -> float:
    """Return the extra nanoseconds of an MPI call under `drom-run`, with an unchanged grant.

    The same process alternately calls the same function by its name for tools (PMPI). Of a call with parameters that
    fit in registers and one with more, the slower counts. Raises `ControlError` if the program fails.
    """
    with agent.launch(native.bench_path("mpi"), str(repetitions)) as program:
        said, _ = program.communicate(timeout=PATIENCE)
    if program.returncode:
        raise ControlError("the MPI program of the benchmark has failed: its words stand above.")
    rows = [[float(word) for word in line.split()] for line in said.splitlines()]
    return max(statistics.median(row[call] for row in rows) for call in range(len(rows[0])))
