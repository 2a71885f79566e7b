# SPDX-License-Identifier: Apache-2.0
"""The figures of a run.

Metrics count jobs that have ended. Times are in seconds. A slowdown is the response time over the run time with all
resources, of at least 1 s; a bounded slowdown is at least 1 and takes run times below 10 s as 10 s; fairness is over
means of that, by size and by user. A job ended by its limit counts for the work that it did. Makespan is from the
first submission to the last end. Utilisation is the work done, node utilisation the time that nodes have jobs, both
over the capacity of the machine in the makespan, or up to the last event of a partial run; the speed of nodes counts
for the capacity of work alone. A malleable start is one on
part of each node's cores; a mate is a job that gave up cores; a reconfiguration is a change of the speed of a running
job that got or lost cores.

Fairness is Jain's index: for n classes with means x it is ``sum(x)**2 / (n * sum(x**2))`` (Jain, Chiu and Hawe, DEC
TR-301, 1984), 1 where all classes are slowed down alike, 1/n where one class bears everything. Every class counts once,
however many jobs it has. The index says nothing about how large the slowdowns are.

Energy is that of the linear node model (Fan, Weber and Barroso, ISCA 2007) in the makespan: an empty node takes `idle`
watts, a node with jobs, or one that wakes up for a job, `peak`, whatever they do, and a node that is off `off`. In a
pool each core takes its part of that.
"""

from __future__ import annotations

import math
import platform
import resource
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from drom.scheduler.analysis.contracts import contract_outcome
from drom.scheduler.analysis.schedule import STATES, UNKNOWN, columns, done, has_ended, states
from drom.scheduler.engine.state import BUSY, EVENTS, RESIZES
from drom.scheduler.interface import ENDED
from drom.scheduler.simulator import failures, leaving, sleep
from drom.scheduler.simulator.speeds import mean_speed
from drom.workloads.classes import JobClass

if TYPE_CHECKING:
    from drom.scheduler.analysis.schedule import Table
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.cleaning import CleaningReport
    from drom.workloads.workload import Bools, Floats, Ints


SCHEMA = 4
"""The version of the format of a summary."""


class Power(NamedTuple):
    """The watts of a node without and with jobs, and of one that is off."""

    idle: float = 100.0
    peak: float = 300.0
    off: float = 0.0

    def fault(self) -> str:
        """Return what is wrong with the watts; empty if nothing is."""
        for name, watts in self._asdict().items():
            if not 0 <= watts < math.inf:
                return f"{name}_watts is a number of at least 0, not {watts:g}."
        return "" if self.idle <= self.peak else "peak_watts is below idle_watts."


def power_of(run: Simulation, power: Power) -> Power:
    """Return the watts of a simulated node from those of a node of the machine; each is a core in a pool."""
    cores = run.given.cores // run.machine.cores
    return Power(power.idle / cores, power.peak / cores, power.off / cores)


def slowdown(table: Table) -> Floats:
    """Return the response over the full-speed run time, of shape ``(jobs,)``; nan for jobs that have not ended."""
    response = np.where(has_ended(table), table["end"] - table["submit"], np.nan)
    return np.asarray(response / np.maximum(table["full_speed_run_time"], 1), np.float64)


def malleable(table: Table, cores: int) -> Bools:
    """Return the mask of the jobs that started on less than the `cores` of each node."""
    return np.asarray((table["share_at_start"] != UNKNOWN) & (table["share_at_start"] < cores), np.bool_)


def metrics(run: Simulation, power: Power) -> dict[str, Any]:
    """Return the metrics of the jobs that have ended, which are all None if none has, and the counts.

    `power` is that of a node of the machine, also if its cores are a pool.
    """
    machine, s = (run.machine.nodes, run.machine.cores), run.world.scalars
    busy, resizes = int(s[BUSY]), int(s[RESIZES])
    off, speed = sleep.off_seconds(run.world), mean_speed(run.world.node_speed)
    return metrics_of(columns(run), machine, run.work.user, busy, run.now, resizes, power_of(run, power), off, speed)


def metrics_of(  # noqa: PLR0917 - what a table of jobs does not say
    table: Table,
    machine: tuple[int, int],
    user: Ints,
    busy: int,
    until: int,
    resizes: int,
    power: Power,
    off: int = 0,
    speed: float = 1.0,
) -> dict[str, Any]:
    """Return the same metrics for a table of jobs; `machine` has the number of nodes and of cores per node.

    `user` are the users of the jobs as numbers, `busy` the node-seconds with a job on the node up to the second
    `until`, `resizes` the number of changes of running jobs, `off` the node-seconds for which nodes were off, `speed`
    the mean speed of nodes.
    """
    nodes, cores = machine
    counts = {
        "malleable_starts": int(malleable(table, cores).sum()),
        "distinct_mates": int((table["lent"] > 0).sum()),
        "reconfigurations": resizes,
    }
    ended = has_ended(table)
    if not ended.any():
        return dict.fromkeys(FIGURES) | counts
    response = (table["end"] - table["submit"])[ended]
    needed = np.maximum(table["full_speed_run_time"][ended], 1)
    bounded = np.maximum(1, response / np.maximum(needed, 10))
    makespan = max(1, int(table["end"][ended].max() - table["submit"].min()))
    span = makespan if ended.all() else max(1, until - int(table["submit"].min()))
    core_seconds = float((table["cores"] * table["full_speed_run_time"])[ended].sum(dtype=np.float64))
    figures = (
        makespan,
        float(response.mean()),
        float(table["wait"][ended].mean()),
        float((response / needed).mean()),
        float(bounded.mean()),
        fairness(bounded, size_classes(table["cores"][ended])),
        fairness(bounded, user[ended]),
        core_seconds / (nodes * cores * speed * span),
        busy / (nodes * span),
        power.idle * nodes * span + (power.peak - power.idle) * busy + (power.off - power.idle) * off,
    )
    return dict(zip(FIGURES, figures, strict=True)) | counts


FIGURES = {
    "makespan_s": "makespan",
    "mean_response_s": "response",
    "mean_wait_s": "wait",
    "mean_slowdown": "slowdown",
    "mean_bounded_slowdown": "bounded slowdown",
    "fairness_by_size": "fairness by size",
    "fairness_by_user": "fairness by user",
    "utilisation": "utilisation",
    "node_utilisation": "node utilisation",
    "energy_joule": "energy",
}
"""The metrics of a run with their names in reports, in the order of `metrics`."""


COUNTS = {
    "malleable_starts": "malleable starts",
    "distinct_mates": "distinct mates",
    "reconfigurations": "reconfigurations",
}
"""The counts of a run with their names in reports."""


def accuracy(run: Simulation) -> dict[str, Any]:
    """Return the predictor of the run times that the policy used, and its errors for jobs that have ended.

    `mean_error_s` is the mean absolute error in seconds, `too_short` the fraction of jobs that ran longer than
    predicted, `raised` the number of times that a prediction was raised while its job was running.
    """
    jobs, ended = run.world.jobs, run.world.jobs.state == ENDED
    off = (jobs.requested - done(run))[ended]
    return {
        "by": run.predictor,
        "mean_error_s": float(np.abs(off).mean()) if ended.any() else None,
        "too_short": float((off < 0).mean()) if ended.any() else None,
        "raised": int(run.world.foresight.raised.sum()),
    }


def summary(run: Simulation, report: CleaningReport, power: Power, stopped: str, seed: int) -> dict[str, Any]:
    """Return the summary of a run without its jobs; `stopped` is why it is partial, empty for a complete run."""
    jobs, node, state = run.world.jobs, power_of(run, power), states(run)
    return {
        "schema_version": SCHEMA,
        "complete": run.is_over,
        "stopped": stopped,
        "log": run.work.source,
        "workload": run.digest(),
        "policy": run.policy.name,
        "parameters": run.policy.parameters(),
        "machine": run.machine._asdict(),
        "pool_of": {"nodes": run.given.nodes, "cores": run.given.cores} if run.policy.pooled else None,
        "predictions": accuracy(run),
        "adaptive": run.adaptive._asdict() if run.adaptive else None,
        "evolving": run.evolving or None,
        "jobs": {name: int((state == number).sum()) for number, name in STATES.items()},
        "ended_at_limit": int(((state == ENDED) & (done(run) < run.work.run_time)).sum()),
        "classes": {kind.name.lower(): int((jobs.cls == kind).sum()) for kind in JobClass},
        "metrics": metrics(run, power),
        "contracts": contract_outcome(run),
        "leaving": leaving.figures(run.world, run.adaptive),
        "failures": failures.figures(run),
        "sleep": sleep.figures(run.world),
        "power_model": {
            "kind": f"linear, nodes {'turn off' if len(run.world.empty_since) else 'stay on'}",
            **{f"{name}_watt": watts for name, watts in node._asdict().items()},
        },
        "cleaning": report.to_json() | {"rounded": dict(run.work.roundings)},
        "seed": seed,
        "calls_of_the_policy": int(run.world.scalars[EVENTS]),
        "simulated_until_s": run.now,
        "seconds": run.seconds,
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "compiled": run.program.compiled,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the software that makes a summary."""
    return {
        "drom": metadata.version("drom"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
    }


def jain(values: Floats) -> float | None:
    """Return the index of positive values; None for fewer than two, which cannot be uneven."""
    if len(values) < 2:
        return None
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


def size_classes(cores: Ints) -> Ints:
    """Return the class of each size: 0 for one core, then a class up to each power of two."""
    return np.ceil(np.log2(cores)).astype(np.int64)


def fairness(slowdowns: Floats, classes: Ints) -> float | None:
    """Return Jain's index over the means of classes; jobs of the class -1, which stands for unknown, are left out."""
    known = classes != -1
    if not known.any():
        return None
    _, which, jobs = np.unique(classes[known], return_inverse=True, return_counts=True)
    return jain(np.bincount(which, slowdowns[known]) / jobs)
