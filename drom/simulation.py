# SPDX-License-Identifier: Apache-2.0
"""The Python interface of the simulator: `drom.simulate`, its results, and workloads as data frames."""

from __future__ import annotations

import importlib
import os
import warnings
from dataclasses import fields
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from drom.scheduler.analysis import comparison, metrics, results, series
from drom.scheduler.analysis.plots import BINS, gantt_figure
from drom.scheduler.analysis.power import watts
from drom.scheduler.analysis.schedule import NODE_LIST, node_lists, schedule_of
from drom.scheduler.cli import messages
from drom.scheduler.cli.progress import Bar, notebook, progress_stream
from drom.scheduler.cli.setup import Setup, choices_of
from drom.scheduler.engine.compiler import load_policy
from drom.scheduler.errors import SchedulerError
from drom.workloads.errors import WorkloadError, short
from drom.workloads.frames import from_frame, make_frame
from drom.workloads.logs import read_log
from drom.workloads.making import MODELS, Recipe, make

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pandas as pd
    from matplotlib.figure import Figure

    from drom.scheduler.analysis.schedule import Schedule
    from drom.scheduler.simulator.simulation import Simulation
    from drom.workloads.cleaning import CleaningReport
    from drom.workloads.workload import Workload


FileName = str | os.PathLike[str]
_MOST_INTERVALS = 1_000_000


class Result:
    """The result of a simulation. Its text is what `drom simulate` prints."""

    def __init__(self, run: Simulation, report: CleaningReport, power: metrics.Power, seed: int) -> None:
        self._run = run
        self._power = power
        self.summary: dict[str, Any] = metrics.summary(run, report, power, "", seed)
        """What summary.json has: metrics, cleaning report, machine, parameters, versions."""

    def __repr__(self) -> str:
        return "\n".join(messages.lines(self.summary))

    @property
    def metrics(self) -> dict[str, float | None]:
        """The metrics by name, such as `mean_slowdown`; times in seconds, None for what is unknown."""
        return dict(self.summary["metrics"])

    @cached_property
    def _schedule(self) -> Schedule:
        return schedule_of(self._run)

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """The table of jobs.csv as a data frame: a row per job in order of submission, times in seconds of the log."""
        return make_frame(self._schedule.table | {NODE_LIST: node_lists(self._schedule)})

    def series(self, intervals: int = BINS) -> pd.DataFrame:
        """Return the load over time, in equal intervals from the first submission to the last end.

        The index is the second at which an interval begins, `utilisation` the mean fraction of the machine at work,
        `queue` the mean number of waiting jobs, `power` the mean watts of all nodes; nan in a pool, and if nodes fail.
        """
        if not 1 <= intervals <= _MOST_INTERVALS:
            msg = f"intervals is a number from 1 to {_MOST_INTERVALS:,}, not {intervals:,}."
            raise SchedulerError(msg)
        edges = series.span_of(self._schedule).edges(intervals)
        columns = {
            "utilisation": series.busy_nodes(self._schedule, edges) / self._schedule.nodes,
            "queue": series.waiting(self._schedule, edges),
            "power": watts(self._run, self._schedule, self._power, edges),
        }
        return make_frame({"time": edges[:-1], **columns}).set_index("time")

    def gantt(self, begin: int | None = None, end: int | None = None) -> Figure:
        """Draw which jobs had which nodes, from one second of the log to another.

        Without them a long schedule is shown for the day with most guests, or most waiting. Raises SchedulerError for
        a policy that allots processors, as it does not say which.
        """
        if self._run.policy.pooled:
            name = self._run.policy.name
            msg = f"There is no Gantt chart: {name} says how many processors jobs have, not which."
            raise SchedulerError(msg)
        window = None
        if (begin, end) != (None, None):
            span = series.span_of(self._schedule)
            window = series.Span(span.begin if begin is None else begin, span.end if end is None else end)
            if not window.begin < window.end:
                msg = f"A Gantt chart from {window.begin:,} to {window.end:,} s shows nothing: give the earlier first."
                raise SchedulerError(msg)
        return _shown(gantt_figure(self._schedule, self._run.policy.name, window))

    def compare(self, other: Result) -> pd.DataFrame:
        """Return each metric of this result and of another, and the ratio of the other to this.

        Warns if the two have other jobs or machines.
        """
        told = [self.summary, other.summary]
        for note in comparison.notes(["the first", "the other"], told):
            warnings.warn(note.removeprefix("note: "), stacklevel=2)
        rows = [(figure, *values, ratios[1]) for figure, _, values, ratios in comparison.rows_of(told)]
        names, *numbers = zip(*rows, strict=True)
        columns = dict(zip(("this", "other", "ratio"), np.array(numbers, np.float64), strict=True))
        return make_frame({"metric": names, **columns}).set_index("metric")

    def save(self, folder: FileName) -> None:
        """Write the files of `drom simulate --out`, which `drom compare` reads. Raises SchedulerError."""
        results.prepare(Path(folder))
        results.write(self._run, self.summary, Path(folder), results.failures(self._run))


def workload(source: FileName, **parameters: Any) -> pd.DataFrame:  # noqa: ANN401 - of several types
    """Return jobs as a data frame: those of a log, or jobs drawn from a model.

    Args:
        source: The path of a log (SWF or .csv, either with .gz), or a model: lublin, cirne-like or lomonosov.
        parameters: Of a model, as `drom workload make` has them, such as jobs, nodes, cores, seed and load.

    Raises WorkloadError for a log that cannot be read, and for parameters that cannot be.
    """
    if source not in MODELS and not parameters:
        return make_frame(_read(source).columns())
    known = [field.name for field in fields(Recipe)][1:]
    strange = [name for name in parameters if name not in known]
    if source not in MODELS or strange:
        wrong = f"parameter {short(strange[0])}" if source in MODELS else f"model {short(os.fspath(source))}"
        choices = known if source in MODELS else MODELS
        msg = f"There is no {wrong}: choose from {', '.join(choices)}."
        raise WorkloadError(msg)
    return make_frame(make(Recipe(str(source), **parameters)).columns())


def simulate(
    workload: pd.DataFrame | FileName,
    *,
    nodes: int,
    cores: int = 1,
    policy: str | os.PathLike[str] | Callable[..., int] | type = "easy",
    event_rule: str = "instant",
    runtime_model: str = "worst",
    partition: Mapping[int, str] | None = None,
    classes: Mapping[str, float] | None = None,
    predict: str = "user",
    adaptive: Mapping[str, float] | None = None,
    evolving: float | FileName = "",
    contracts: Mapping[str, float] | FileName | None = None,
    failures: Mapping[str, float | str] | None = None,
    sleep: Mapping[str, float] | None = None,
    speed: Mapping[float, str] | None = None,
    idle_watts: float = 100.0,
    peak_watts: float = 300.0,
    off_watts: float = 0.0,
    rule: Mapping[str, str] | None = None,
    seed: int = 1,
    progress: bool = True,
    **parameters: float | str,
) -> Result:
    """Simulate the jobs of a workload on a machine under a policy, as `drom simulate` does.

    Args:
        workload: A data frame with the columns that `drom.workload` returns, or the path of a log. Needed are submit
            and run_time, in seconds, and allocated, the processors.
        nodes: Nodes of the machine.
        cores: Cores of a node.
        policy: The name of a policy, a file that ends in .py, a function `decide`, or a class with what such a file
            defines.
        event_rule: instant, pyss or cqsim.
        runtime_model: The run-time model of jobs that share nodes: worst or ideal.
        partition: The nodes of partitions by number, such as `{2: "0-99"}`.
        classes: Shares of classes, such as `{"malleable": 0.3}`; by default all jobs are malleable.
        predict: The run times for planning: user, recent or learned.
        adaptive: Properties of the jobs of a pool, or under `sd` of those that may leave nodes: `{"minimum": 0.5}`.
        evolving: Jobs whose range changes while they run: a fraction, or a table.
        contracts: Deadlines and pay-off: a table, or parameters to draw them, such as `{"tight": 2}`.
        failures: Failures of nodes, such as `{"rate": 0.5}` for each node and year, or `{"trace": "failures.csv"}`.
        sleep: When nodes are turned off without jobs, such as `{"after": 600, "wake": 120}`, in seconds.
        speed: Nodes of another speed than 1, such as `{0.8: "64-95"}`.
        idle_watts: Power of a node without jobs.
        peak_watts: Power of a node with jobs.
        off_watts: Power of a node that is off.
        rule: Cleaning rules, such as `{"larger": "drop"}`.
        seed: The seed for classes, ranges, contracts and failures.
        progress: Whether a long simulation shows its progress, in a notebook or on a terminal.
        parameters: Parameters of the policy, such as `max_slowdown=5`.

    Raises SchedulerError or WorkloadError, with a sentence that says what to do.
    """
    chosen = load_policy(os.fspath(policy) if isinstance(policy, os.PathLike) else policy, choices_of(parameters))
    setup = Setup(
        index(nodes),
        index(cores),
        event_rule,
        runtime_model,
        choices_of(partition),
        ",".join(choices_of(classes)) or None,
        predict,
        choices_of(adaptive),
        str(evolving),
        choices_of(contracts),
        choices_of(rule),
        index(seed),
        failures=choices_of(failures),
        sleep=choices_of(sleep),
        speed=choices_of(speed),
    )
    power = metrics.Power(idle_watts, peak_watts, off_watts)
    if fault := setup.fault(chosen) or power.fault():
        raise SchedulerError(fault)
    work, report = setup.clean(_read(workload))
    if progress:
        messages.announce(chosen, predict)
    run = setup.simulation(work, chosen)
    bar = Bar(progress_stream(), f"simulating {chosen.name}") if progress else None
    try:
        run.run(progress=bar.show if bar else None)
    finally:
        if bar:
            bar.clear()
    return Result(run, report, power, setup.seed)


def _read(source: pd.DataFrame | FileName) -> Workload:
    """Return the jobs of a log or of a data frame."""
    if hasattr(source, "columns"):
        return from_frame(source)
    if not isinstance(source, str | os.PathLike):
        msg = f"{short(repr(source))} is not a workload: give a data frame, or the path of a log."
        raise WorkloadError(msg)
    try:
        return read_log(source)
    except FileNotFoundError as error:
        msg = f"There is no log {short(os.fspath(source))}: name a file, or a model of {', '.join(MODELS)}."
        raise WorkloadError(msg) from error


def _shown(figure: Figure) -> Figure:
    """Return a figure that a notebook shows as the value of a cell, as it does those of pyplot."""
    if shell := notebook():
        importlib.import_module("IPython.core.pylabtools").select_figure_formats(shell, {"png"})
    return figure
