# SPDX-License-Identifier: Apache-2.0
"""Table 1 of Bridi et al. and drom's results: as text, as JSON, as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drom.agent.text import table
from drom.scheduler.analysis import plots
from drom.scheduler.analysis.estimates import Estimate, estimate
from drom.scheduler.reproduction.cp.experiment import PAPER, Contest, contests, tests_in, values
from drom.scheduler.reproduction.cp.tasks import EURORA, SCHEDULERS, Task
from drom.workloads.errors import counted
from drom.workloads.figures import COLOURS, blank, name_axes, record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from drom.scheduler.cp.platform import Platform
    from drom.scheduler.reproduction.cp.generate import Case
    from drom.scheduler.reproduction.cp.metrics import Metrics

WORDS = {"wqt": "WQT", "nl": "NL", "tr": "TR, s", "ao": "AO, s"}


def lines(found: dict[Task, Metrics], seeds: Sequence[int], first: int, platform: Platform) -> Iterator[str]:
    """Yield the tables, each of drom's values with half of its 95 % interval, and how often CP was better."""
    nodes = counted(platform.capacity.shape[0], "node")
    for test in tests_in(found):
        count = min(first, test.jobs)
        which = f"{count} jobs" if count == test.jobs else f"the first {count} of {test.jobs} jobs"
        yield f"{test.name}: {which} on {nodes}, {len(seeds)} seeds"
        headings = ["", *(word for metric in WORDS.values() for word in (metric, "paper"))]
        rows = [[name, *(cell for one in WORDS for cell in _cells(found, test, name, one))] for name in SCHEDULERS]
        yield from table(headings, rows, " " + ">>" * len(WORDS))
        yield ""
    yield "CP beside the rules: wins/ties/losses over the seeds, mean difference with its 95 % interval"
    rows = [
        [
            one.test,
            one.metric.upper(),
            one.rule,
            f"{one.wins}/{one.ties}/{one.losses}",
            f"{in_digits(one.difference.mean)} ± {in_digits(one.difference.half)}",
            "" if one.change is None else f"{one.change:.1%}",
        ]
        for one in contests(found)
    ]
    yield from table(["TEST", "METRIC", "RULE", "W/T/L", "DIFFERENCE", "CHANGE"], rows, "   >>>")
    if platform.name != EURORA:
        yield f"note: the paper's numbers are of {EURORA}, these of {platform.name}."


def to_json(found: dict[Task, Metrics], seeds: Sequence[int], first: int, platform: Platform) -> dict[str, Any]:
    """Return all results as JSON values."""
    return {
        "schema_version": 1,
        "platform": platform.name,
        "seeds": list(seeds),
        "tests": [
            {
                "name": test.name,
                "jobs": min(first, test.jobs),
                "paper": {name: row._asdict() for name, row in PAPER[test.name].items()},
                "schedulers": {name: {m: _told(found, test, name, m) for m in WORDS} for name in SCHEDULERS},
            }
            for test in tests_in(found)
        ],
        "contests": [_contest(one) for one in contests(found)],
    }


def draw(found: dict[Task, Metrics], folder: Path) -> None:
    """Write cp.png. Raises WorkloadError if matplotlib is missing."""
    figure = blank(12, 6.5, "Constraint programming beside PBS's rules, with 95 % intervals; crosses: the paper")
    tests = tests_in(found)
    axes = figure.subplots(len(tests), len(WORDS), squeeze=False)
    for row, test in zip(axes, tests, strict=True):
        for one, (metric, word) in zip(row, WORDS.items(), strict=True):
            ours = [_estimate(found, test, name, metric) for name in SCHEDULERS]
            colours = [COLOURS[i % len(COLOURS)] for i in range(len(ours))]
            one.bar(SCHEDULERS, [e.mean for e in ours], yerr=[e.half for e in ours], color=colours, capsize=3)
            theirs = {name: getattr(given, metric) for name, given in PAPER[test.name].items()}
            one.plot(list(theirs), list(theirs.values()), "kx", markersize=7)
            record(one, "drom", SCHEDULERS, [e.mean for e in ours], [e.half for e in ours])
            record(one, "paper", theirs, theirs.values())
            name_axes(one, f"{test.name}: {word}", "", "")
            one.tick_params(axis="x", rotation=40, labelsize=7)
    plots.write_picture(figure, folder / "cp.png")


def _estimate(found: dict[Task, Metrics], test: Case, name: str, metric: str) -> Estimate:
    return estimate(values(found, test, name, metric))


def _told(found: dict[Task, Metrics], test: Case, name: str, metric: str) -> dict[str, Any]:
    return _estimate(found, test, name, metric)._asdict() | {"values": values(found, test, name, metric).tolist()}


def _contest(one: Contest) -> dict[str, Any]:
    return one._asdict() | {"difference": one.difference._asdict()}


def _cells(found: dict[Task, Metrics], test: Case, name: str, metric: str) -> tuple[str, str]:
    paper = PAPER[test.name].get(name)
    given = "" if paper is None else in_digits(getattr(paper, metric))
    ours = _estimate(found, test, name, metric)
    return in_digits(ours.mean), given


def in_digits(value: float) -> str:
    """Return a number with four digits, or all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
