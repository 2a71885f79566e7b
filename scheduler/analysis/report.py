# SPDX-License-Identifier: Apache-2.0
"""A comparison of results as one HTML file that contains its pictures."""

from __future__ import annotations

import itertools
from html import escape
from typing import TYPE_CHECKING, Any

from drom.scheduler.analysis import plots
from drom.scheduler.analysis.comparison import MORE_IS_BETTER, names_of, notes, number, rows_of, size_of
from drom.scheduler.analysis.gantt import window_of
from drom.scheduler.analysis.page import image, write_page
from drom.scheduler.analysis.results import load, load_schedule
from drom.scheduler.analysis.series import unit_of
from drom.workloads.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from drom.scheduler.analysis.comparison import Row
    from drom.scheduler.analysis.schedule import Schedule

_NOTICEABLE = 0.005
"""Ratios that differ less from 1 have no colour."""


def write_report(folders: Sequence[Path], path: Path) -> None:
    """Write a report about folders of results; the others are compared with the first.

    Raises SchedulerError for a folder without results and if the report cannot be written, WorkloadError if
    matplotlib is missing.
    """
    names = names_of(folders)
    found = notes(names, [load(folder) for folder in folders])
    pieces = [
        f"<h1>{escape(', '.join(names))}</h1>",
        *(f'<p class="note">{escape(note)}</p>' for note in found),
        *sections(folders),
    ]
    write_page(path, f"drom compare: {', '.join(names)}", pieces, "--html")


def sections(folders: Sequence[Path]) -> list[str]:
    """Return the body of a report about folders of results: ratios to the first, pictures, setups.

    Raises SchedulerError for a folder without results, WorkloadError if matplotlib is missing.
    """
    names, told = names_of(folders), [load(folder) for folder in folders]
    runs = dict(zip(names, map(load_schedule, folders), strict=True))
    return [
        _ratios(names, rows_of(told)),
        "<p>Ratios are to the first run. Times are in seconds, energy in joules.</p>",
        *_pictures(runs),
        "<h2>Runs</h2>",
        _setups(names, told),
        "<h2>Cleaning</h2>",
        *_cleaning(told[0]),
    ]


def _ratios(names: Sequence[str], rows: Iterable[Row]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    lines = []
    for row in rows:
        cells = [f"<td>{number(row.values[0])}</td>"]
        for value, ratio in itertools.islice(zip(row.values, row.ratios, strict=True), 1, None):
            cells.append(f"<td>{number(value)}{_ratio(ratio, more=row.figure in MORE_IS_BETTER)}</td>")
        lines.append(f"<tr><td>{escape(row.label)}</td>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"


def _ratio(ratio: float | None, *, more: bool) -> str:
    if ratio is None:
        return ""
    kind = "" if abs(ratio - 1) < _NOTICEABLE else "better" if (ratio > 1) == more else "worse"
    return f'<br><span class="ratio {kind}">{ratio:.4f}</span>'


def _pictures(runs: Mapping[str, Schedule]) -> Iterator[str]:
    first, unit = next(iter(runs.items())), unit_of(runs.values())
    yield "<h2>Slowdown and malleable starts</h2>"
    yield image(plots.days_figure(runs), "slowdown per day and malleable starts")
    yield "<h2>Utilisation and queue</h2>"
    yield image(plots.load_figure(runs), "utilisation and queue over time")
    yield "<h2>By size and run time</h2>"
    yield image(plots.heat_figure(first[1], first[0], unit), f"means of {first[0]} by size and run time")
    for other in itertools.islice(runs.items(), 1, None):
        yield image(plots.ratio_figure(first, other, unit), f"ratios of {first[0]} to {other[0]} by size and run time")
    yield "<h2>Gantt charts</h2>"
    window = window_of(max(runs.values(), key=plots.guests))
    for name, schedule in runs.items():
        if len(schedule.runs):
            yield image(plots.gantt_figure(schedule, name, window), f"Gantt chart of {name}")


def _setups(names: Sequence[str], told: Sequence[dict[str, Any]]) -> str:
    rows = {
        "log": [one["log"] for one in told],
        "jobs that ended": [f"{one['jobs']['ended']:,} of {sum(one['jobs'].values()):,}" for one in told],
        "policy": [one["policy"] for one in told],
        "parameters": [_pairs(one["parameters"]) or "-" for one in told],
        "machine": [_machine(one) for one in told],
        "event rule": [one["machine"]["event_rule"] for one in told],
        "runtime model": [one["machine"]["runtime_model"] for one in told],
        "run times by": [one["predictions"]["by"] for one in told],
        "classes": [_pairs(one["classes"]) for one in told],
        "seed": [one["seed"] for one in told],
        "power model": [
            f"{one['power_model']['kind']}: {one['power_model']['idle_watt']:g} W without jobs, "
            f"{one['power_model']['peak_watt']:g} W with jobs"
            for one in told
        ],
        "simulated in": [f"{one['seconds']:.2f} s, {one['peak_memory_bytes'] / 1e6:,.0f} MB" for one in told],
        "versions": [_pairs(one["versions"]) for one in told],
    }
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    lines = []
    for label, values in rows.items():
        cells = "".join(f'<td class="text">{escape(str(value))}</td>' for value in values)
        lines.append(f"<tr><td>{escape(label)}</td>{cells}</tr>")
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"


def _machine(told: dict[str, Any]) -> str:
    nodes, cores = size_of(told)
    if shared := told.get("shared_nodes"):
        return f"{counted(len(shared), 'node')} with {counted(nodes, 'core')} together"
    return f"{nodes:,} nodes of {counted(cores, 'core')}{', as one pool' if told.get('pool_of') else ''}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _cleaning(told: dict[str, Any]) -> list[str]:
    report = told["cleaning"]
    kept = f"<p>{report['jobs_out']:,} of {report['jobs_in']:,} jobs are simulated.</p>"
    return [kept, *(f"<p>{escape(finding['sentence'])}</p>" for finding in report["findings"])]
