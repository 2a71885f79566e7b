# SPDX-License-Identifier: Apache-2.0
"""The results of the experiments: the rows of each workload, from its folders of results."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from drom.scheduler.analysis.results import load, load_schedule
from drom.scheduler.errors import SchedulerError
from drom.scheduler.reproduction.sd_policy.classes import Classes, class_rows, day_rows
from drom.scheduler.reproduction.sd_policy.settings import EXPERIMENTS, MAXSD_10, SETTINGS, STATIC
from drom.scheduler.reproduction.sd_policy.tables import Row, figure_7, figure_8, figures_1_to_3, lines, table_1
from drom.scheduler.simulator.batch import Run
from drom.workloads.errors import counted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from drom.scheduler.reproduction.sd_policy.logs import Source
    from drom.scheduler.reproduction.sd_policy.tables import Metrics

SCHEMA = 1
IN_CLASSES = (STATIC, MAXSD_10)
"""Figures 4 to 7, which are about workload 4: the settings that they compare."""


class Outcome(NamedTuple):
    """A workload with its rows; `runs` has the metrics of every setting that ran to completion."""

    number: int
    title: str
    notes: list[str]
    stands_in: bool
    runs: dict[str, Metrics]
    rows: list[Row]
    complete: bool

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return self._asdict() | {"rows": [row.to_json() for row in self.rows]}

    def lines(self) -> list[str]:
        """Return the outcome as lines of text."""
        notes = textwrap.wrap(" ".join(self.notes), 112, initial_indent="  ", subsequent_indent="  ")
        return [f"Workload {self.number}: {self.title}", *notes, *lines(self.rows)]


def runs_of(number: int, source: Source, folder: Path) -> list[Run]:
    """Return the simulations of a workload, with a folder of results for each setting."""
    return [
        Run(source.log, source.nodes, source.cores, setting.options, folder_of(folder, number, setting.name))
        for setting in SETTINGS
    ]


def folder_of(folder: Path, number: int, setting: str) -> Path:
    """Return the folder of results of one simulation."""
    return folder / f"workload-{number}" / setting


def outcome_of(number: int, source: Source, folder: Path) -> Outcome:
    """Return the outcome of a workload; settings without complete results count as not run."""
    told = {setting.name: _whole(folder_of(folder, number, setting.name)) for setting in SETTINGS}
    runs = {name: one["metrics"] for name, one in told.items() if one is not None}
    notes = [f"{_size(told)}{note_on(source)}"]
    missing = [setting.label for setting in SETTINGS if setting.name not in runs]
    if missing:
        notes.append(f"Partial: {', '.join(missing)} did not run to the end.")
    classes = {
        setting.name: Classes.of(load_schedule(folder_of(folder, number, setting.name)))
        for setting in IN_CLASSES
        if number == 4 and setting.name in runs
    }
    rows = rows_of(number, runs, classes)
    return Outcome(number, EXPERIMENTS[number].title, notes, source.stands_in, runs, rows, not missing)


def rows_of(number: int, runs: Mapping[str, Metrics], classes: Mapping[str, Classes]) -> list[Row]:
    """Return the rows of a workload from the metrics of complete runs and the classes of their jobs, by setting."""
    rows = [*table_1(number, runs), *figures_1_to_3(number, runs)]
    if number == 4:
        pair = [classes[setting.name] for setting in IN_CLASSES if setting.name in classes]
        known = len(pair) == len(IN_CLASSES)
        rows += [*(class_rows(*pair) if known else ()), *figure_7(runs), *(day_rows(*pair) if known else ())]
    return [*rows, *figure_8(number, runs)]


def note_on(source: Source) -> str:
    """Return a note on the machine and the jobs."""
    return f"on {counted(source.nodes, 'node')} of {counted(source.cores, 'core')}. {source.note}"


def _whole(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a folder of results; None for a run that did not complete."""
    try:
        told = load(folder)
    except SchedulerError:
        return None
    return told if told["complete"] else None


def _size(told: dict[str, dict[str, Any] | None]) -> str:
    sizes = {one["cleaning"]["jobs_out"] for one in told.values() if one is not None}
    return f"{counted(sizes.pop(), 'job')} " if len(sizes) == 1 else "jobs "
