# SPDX-License-Identifier: Apache-2.0
"""A comparison of results: each figure of the first run, and its ratio in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.text import table as lines_of
from drom.scheduler.analysis.metrics import COUNTS, FIGURES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MORE_IS_BETTER = frozenset({"utilisation", "node_utilisation", "fairness_by_size", "fairness_by_user"})


class Row(NamedTuple):
    """A figure of all runs, and its ratios to the first run; None if it is unknown or has no ratio."""

    figure: str
    label: str
    values: list[float | None]
    ratios: list[float | None]


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder: its own, or its path if several folders have the same name."""
    names = [folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]


def rows_of(told: Sequence[dict[str, Any]]) -> list[Row]:
    """Return the figures of these summaries, then the counts, which have no ratios."""
    rows = []
    for key, label in (FIGURES | COUNTS).items():
        values = [one["metrics"][key] for one in told]
        ratios = [None if key in COUNTS else _ratio(value, values[0]) for value in values]
        rows.append(Row(key, label, values, ratios))
    return rows


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def notes(names: Sequence[str], told: Sequence[dict[str, Any]]) -> list[str]:
    """Return sentences about runs that cannot be compared with the first, or are partial."""
    found = []
    for name, one in zip(names, told, strict=True):
        if any(one[key] != told[0][key] for key in ("workload", "cleaning")) or size_of(one) != size_of(told[0]):
            found.append(f"note: {name} has other jobs or another machine than {names[0]}.")
        if not one["complete"]:
            found.append(f"note: {name} is partial ({one['stopped']}).")
    return found


def size_of(told: dict[str, Any]) -> tuple[int, int]:
    """Return the nodes of the machine of a summary and their cores, also if these were one pool."""
    machine = told.get("pool_of") or told["machine"]
    return machine["nodes"], machine["cores"]


def number(value: float | None) -> str:
    """Return a figure as text."""
    if value is None:
        return "-"
    return f"{value:,.4g}" if abs(value) < 100 else f"{value:,.0f}"


def table(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table: figures of the first run, ratios of all; counts of all."""
    lines = []
    for row in rows:
        cells = [number(value) for value in row.values]
        if row.figure not in COUNTS:
            cells = ["-" if ratio is None else f"{ratio:.4f}" for ratio in row.ratios]
        lines.append([row.label, number(row.values[0]), *cells])
    return lines_of(["FIGURE", "OF THE FIRST", *names], lines, " >" + ">" * len(names))
