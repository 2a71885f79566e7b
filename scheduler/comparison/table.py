# SPDX-License-Identifier: Apache-2.0
"""The results of all contenders: a table with a row of figures for each, and notes about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from drom.agent.text import table
from drom.scheduler.analysis.comparison import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drom.scheduler.comparison.candidates import Candidate

SCHEMA = 2
"""The version of the format of the JSON value."""

UNITS = (
    "RESPONSE and MAKESPAN are in seconds, US/CALL in millionths of one; USED is a share of the machine; fairness by "
    "size and by user is 1 where all are slowed down alike."
)


class Column(NamedTuple):
    """A figure of the table."""

    key: str
    head: str
    meaning: str
    of_some: bool = False
    """Whether it is left out if no contender has it."""


COLUMNS = (
    Column("mean_response_s", "RESPONSE", "mean of end less submission, in seconds"),
    Column("mean_slowdown", "SLOWDOWN", "mean of response over the run time with all resources, at least 1 s"),
    Column("mean_bounded_slowdown", "BOUNDED", "the same with run times of at least 10 s, and at least 1"),
    Column(
        "fairness_by_size",
        "BY SIZE",
        "Jain's index over the mean bounded slowdowns of sizes, up to powers of two; 1 is even, 1/n where one of n "
        "bears everything",
    ),
    Column("fairness_by_user", "BY USER", "the same over users", of_some=True),
    Column("utilisation", "USED", "work of the jobs over what the machine could do in the makespan"),
    Column("filled", "FILLED", "work that containers did in the gaps of that time, over the same", of_some=True),
    Column("paid", "PAID", "what the jobs paid by their contracts, of what they offered", of_some=True),
    Column("makespan_s", "MAKESPAN", "from the first submission to the last end, in seconds"),
    Column("reconfigurations", "RESIZES", "changes of the speed of running jobs, as they lost or got cores"),
    Column("microseconds_per_call", "US/CALL", "time of the simulation over calls of the policy, in millionths"),
)


class Result(NamedTuple):
    """A contender and its figures; none if its run did not complete."""

    contender: Candidate
    figures: Mapping[str, float | None]
    fault: str = ""
    """Why it has no figures."""


def result_of(contender: Candidate, told: Mapping[str, Any]) -> Result:
    """Return the result of a run from its summary."""
    if not told["complete"]:
        return Result(contender, {}, str(told["stopped"]))
    figures = dict(told["metrics"])
    figures["filled"] = (told.get("filling") or {}).get("gain")
    figures["paid"] = _paid(told["contracts"])
    figures["microseconds_per_call"] = 1e6 * told["seconds"] / max(1, told["calls_of_the_policy"])
    return Result(contender, {column.key: figures[column.key] for column in COLUMNS})


def _paid(contracts: Mapping[str, Any] | None) -> float | None:
    """Return the fraction of the offered pay-off that was paid; None if none was offered."""
    return contracts["payoff"] / contracts["payoff_offered"] if contracts and contracts["payoff_offered"] else None


def columns_of(results: Sequence[Result]) -> list[Column]:
    """Return the columns of a table of these results."""
    return [c for c in COLUMNS if not c.of_some or any(one.figures.get(c.key) is not None for one in results)]


def cells(result: Result, columns: Sequence[Column]) -> list[str]:
    """Return the figures of a row as texts."""
    return [number(result.figures.get(column.key)) for column in columns]


def lines(results: Sequence[Result], width: int | None = None) -> list[str]:
    """Return the lines of a table; contenders without figures have no row.

    If the lines would be longer than `width`, the columns that do not fit follow in further tables.
    """
    whole = [result for result in results if result.figures]
    found: list[str] = []
    shown: list[Column] = []
    for column in columns_of(whole):
        if width and shown and len(_part(whole, [*shown, column])[0]) > width:
            found += _part(whole, shown)
            shown = []
        shown.append(column)
    return found + _part(whole, shown)


def _part(results: Sequence[Result], columns: Sequence[Column]) -> list[str]:
    """Return the lines of the table of these columns."""
    rows = [[result.contender.name, *cells(result, columns)] for result in results]
    return table(["POLICY", *(column.head for column in columns)], rows, " " + ">" * len(columns))


def notes(results: Sequence[Result]) -> list[str]:
    """Return sentences on contenders without figures, and on the assumptions of the others."""
    found = [f"{one.contender.name} has no figures: {one.fault.rstrip('.')}." for one in results if not one.figures]
    return found + [
        f"{one.contender.name}: {one.contender.premise}." for one in results if one.figures and one.contender.premise
    ]


def to_json(log: str, nodes: int, cores: int, results: Sequence[Result]) -> dict[str, Any]:
    """Return all results as one JSON value."""
    return {
        "schema_version": SCHEMA,
        "log": log,
        "nodes": nodes,
        "cores": cores,
        "complete": all(result.figures for result in results),
        "policies": [
            {
                "policy": one.contender.name,
                "options": list(one.contender.options),
                "figures": dict(one.figures) or None,
                "fault": one.fault or None,
                "premise": one.contender.premise or None,
            }
            for one in results
        ],
    }
