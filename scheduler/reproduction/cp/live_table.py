# SPDX-License-Identifier: Apache-2.0
"""The results of live runs beside Table 1 of Bridi et al.: as text and as JSON."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from drom.agent.text import table
from drom.scheduler.reproduction.cp.experiment import PAPER, tests_in
from drom.scheduler.reproduction.cp.generate import TESTS
from drom.scheduler.reproduction.cp.live import POLICIES
from drom.scheduler.reproduction.cp.table import WORDS, in_digits
from drom.scheduler.reproduction.cp.tasks import CP, RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drom.scheduler.reproduction.cp.generate import Case
    from drom.scheduler.reproduction.cp.metrics import LiveMetrics
    from drom.scheduler.reproduction.cp.tasks import Task

Found = dict["Task", "LiveMetrics"]
HEADINGS = {
    **WORDS,
    "cores": "CORES",
    "loop": "LOOP, s",
    "loop_cpu": "CPU, s",
    "solver": "SOLVER",
    "rule": "RULE",
    "fallback": "FALLBACK",
}


def lines(found: Found, first: int, compression: float) -> Iterator[str]:
    """Yield a table for each test: every run, the medians over the seeds, the paper, and what CP gains."""
    for test in tests_in(found):
        yield f"{test.name}: {min(first, test.jobs)} jobs on 65 emulated nodes, {compression:g} times as fast"
        rows: list[list[str]] = []
        for engine in POLICIES:
            runs = _runs(found, test, engine)
            rows += [[engine, str(seed), *map(in_digits, run)] for seed, run in runs.items()]
            rows.append([engine, "median", *map(in_digits, _medians(found, test, engine).values())])
            rows.append([engine, "paper", *map(in_digits, PAPER[test.name][engine]), *[""] * 6])
        yield from table(["", "SEED", *HEADINGS.values()], rows, "  " + ">" * len(HEADINGS))
        for rule, change in _changes(found, test).items():
            yield f"CP's median WQT is {abs(change):.0%} {'below' if change < 0 else 'above'} that of {rule}."
        yield ""


def to_json(found: Found, first: int, compression: float) -> dict[str, Any]:
    """Return all results as JSON values."""
    return {
        "schema_version": 1,
        "compression": compression,
        "tests": [
            {
                "name": test.name,
                "jobs": min(first, test.jobs),
                "paper": {name: row._asdict() for name, row in PAPER[test.name].items()},
                "runs": {
                    engine: {str(seed): run._asdict() for seed, run in _runs(found, test, engine).items()}
                    for engine in POLICIES
                },
                "medians": {engine: _medians(found, test, engine) for engine in POLICIES},
                "wqt_changes": _changes(found, test),
            }
            for test in tests_in(found)
        ],
    }


def _runs(found: Found, test: Case, engine: str) -> dict[int, LiveMetrics]:
    """Return the runs of an engine by seed."""
    which = TESTS.index(test), engine
    return dict(sorted((task.seed, run) for task, run in found.items() if (task.test, task.scheduler) == which))


def _medians(found: Found, test: Case, engine: str) -> dict[str, float]:
    runs = _runs(found, test, engine).values()
    return {name: median(getattr(run, name) for run in runs) for name in HEADINGS}


def _changes(found: Found, test: Case) -> dict[str, float]:
    """Return CP's median WQT less that of each rule, as a fraction of the rule's."""
    wqt = {engine: _medians(found, test, engine)["wqt"] for engine in POLICIES}
    return {rule: wqt[CP] / wqt[rule] - 1 for rule in RULES if wqt[rule]}
