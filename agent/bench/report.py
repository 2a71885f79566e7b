# SPDX-License-Identifier: Apache-2.0
"""Prints the results of benchmarks as tables or as JSON."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from drom.agent.cli.output import emit, table

if TYPE_CHECKING:
    from collections.abc import Sequence


def figure(name: str, unit: str, values: Sequence[float], reach: float | None, **more: object) -> dict[str, Any]:
    """Return one quantity of a table of measurements as JSON values; `reach` is its target."""
    spread = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {"name": name, "unit": unit, **spread, "reach": reach, **more, "runs": list(values)}


def bench(value: dict[str, Any], *, as_json: bool) -> None:
    """Print measurements beside their limits."""
    if as_json:
        emit(value)
        return
    headings = ["MEASURED", "MEDIAN", "MIN", "MAX", "UNIT", "REACH", "PEER"]
    intervals = any("interval" in row for row in value["figures"])
    rows = [
        [
            row["name"],
            *(f"{row[key]:.4g}" for key in ("median", "min", "max")),
            row["unit"],
            f"<= {row['reach']:g}" if row.get("reach") is not None else "-",
            str(row.get("peer") or "-"),
            *([_interval(row.get("interval"))] if intervals else []),
        ]
        for row in value["figures"]
    ]
    table([*headings, "MEDIAN'S 95 %"] if intervals else headings, rows)


def _interval(ends: Sequence[float] | None) -> str:
    return " to ".join(f"{end:.3g}" for end in ends) if ends else "-"


def days(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the figures of simulated days under each policy, medians with extremes."""
    if as_json:
        emit(value)
        return
    from drom.agent.bench.day import FIGURES

    print(
        f"{value['days']} simulated days on {value['machine']}, {value['programs']} programs: medians (least to most)"
    )
    cells = [policy["figures"] for policy in value["policies"]]
    rows = [[title, *(_range(figures[key]) for figures in cells)] for key, title in FIGURES.items()]
    table(["FIGURE", *(policy["policy"] for policy in value["policies"])], rows)


def _range(figure: dict[str, float]) -> str:
    return f"{figure['median']:.3g}  ({figure['min']:.3g} to {figure['max']:.3g})"


def _tenths(figure: dict[str, float]) -> str:
    return f"{figure['median']:.3g}  ({figure['p10']:.3g} to {figure['p90']:.3g})"


def resize_cost(value: dict[str, Any], *, as_json: bool) -> None:
    """Print the time that programs lost by resizes, in milliseconds."""
    if as_json:
        emit(value)
        return
    print(value["machine"])
    rows = [
        [
            row["program"],
            row["change"],
            str(row["changes"]),
            *(f"{row[key]['median']:.3g}" for key in ("step_ms", "call_ms", "first_step_ms")),
            *(_tenths(row[key]) for key in ("lost_ms", "alone_ms")),
            f"{row['control_ms']['median']:.3g}",
            f"{row['lost_ms']['median'] / 10:.2g} %",
        ]
        for row in value["costs"]
    ]
    titles = ["PROGRAM", "CHANGE", "TIMES", "STEP", "CALL", "FIRST STEP", "LOST (P10 TO P90)", "ALONE", "CONTROL"]
    table([*titles, "AT 1 A SECOND"], rows)
    print(f"Milliseconds, medians; lost: in the {value['window_ms']:g} ms after a change, the control taken off.")
    print("Alone: what the program loses that makes the same changes by itself, without an agent: the machine's part.")
    far = "cross sockets" if value["moves_cross_sockets"] else "stay on one socket"
    print(f"All changes are between {value['cores']} cores and half of them; moves go to the other half and {far}.")
    not_negligible = [f"{row['program']} {row['change']}" for row in value["costs"] if not row["negligible"]]
    limit = f"{value['negligible_percent']:g} % of the time at one change a second"
    if not_negligible:
        print(f"The papers call the cost negligible. Here it is above {limit} for: {', '.join(not_negligible)}.")
    else:
        print(f"The papers call the cost negligible. Here it is: below {limit} for every program and change.")
