# SPDX-License-Identifier: Apache-2.0
"""Workload 5 compared with the paper: rows and sentences from completed runs and from rehearsals. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from drom.scheduler.analysis.estimates import estimate
from drom.scheduler.reproduction.sd_policy import paper
from drom.scheduler.reproduction.sd_policy.real.figures import better
from drom.scheduler.reproduction.sd_policy.real.settings import CORES, NODES, SCALES
from drom.scheduler.reproduction.sd_policy.tables import CHANGE, Row, change
from drom.workloads.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from drom.scheduler.reproduction.sd_policy.paper import Given
    from drom.scheduler.reproduction.sd_policy.real.completed import CompletedRun
    from drom.scheduler.reproduction.sd_policy.real.figures import Result

FIGURE_9 = {
    "makespan": "makespan_s",
    "response": "mean_response_s",
    "slowdown": "mean_slowdown",
    "energy": "energy_joule",
}
"""The paper's names for its figures, and drom's."""


class Pair(NamedTuple):
    """The results of a seed under both policies."""

    static: Result
    shared: Result
    joules: tuple[float, float] | None = None

    def change(self, name: str) -> float:
        """Return the difference in percent of a figure of the paper from that of static backfilling."""
        if name == "energy" and self.joules:
            before, after = self.joules
        else:
            before, after = (run.metrics[FIGURE_9[name]] for run in (self.static, self.shared))
        found = change(after, before)
        return 0.0 if found is None else found


def pairs(runs: Iterable[CompletedRun]) -> dict[str, list[Pair]]:
    """Return the pairs of each scale: the seeds of which both runs are complete, with the same options."""
    found: dict[str, list[Pair]] = {name: [] for name in SCALES}
    kept = {run.task: run for run in runs}
    for task, static in sorted(kept.items(), key=lambda item: item[0].seed):
        shared = kept.get(task._replace(policy="sd"))
        if task.policy == "static" and shared is not None:
            joules = (static.joules, shared.joules)
            measured = None if None in joules else (static.joules or 0.0, shared.joules or 0.0)
            found[task.scale].append(Pair(static.result, shared.result, measured))
    return found


def rows(found: Mapping[str, Sequence[Pair]], rehearsed: Mapping[str, Sequence[Pair]]) -> list[Row]:
    """Return the rows of Figure 9 and Section 4.4: for real runs by scale, then for rehearsals by curves."""
    titles = {NODES.name: "49 emulated nodes", CORES.name: "2 real cores"}
    return [
        *(row for name, title in titles.items() for row in _rows(title, found.get(name, ()))),
        *(row for name, some in rehearsed.items() for row in _rows(f"simulated, {name}", some)),
    ]


def _rows(title: str, some: Sequence[Pair]) -> Iterator[Row]:
    for name, given in paper.REAL_RUN.items():
        yield mean_row("Figure 9", f"{title}: {name}", CHANGE, given, [pair.change(name) for pair in some])
    counts = [better(pair.static, pair.shared) for pair in some]
    shares = [
        100 * guests / max(1, len(pair.shared.core_seconds)) for pair, (guests, _) in zip(some, counts, strict=True)
    ]
    given = paper.Given(100 * paper.REAL_STARTS.value / paper.REAL_JOBS)
    yield mean_row("Section 4.4", f"{title}: malleable starts", "% of jobs", given, shares)
    less = [100 * few / guests for guests, few in counts if guests]
    given = paper.Given(100 * paper.REAL_BETTER.value / paper.REAL_STARTS.value)
    yield mean_row("Section 4.4", f"{title}: less core time", "% of jobs", given, less)


def mean_row(place: str, what: str, unit: str, given: Given | None, values: Sequence[float]) -> Row:
    """Return the row of a mean over seeds, with half of its 95 % interval in words."""
    if not values:
        return Row(place, what, unit, given, None)
    half = f" (± {estimate(np.array(values, np.float64)).half:.1f})" if len(values) > 1 else ""
    return Row(place, what + half, unit, given, float(np.mean(values)))


def notes(runs: Sequence[CompletedRun]) -> list[str]:
    """Return sentences on the completed runs and their latencies."""
    found = [_about(name, [run for run in runs if run.task.scale == name]) for name in (NODES.name, CORES.name)]
    return [sentence for sentences in found for sentence in sentences]


def _about(name: str, runs: Sequence[CompletedRun]) -> Iterator[str]:
    scale = SCALES[name]
    if not runs:
        yield f"There is no run of {scale.title}."
        return
    first, seeds = runs[0].task, sorted({run.task.seed for run in runs})
    which = f"all {scale.jobs:,}" if first.first == scale.jobs else f"the first {first.first:,} of {scale.jobs:,}"
    speed = f"{first.compression:g} times as fast as the workload's clock"
    if name == NODES.name:
        speed += f", {first.curves} curves"
    yield f"There are runs of {scale.title}: {which} jobs, {counted(len(seeds), 'seed')}, {speed}."
    failed = sum(count for run in runs for state, count in run.result.states.items() if state != "completed")
    if failed:
        yield f"{counted(failed, 'job')} did not complete."
    lost = np.concatenate([run.latencies for run in runs])
    if len(lost):
        shortest = min(job.run_time for run in runs for job in run.task.jobs()) / first.compression
        middle, most = np.quantile(lost, (0.5, 0.95))
        yield (
            f"Starting and ending cost a job {1e3 * middle:.0f} ms (median; 95 %: less than {1e3 * most:.0f} ms), "
            f"{100 * middle / shortest:.2f} % ({100 * most / shortest:.1f} %) of the shortest job's {shortest:.1f} s."
        )
    if name == CORES.name:
        measured = all(run.joules is not None for run in runs)
        yield "Energy is RAPL's." if measured else "This machine has no RAPL: energy is that of the node model."
