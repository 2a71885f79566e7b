"""Measure the placement kernel on prepared arrays: the two sizes that `drom bench node` reports."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from drom.agent.placement.kernel.distributor import (
    DEFAULT_BUDGET,
    Distributor,
    Infeasible,
    Placement,
    TaskRequest,
    kernel,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CORES_PER_SOCKET = 64
SIZES = {"2x64 cores, 16 jobs": (2, 16, 1), "8x64 cores, 256 tasks": (8, 32, 8)}
"""Sockets, jobs, tasks per job."""


def measure(runs: int = 7, calls: int = 200) -> dict[str, Any]:
    """Return, for each size and situation, median and extremes of `runs` runs in microseconds, and the objective."""
    sizes = {name: _measure_size(*size, runs, calls) for name, size in SIZES.items()}
    return {"schema_version": 1, "compiled": kernel().compiled, "budget": DEFAULT_BUDGET, "sizes": sizes}


def _measure_size(sockets: int, jobs: int, ranks: int, runs: int, calls: int) -> dict[str, Any]:
    """Measure one size in its situations."""
    cores = [(n // CORES_PER_SOCKET, n // CORES_PER_SOCKET, 1 << n) for n in range(sockets * CORES_PER_SOCKET)]
    distributor = Distributor(cores)
    cases = situations(cores, jobs, ranks).items()
    return {name: _measure_calls(distributor, demands, runs, calls) for name, demands in cases}


def situations(cores: Sequence[tuple[int, int, int]], jobs: int, ranks: int) -> dict[str, list[TaskRequest]]:
    """Return demands that fill the machine: all tasks new, nothing to do, the last job arrives, all scattered."""
    tasks = jobs * ranks
    share = len(cores) // tasks
    new = [TaskRequest(t, t // ranks, share) for t in range(tasks)]
    old = tasks - ranks
    before = _placed(
        cores, [TaskRequest(t, t // ranks, len(cores) // old + (t < len(cores) % old)) for t in range(old)]
    )
    return {
        "all new": new,
        "unchanged": _again(new, _placed(cores, new)),
        "arrival": _again(new, before),
        "uneven, scattered": _scattered(cores, jobs, ranks),
    }


def _placed(cores: Sequence[tuple[int, int, int]], demands: list[TaskRequest]) -> dict[Any, int]:
    """Return the mask of each demand's task after placement."""
    return dict(_feasible(Distributor(cores).place(demands)).masks)


def _feasible(answer: Placement | Infeasible) -> Placement:
    """Return the answer. Raises RuntimeError if it is infeasible, which the benchmark's demands never are."""
    if isinstance(answer, Infeasible):
        raise RuntimeError(answer.reason)  # noqa: TRY004 - it is no fault of a type
    return answer


def _again(demands: list[TaskRequest], masks: dict[Any, int]) -> list[TaskRequest]:
    """Return the same demands, by tasks that already have `masks`."""
    return [TaskRequest(d.task, d.job, d.cores, masks.get(d.task, 0)) for d in demands]


def _scattered(cores: Sequence[tuple[int, int, int]], jobs: int, ranks: int) -> list[TaskRequest]:
    """Return the demands of jobs of random sizes with cores spread at random over the machine (seeded)."""
    rng = random.Random(20)  # noqa: S311 - a benchmark, reproducible
    sizes = [1] * (jobs * ranks)
    for _ in range(len(cores) - len(sizes)):
        sizes[rng.randrange(len(sizes))] += 1
    shuffled = [core[2] for core in cores]
    rng.shuffle(shuffled)
    held = [sum(shuffled.pop() for _ in range(size)) for size in sizes]
    return [TaskRequest(t, t // ranks, size, held[t]) for t, size in enumerate(sizes)]


def _measure_calls(distributor: Distributor, demands: list[TaskRequest], runs: int, calls: int) -> dict[str, Any]:
    """Time calls of the kernel for one list of demands; each run is the median of its calls."""
    placement = _feasible(distributor.place(demands))
    arguments = distributor.prepare(demands)
    if isinstance(arguments, Infeasible):
        raise RuntimeError(arguments.reason)  # noqa: TRY004
    place = distributor.kernel.place
    times = [_median_call(lambda: place(*arguments), calls) for _ in range(runs)]
    return {
        "median_us": round(statistics.median(times), 2),
        "min_us": round(min(times), 2),
        "max_us": round(max(times), 2),
        "place_us": round(_median_call(lambda: distributor.place(demands), 20), 1),
        "objective": list(placement.objective),
        "exact": placement.exact,
    }


def _median_call(call: Callable[[], object], calls: int) -> float:
    """Return the median time of a call in microseconds."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1000
